"""Parts of the user's own, by import path: modules of the working folder are found, and their code has a digest."""

import ast
import contextlib
import functools
import hashlib
import importlib
import inspect
import re
import sys
import traceback
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ortpipe.errors import ConfigError, OrtpipeError, nearest

PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
INSTALLED = {"site-packages", "dist-packages", f"python{sys.version_info.major}.{sys.version_info.minor}"}
_LOADED: dict[str, Any] = {}  # by the path that a config names; whoever reads a record finds only what is here

_SOURCES: dict[str, "_Source"] = {}  # by the name of a module


def is_path(name: object) -> bool:
    """Return whether a name is an import path.

    >>> is_path("mypackage.losses:Tilted"), is_path("l2"), is_path("C:\\\\loss.onnx")
    (True, False, False)
    """
    return isinstance(name, str) and PATH.fullmatch(name) is not None


def load(path: str, key: str | None = None, problem: type[OrtpipeError] = ConfigError) -> Any:
    """Import what a path `module:name`, set under a key, names; errors say what there is instead."""
    module, _, name = path.partition(":")
    said = path if key is None else "{key}"
    try:
        new = module not in sys.modules
        with working_folder_first():
            imported = importlib.import_module(module)
        if new and (file := getattr(imported, "__file__", None)) is not None and Path(file).is_file():
            _source(module, Path(file).resolve(), new=True)
    except Exception as error:
        raise problem(
            f"The module of {said} must be importable.",
            key=key,
            got=f"{module}: {type(error).__name__}: {error}{_place(error)}",
            fix="Install it, or run where it lies in the working folder.",
        ) from error
    part = getattr(imported, name, None)
    if not callable(part):
        names = [n for n, value in vars(imported).items() if callable(value) and not n.startswith("_")]
        got = f"{path}, which is {'not there' if part is None else f'a {type(part).__name__}'}"
        rule = f"{said} must be a function or a class of its module."
        raise problem(rule, key=key, got=got, fix=nearest(name, names))
    _LOADED[path] = part if inspect.isroutine(part) or inspect.isclass(part) else imported
    return part


def loaded(path: str) -> Any:
    """Return what a path, perhaps with a head in front, names if a config of this process has: nothing is imported.

    In the place of an instance stands the module that makes it.
    """
    return _LOADED.get(path.rpartition("/")[2])


def path_of(part: Any) -> str:
    """Return the import path of a function or a class."""
    return f"{part.__module__}:{part.__qualname__}"


def is_own(part: Any) -> bool:
    """Return whether a function or a class is not ortpipe's."""
    return str(getattr(part, "__module__", "")).partition(".")[0] != __name__.partition(".")[0]


@contextlib.contextmanager
def working_folder_first() -> Iterator[None]:
    """Find modules of the working folder, those too that a function imports only when it is called."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def code(part: Any) -> str:
    """Return the sha256 (hex) of the code of a function, class or module, and of what it imports from its own folder.

    That is the text of the files, where it is what was imported. Else, as in a notebook, it is what is in memory, which
    other processes compute again: the part by value, with the globals that it reads, as cloudpickle writes it.
    """
    name = part.__name__ if inspect.ismodule(part) else part.__module__
    try:
        file = Path(inspect.getfile(part)).resolve()
    except (TypeError, OSError):  # it is of C, or a class of a notebook
        file = None
    if file is None or not file.is_file():
        return _by_value(part, [name])
    source = _source(name, file)
    return source.digest or _by_value(part, source.files)


class _Source(NamedTuple):
    """The files of a module that was imported, by the names of modules; their digest if they are unchanged since."""

    spec: object  # another one after a reload
    files: Mapping[str, Path]
    digest: str | None
    newest: float  # when a file was changed last


def _source(name: str, file: Path, *, new: bool = False) -> _Source:
    """Return the files of a module; `new` says that it was imported right now."""
    spec, known = getattr(sys.modules.get(name), "__spec__", None), _SOURCES.get(name)
    if known is not None and known.spec is spec and not new:
        if (newest := _changed(known.files)) > known.newest:
            _SOURCES[name] = known._replace(newest=newest)
            lost = "was edited after it was imported, which counts: restart Python, or importlib.reload it."
            warnings.warn(f"{name} {lost}", stacklevel=2)
        return known
    files = _files(name, file)
    newest = _changed(files)
    contents = [files[name].read_bytes() for name in sorted(files)] if new or newest < _began() else []
    if len(contents) > 1:
        contents = ["".join(hashlib.sha256(content).hexdigest() for content in contents).encode()]
    digest = hashlib.sha256(contents[0]).hexdigest() if contents else None
    _SOURCES[name] = _Source(spec, files, digest, newest)
    return _SOURCES[name]


def _changed(files: Mapping[str, Path]) -> float:
    return max((file.stat().st_mtime for file in files.values() if file.is_file()), default=0.0)


@functools.cache
def _began() -> float:
    """Return when this process began, or was forked: what it had imported by then, others may have written since."""
    import psutil

    return psutil.Process().create_time()


def _by_value(part: Any, modules: Iterable[str]) -> str:
    import cloudpickle

    inside = [sys.modules[name] for name in modules if name in sys.modules and name != "__main__"]
    for module in inside:
        cloudpickle.register_pickle_by_value(module)
    try:
        content = cloudpickle.dumps(part)
    except Exception:  # noqa: BLE001 - whatever its globals raise, of this part nothing is found in the store
        content = uuid.uuid4().bytes
    finally:
        for module in inside:
            cloudpickle.unregister_pickle_by_value(module)
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def blamed(part: Any, noun: str, error: type[OrtpipeError]) -> Iterator[None]:
    """Name a part of the user's own, and the line, in whatever it raises."""
    try:
        yield
    except OrtpipeError as cause:
        if is_own(part):
            cause.add_note(f"  in: the {noun} {path_of(part)}")
        raise
    except Exception as cause:
        if not is_own(part):
            raise
        got = f"{type(cause).__name__}: {cause}{_place(cause, part)}"
        raise error(f"The {noun} {path_of(part)} must run.", got=got, fix="Correct it.") from cause


def _place(error: Exception, part: Any = None) -> str:
    """Return the last line of the part's own file, or of any, that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    file = None if part is None else getattr(sys.modules.get(part.__module__), "__file__", None)
    for frame in reversed(frames):
        if file is None or frame.filename == file:
            return f", in line {frame.lineno} of {frame.filename}: {frame.line}"
    return ""


def _files(name: str, file: Path) -> dict[str, Path]:
    """Return a module's file and those of its folder that it imports, however deep; of an installed one its own.

    They are by the modules' names.
    """
    package = file.name == "__init__.py"
    depth = name.count(".") + package
    if file.suffix != ".py" or depth >= len(file.parents) or INSTALLED & set(file.parts):
        return {name: file}
    root, found, stack = file.parents[depth], dict[str, Path](), [(name, file)]
    while stack:
        name, file = stack.pop()
        found[name] = file
        for other in sorted(_imported(name, file)):
            base = root.joinpath(*other.split("."))
            for place in (base.with_suffix(".py"), base / "__init__.py"):
                if other not in found and place.is_file():
                    stack.append((other, place))
    return found


def _imported(name: str, file: Path) -> set[str]:
    """Return the names of what may be modules that a file imports, wherever in it, and of the packages around them."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    names = {package}
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names.update({base, *(f"{base}.{alias.name}" for alias in node.names)})
    parts = [other.split(".") for other in names if other]
    return {".".join(words[:count]) for words in parts for count in range(1, len(words) + 1)}
