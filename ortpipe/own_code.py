"""Load a user's own classes and functions by import path, also from the working folder, and hash their code."""

import ast
import contextlib
import functools
import hashlib
import importlib
import inspect
import sys
import traceback
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from ortpipe.errors import ConfigError, OrtpipeError, nearest

INSTALLED = {"site-packages", "dist-packages", f"python{sys.version_info.major}.{sys.version_info.minor}"}
_LOADED: dict[str, Any] = {}  # by import path in a config; reading a record only looks here and imports nothing

_SOURCES: dict[str, "_Source"] = {}  # by module name


def load(path: str, key: str | None = None, problem: type[OrtpipeError] = ConfigError) -> Any:
    """Import the function or class at a path `module:name`; errors name the setting `key`."""
    module, _, name = path.partition(":")
    label = path if key is None else "{key}"
    try:
        new = module not in sys.modules
        with working_folder_first():
            imported = importlib.import_module(module)
        if new and (file := getattr(imported, "__file__", None)) is not None and Path(file).is_file():
            _source(module, Path(file).resolve(), new=True)
        elif not new:
            _warn_of_another(module.partition(".")[0])
    except Exception as error:
        raise problem(
            f"The module of {label} must be importable.",
            key=key,
            got=f"{module}: {type(error).__name__}: {error}{location(error)}",
            fix="Install it, or run in the folder that contains it.",
        ) from error
    part = getattr(imported, name, None)
    if not callable(part):
        names = [n for n, value in vars(imported).items() if callable(value) and not n.startswith("_")]
        actual = f"{path}, which is {'missing' if part is None else f'a {type(part).__name__}'}"
        rule = f"{label} must be a function or a class of its module."
        raise problem(rule, key=key, got=actual, fix=nearest(name, names))
    _LOADED[path] = part if inspect.isroutine(part) or inspect.isclass(part) else imported
    return part


def _warn_of_another(name: str) -> None:
    """Warn if the working folder has a module of the name of one that was imported from another folder."""
    file = getattr(sys.modules.get(name), "__file__", None)  # a notebook may have made the module without its package
    here = PathFinder.find_spec(name, [str(Path.cwd())])
    if file is None or here is None or here.origin is None or name == "ortpipe" or INSTALLED & set(Path(file).parts):
        return
    if Path(here.origin).resolve() != Path(file).resolve():
        warnings.warn(f"{name} was imported from {file}: restart Python to use {here.origin}.", stacklevel=2)


def loaded(path: str) -> Any:
    """Return the object at a path if this process has loaded it, else None; nothing is imported.

    A head's prefix in the path is ignored. For an instance, its module is returned.
    """
    return _LOADED.get(path.rpartition("/")[2])


def error_in(part: Any, rule: str, kind: type[OrtpipeError], cause: Exception) -> OrtpipeError:
    """Return the error for an exception in a user's own part; it names the line."""
    return kind(rule, got=f"{type(cause).__name__}: {cause}{location(cause, part)}", fix="Correct it.")


def location(error: Exception, part: Any = None) -> str:
    """Return the last line in the part's file, or in any file, of an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    file = None if part is None else getattr(sys.modules.get(part.__module__), "__file__", None)
    for frame in reversed(frames):
        if file is None or frame.filename == file:
            return f", in line {frame.lineno} of {frame.filename}: {frame.line}"
    return ""


@contextlib.contextmanager
def working_folder_first() -> Iterator[None]:
    """Put the working folder first on sys.path, also for imports inside of functions that run in this context."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def code(part: Any) -> str:
    """Return the sha256 (hex) of the code of a function, class or module, and of its imports from its own folder.

    It hashes the files' text if they are unchanged since the import. Else, as in a notebook, it hashes the object in
    memory and the globals that it reads, pickled by value with cloudpickle; other processes may get another digest.
    """
    name = part.__name__ if inspect.ismodule(part) else part.__module__
    try:
        file = Path(inspect.getfile(part)).resolve()
    except (TypeError, OSError):  # it is written in C, or a class of a notebook
        file = None
    if file is None or not file.is_file():
        return _by_value(part, [name])
    source = _source(name, file)
    return source.digest or _by_value(part, source.files)


class _Source(NamedTuple):
    """The files of an imported module by module name, and their digest if they are unchanged since the import."""

    spec: object  # a new object after a reload
    files: Mapping[str, Path]
    digest: str | None
    newest: float  # the latest modification time of the files


def _source(name: str, file: Path, *, new: bool = False) -> _Source:
    """Return a module's source; `new` means that it has just been imported."""
    spec, cached = getattr(sys.modules.get(name), "__spec__", None), _SOURCES.get(name)
    if cached is not None and cached.spec is spec and not new:
        if (newest := _newest_change(cached.files)) > cached.newest:
            _SOURCES[name] = cached._replace(newest=newest)
            problem = (
                "was edited after its import, and the imported version is used: restart Python, or importlib.reload it."
            )
            warnings.warn(f"{name} {problem}", stacklevel=2)
        return cached
    files = _files(name, file)
    newest = _newest_change(files)
    contents = [files[name].read_bytes() for name in sorted(files)] if new or newest < _process_start() else []
    if len(contents) > 1:
        contents = ["".join(hashlib.sha256(content).hexdigest() for content in contents).encode()]
    digest = hashlib.sha256(contents[0]).hexdigest() if contents else None
    _SOURCES[name] = _Source(spec, files, digest, newest)
    return _SOURCES[name]


def _newest_change(files: Mapping[str, Path]) -> float:
    return max((file.stat().st_mtime for file in files.values() if file.is_file()), default=0.0)


@functools.cache
def _process_start() -> float:
    """Return when this process started or was forked; files of modules imported before may have changed since."""
    import psutil

    return psutil.Process().create_time()


def _by_value(part: Any, modules: Iterable[str]) -> str:
    import cloudpickle

    inside = [sys.modules[name] for name in modules if name in sys.modules and name != "__main__"]
    for module in inside:
        cloudpickle.register_pickle_by_value(module)
    try:
        content = cloudpickle.dumps(part)
    except Exception:  # noqa: BLE001 - globals may raise anything: the random digest makes it a cache miss
        content = uuid.uuid4().bytes
    finally:
        for module in inside:
            cloudpickle.unregister_pickle_by_value(module)
    return hashlib.sha256(content).hexdigest()


def _files(name: str, file: Path) -> dict[str, Path]:
    """Return a module's file and those that it imports from its folder, recursively, by module name.

    For an installed module it is only its own file.
    """
    package = file.name == "__init__.py"
    depth = name.count(".") + package
    if file.suffix != ".py" or depth >= len(file.parents) or INSTALLED & set(file.parts):
        return {name: file}
    root, files, stack = file.parents[depth], dict[str, Path](), [(name, file)]
    while stack:
        name, file = stack.pop()
        files[name] = file
        for imported in sorted(_imported(name, file)):
            base = root.joinpath(*imported.split("."))
            for place in (base.with_suffix(".py"), base / "__init__.py"):
                if imported not in files and place.is_file():
                    stack.append((imported, place))
    return files


def _imported(name: str, file: Path) -> set[str]:
    """Return the names of possible modules that a file imports, anywhere in it, and of their packages."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    names = {package}
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names.update({base, *(f"{base}.{alias.name}" for alias in node.names)})
    parts = [imported_name.split(".") for imported_name in names if imported_name]
    return {".".join(words[:count]) for words in parts for count in range(1, len(words) + 1)}
