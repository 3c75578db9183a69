"""The rules of the house, as tests: configs compose, imports are late, files are short, and names are clear."""

from __future__ import annotations

import ast
import collections
import functools
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from sample import ALL

import ortpipe.app.compose  # noqa: F401 -- it registers the resolvers of conf/
from ortpipe.app.schema import build
from ortpipe.flow import FLOW

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
EXPERIMENTS = sorted(
    str(path.relative_to(CONF / "experiment").with_suffix("")) for path in (CONF / "experiment").rglob("*.yaml")
)
# those that no other test runs: test_readme.py and test_tutorials.py run all files of the other folders
COMPOSED = [name for name in EXPERIMENTS if ALL or name.partition("/")[0] in ("files", "networks")]
SEARCHES = sorted(path.stem for path in (CONF / "hparams_search").glob("*.yaml"))


@pytest.mark.parametrize("experiment", COMPOSED)
def test_every_experiment_composes_and_validates(experiment: str, tmp_path: Path) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"experiment={experiment}", "name=test", f"paths.outputs={tmp_path}"])
    typed = build(OmegaConf.to_container(config, resolve=True))
    assert [stage.name for stage in FLOW if not hasattr(typed, stage.name)] == []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_opens_with_the_command_that_runs_it(experiment: str) -> None:
    lines = (CONF / "experiment" / f"{experiment}.yaml").read_text().splitlines()
    assert lines[:2] == ["# @package _global_", f"# ortpipe experiment={experiment}"]


@pytest.mark.parametrize("search", SEARCHES)
def test_every_search_opens_with_the_command_that_runs_it_and_sweeps_without_it_too(search: str) -> None:
    text = (CONF / "hparams_search" / f"{search}.yaml").read_text()
    assert text.splitlines()[:2] == ["# @package _global_", f"# ortpipe -m hparams_search={search}"]
    assert yaml.safe_load(text)["hydra"]["mode"] == "MULTIRUN"


def test_every_choice_of_a_group_composes(tmp_path: Path) -> None:
    """Compose the first choice of every group together, then the second, and so on: each composition takes 0.2 s."""
    groups = ("data", "add_loss", "penalty", "train/optimizer", "train/schedule", "recorder")
    choices = {group: sorted((CONF / group).glob("*.yaml")) for group in groups}
    for number in range(max(map(len, choices.values()))):
        chosen = {group: paths[number % len(paths)] for group, paths in choices.items()}
        if chosen["train/optimizer"].stem == "lbfgs":  # it takes no schedule
            del chosen["train/schedule"]
        overrides = [override for group, path in chosen.items() for override in _choosing(group, path)]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", [*overrides, "name=test", f"paths.outputs={tmp_path}"])
        build(OmegaConf.to_container(config, resolve=True))


def _choosing(group: str, path: Path) -> list[str]:
    """Return the overrides that choose a file and set its missing values."""
    overrides = [f"{group}={path.stem}", *(["~train.optimizer.lr"] if path.stem == "lbfgs" else [])]
    for part in {"data": ["source"], "add_loss": ["loss"]}.get(group, []):
        given = yaml.safe_load(path.read_text()).get(part, {})
        unset = {key: "of:mine" for key, value in given.items() if value == "???"}
        unset |= {"name": "ortpipe.data.sources.synthetic:Synthetic"} if "name" in unset else {}
        overrides += [f"{group}.{part}.{key}={value}" for key, value in unset.items()]
    return overrides


def test_every_python_file_explains_itself_in_its_first_line() -> None:
    for path in (ROOT / "ortpipe").rglob("*.py"):
        assert re.match(r'"""[^\n]+', path.read_text()), path
        assert "project" in path.parts or (path.parent / "__init__.py").is_file(), path  # else import-linter skips it


OPENING = {"read_text", "write_text", "open", "fdopen"}


def text_without_encoding(module: ast.Module) -> list[int]:
    """Return the lines that read or write text in the locale's encoding."""
    lines = []
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        said = {keyword.arg: keyword.value for keyword in call.keywords}
        if "encoding" in said or (name not in OPENING and "text" not in said):
            continue
        words = [value.value for value in ast.walk(call) if isinstance(value, ast.Constant)]
        binary = any(isinstance(word, str) and re.fullmatch("[rwax+]*b[rwax+]*", word) for word in words)
        mode = any(isinstance(word, str) and re.fullmatch("[rwax]t?[+]?", word) for word in words)
        if (name != "open" or isinstance(call.func, ast.Name) or mode or not call.args) and not binary:
            lines.append(call.lineno)
    return lines


def test_text_is_read_and_written_as_utf_8_whatever_the_locale() -> None:
    code = "p.read_text()\nopen(p)\np.open('w')\nrun(c, text=True)"
    assert text_without_encoding(ast.parse(code)) == [1, 2, 3, 4]
    found = {str(path): text_without_encoding(module) for path, module in parsed().items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


PATHS = [*(ROOT / "ortpipe").rglob("*.py")]


@functools.cache
def parsed() -> dict[Path, ast.Module]:
    """Return the parsed modules, which takes too long for each worker's collection."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in PATHS}


# What costs too much to import where nobody may need it, or is not on every system. Commands import late, too.
HEAVY = {
    *(
        "hydra",
        "jax",
        "joblib",
        "matplotlib",
        "mlflow",
        "onnx.reference",
        "onnxruntime",
        "openpyxl",
        "pandas",
        "portalocker",
        "psutil",
        "cloudpickle",
    ),
    *("pyarrow", "scipy", "sklearn", "skl2onnx", "skops", "sqlalchemy", "threadpoolctl", "torch", "tqdm", "yaml"),
    *("grp", "pwd", "winreg", "onnxscript", "safetensors.torch", "tokenizers", "flatbuffers", "ray", "fsspec"),
}
LATE, TYPE_ONLY, LONGEST = 93, 20, 400


def late_imports() -> dict[str, str]:
    """Return what is imported inside functions, by file and line."""
    found = {}
    for path, module in parsed().items():
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in (node for function in functions for node in ast.walk(function)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                name = node.names[0].name if isinstance(node, ast.Import) else node.module or ""
                found[f"{path.relative_to(ROOT)}:{node.lineno}"] = name
    return found


def test_only_heavy_packages_and_commands_are_imported_inside_functions() -> None:
    late = late_imports()
    assert len(late) <= LATE
    stray = {place for place, name in late.items() if not {name, name.partition(".")[0]} & HEAVY}
    assert {place for place in stray if not place.startswith("ortpipe/app/")} == set()


def test_few_imports_are_for_types_only() -> None:
    modules = [module for path, module in parsed().items() if path not in (*DOORS, *LATER)]
    ifs = [node for module in modules for node in ast.walk(module) if isinstance(node, ast.If)]
    assert sum("TYPE_CHECKING" in ast.dump(node.test) for node in ifs) <= TYPE_ONLY


CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
GUESTS = [contract["allowed_importers"][0] for contract in CONTRACTS if contract["type"] == "protected"]
DOORS = [m for m in PATHS if m.name == "__init__.py" and "door(__name__)" in m.read_text(encoding="utf-8")]


@pytest.mark.parametrize("guest", GUESTS)
def test_a_guest_names_three_files_to_read_first_and_has_tests_of_its_own(guest: str) -> None:
    folder, _, rest = guest.replace(".", "/"), *importlib.import_module(guest).__doc__.partition("Read first:")[1:]
    first = re.findall(r"`([\w/]+\.py)`", rest)
    assert len(first) == 3
    assert [name for name in first if not any((root / name).is_file() for root in (ROOT / folder, ROOT))] == []
    assert list((ROOT / folder.replace("ortpipe", "tests", 1)).rglob("test_*.py"))


def test_the_picture_of_the_folders_is_drawn_from_the_code() -> None:
    spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "house.py")
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    assert house.PICTURE.read_text(encoding="utf-8") == house.picture(), "run: python docs/house.py"
    folders = {path.name for path in (ROOT / "ortpipe").iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= set(house.ROW)
    assert {guest.rpartition(".")[2] for guest in GUESTS} == {*house.GUESTS, *house.INSIDE}


def test_no_text_names_a_module_inside_of_a_guest_but_the_guest_itself() -> None:
    places = set()  # import-linter does not see what catalogues and `later` import by name
    for path in {*PATHS} - {ROOT / "ortpipe" / "app" / "command_list.py"}:
        module, text = ".".join(path.relative_to(ROOT).with_suffix("").parts), path.read_text(encoding="utf-8")
        others = [guest for guest in GUESTS if not module.startswith(f"{guest}.") and f'"{guest}.' in text]
        places.update(f"{path.relative_to(ROOT)}: {guest}" for guest in others)
    assert places == set()


@pytest.mark.parametrize("path", DOORS, ids=lambda path: path.parent.name)
def test_every_name_of_a_door_exists_and_is_no_module_of_its_folder(path: Path) -> None:
    package = importlib.import_module(".".join(path.parent.relative_to(ROOT).parts))
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    modules = {module.stem for module in path.parent.iterdir()}  # once imported, a module hides a name
    assert modules.isdisjoint(package.__all__)


def test_no_file_is_longer_than_a_reader_holds_in_mind() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in PATHS}
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}


@pytest.mark.parametrize("stage", ["convert", "add_loss", "penalty", "derive", "train", "evaluate"])
def test_a_stage_is_a_list_of_steps_of_at_most_forty_lines(stage: str) -> None:
    modules = {path: module for path, module in parsed().items() if f"stages/{stage}/" in path.as_posix()}
    functions = [(p.name, n) for p, m in modules.items() for n in ast.walk(m) if isinstance(n, ast.FunctionDef)]
    lengths = {(file, f.name): (f.end_lineno or 0) - f.lineno + 1 for file, f in functions}
    assert {name: length for name, length in lengths.items() if length > 40} == {}


LATER = [m for m in PATHS if "later(__name__)" in m.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", LATER, ids=lambda path: path.stem)
def test_functions_that_are_imported_later_exist(path: Path) -> None:
    blocks = [node for node in parsed()[path].body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    for node in imports:
        module = importlib.import_module(str(node.module))
        assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_no_two_classes_have_one_name() -> None:
    named = collections.defaultdict(list)
    for path, module in parsed().items():
        for node in (node for node in ast.walk(module) if isinstance(node, ast.ClassDef)):
            named[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


def test_locals_and_parameters_say_what_they_hold() -> None:
    vague = {"made", "found", "own", "given", "known", "kept", "told", "said", "held", "wanted", "asked"}
    places = set()
    for path, module in parsed().items():
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.Lambda)]
        for node in (node for function in functions for node in ast.walk(function)):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in vague
            if stored or (isinstance(node, ast.arg) and node.arg in vague):
                places.add(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert places == set()


@functools.cache
def sources() -> dict[Path, ast.Module]:
    """Return the parsed modules, with those of plugins."""
    return {**parsed(), **{path: ast.parse(path.read_text()) for path in (ROOT / "hydra_plugins").glob("*.py")}}


OURS = {"ortpipe", "hydra_plugins", *sys.stdlib_module_names}  # Python documents `sys.stdout` as replaceable, and so on
CHANGES = ("setattr", "delattr")
TUPLES = {"_replace", "_asdict", "_fields"}  # of named tuples, which are public
HIDES = "ortpipe/runtime/library.py: sys.modules[TRAINING]"  # onnxruntime's training package, which imports torch


def imported_names(module: ast.Module) -> dict[str, str]:
    """Return the names that a module's imports bind, each with the path of the module or object."""
    names = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def own_private_names() -> set[str]:
    """Return the private names that ortpipe itself defines: functions, classes, fields, attributes of `self`."""
    nodes = [node for module in sources().values() for node in ast.walk(module)]
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return names | {node.attr for node in stored if getattr(node.value, "id", "") in ("self", "cls")}


def touched(module: ast.Module, own: set[str]) -> list[str]:
    """Return the code of a module that changes other packages, or uses their private parts."""
    imports, code, ours = imported_names(module), [], own | TUPLES

    def foreign(node: ast.AST) -> bool:
        """Return whether an attribute's root is another package, or an object imported from it."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and imports.get(node.id, "ortpipe").partition(".")[0] not in OURS

    for path in imports.values():
        root, *parts = path.split(".")
        if root not in OURS and any(map(is_private, parts)):
            code.append(path)
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute):
            changes = isinstance(node.ctx, ast.Store | ast.Del) and foreign(node)
            private = is_private(node.attr) and node.attr not in ours
            if not (changes or private or node.attr == "meta_path"):
                continue
            text, path = ast.unparse(node), ast.unparse(node.value)
            private &= imports.get(path, "").partition(".")[0] not in sys.stdlib_module_names
            if changes or text == "sys.meta_path" or (private and not path.endswith("ops.aten")):  # ATen's operators
                code.append(text)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            if ast.unparse(node.value) == "sys.modules":
                code.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in CHANGES and foreign(node.args[0]):
            code.append(ast.unparse(node))
    return code


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import hydra\nhydra.main = 1", ["hydra.main"]),
        ("from mlflow import MlflowClient as C\nC.log = 1", ["C.log"]),
        ("import hydra as h\nsetattr(h.core, 'x', 1)", ["setattr(h.core, 'x', 1)"]),
        ("from jax._src import xla_bridge", ["jax._src.xla_bridge"]),
        ("from onnx.x import _y", ["onnx.x._y"]),
        ("override._value\nself._mine\na._replace(b=1)", ["override._value"]),
        (
            "import sys\nsys.meta_path.insert(0, f)\nsys.stdout = f\nsys.modules['a'] = f",
            ["sys.meta_path", "sys.modules['a']"],
        ),
    ],
)
def test_the_search_for_changes_of_other_packages_finds_them(code: str, shown: list[str]) -> None:
    assert sorted(touched(ast.parse(code), {"_mine"})) == shown


def test_other_packages_stay_as_they_are() -> None:
    own = own_private_names()
    places = {
        f"{path.relative_to(ROOT)}: {code}" for path, module in sources().items() for code in touched(module, own)
    }
    assert places == {HIDES}
