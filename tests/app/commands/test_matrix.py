"""Every key, argument and file, wrong in every way: accepted, or one clear error, and never a traceback."""

from __future__ import annotations

import copy
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
from sample import pairs

from ortpipe.app.cli import readable
from ortpipe.app.command_list import COMMANDS, command
from ortpipe.app.compose import Composition, packaged_conf
from ortpipe.app.run.checkpoint import read_checkpoint
from ortpipe.app.schema import RunConfig, build_key, group_of
from ortpipe.data.tokens import TokensConfig
from ortpipe.errors import OrtpipeError
from ortpipe.graph.files.state_dict import StateDictFile
from ortpipe.settings import catalogue_of, fields_of

VALUES: dict[str, Any] = {
    "null": None,
    "a list": ["a", 1],
    "an empty list": [],
    "a mapping": {"a": {1: None}},
    "a huge number": 10**30,
    "a negative number": -1,
    "zero": 0,
    "infinity": float("inf"),
    "no number": float("nan"),
    "nothing": "",
    "quotes": "a'b\"c\\",
    "a line break": "a\nb",
    "a NUL": "\0",
    "a long word": "é" * 3000,
    "true": True,
}
REQUIRED = {
    "path": "rows.csv",
    "label": "y",
    "function": "builtins:list",
    "dataset": "iris",
    "layers": ["relu"],
    "tracking_uri": "x:y",
}
ALONE = {"sklearn": {"estimator": "sklearn.linear_model.Ridge"}, "torch": {"module": "torch.nn:Linear"}}
ALONE["teacher"] = {"estimator": "sklearn.linear_model.Ridge"}


def needs(entry: dataclasses.Field[Any]) -> bool:
    return entry.default is entry.default_factory  # both missing


def places(cls: Any = RunConfig, path: tuple[str, ...] = (), chosen: dict[str, Any] | None = None) -> Iterator[Any]:
    """Yield every key of the schema as a path, with the groups around it: each member of each catalogue."""
    for name, (_, hint) in fields_of(cls).items():
        here = (*path, name)
        yield here, chosen or {}
        members = catalogue_of(hint)
        groups = {"": group_of(hint)} if members is None else dict(members)
        for member, group in groups.items():
            if dataclasses.is_dataclass(group):
                named = {
                    key: REQUIRED[key] for key, (part, _) in fields_of(group).items() if needs(part) and key in REQUIRED
                } | ALONE.get(member or name, {})
                node = named | ({"name": member} if member else {})
                yield from places(group, here, {**(chosen or {}), ".".join(here): node})


def broken(base: dict[str, Any], path: tuple[str, ...], chosen: dict[str, Any], value: Any) -> dict[str, Any]:
    config = copy.deepcopy(base)
    for place, members in {**chosen, ".".join(path): value}.items():
        *parents, last = place.split(".")
        node = config
        for parent in parents:
            node = node[parent]
        is_group = place in chosen and "name" not in members
        node[last] = {**(node.get(last) or {}), **members} if is_group else copy.deepcopy(members)
    return config


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    return Composition(["experiment=linear_regression", "recorder=none"]).values


@pytest.mark.parametrize("kind", VALUES)
def test_every_key_with_a_wrong_value_is_accepted_or_names_key_and_fix(kind: str, base: dict[str, Any]) -> None:
    for (path, chosen), _ in (pair for pair in pairs(list(places()), list(VALUES), 3) if pair[1] == kind):
        try:
            build_key(path[0], broken(base, path, chosen, VALUES[kind])[path[0]])
        except OrtpipeError as error:
            text = str(error)
            assert path[-1] in text or "PyTorch" in text, (path, text)
            assert "\n  fix: " in text


def attempt(call: Callable[[], object]) -> str:
    """Return the error of a call as the command line prints it, or nothing; raise one that has a traceback there."""
    try:
        call()
    except SystemExit as end:
        return "" if not end.code else f"exit {end.code}"
    except Exception as error:  # noqa: BLE001 - as the command line does
        return str(readable(error))
    return ""


OVERRIDES = [
    *("name=${oc.env:NOPE}", "seed=${oc.env:NOPE}", "train.epochs=${nope}", "name=${name}", "name=${oc.nope:1}"),
    *("train.epochs='${'", "=", "~", "train=[1]", "data=null", "train.epochs=[1", f"train.epochs={'9' * 5000}"),
    *("experiment=[a,b]", "experiment=", "data=typo", "train.optimizer=${train}", "train.epochs=1,2", ".train=1"),
    *("add_loss.label_name=", "recorder.tracking_uri=", "hydra.foo=1", "train@_global_=x", "stray", "+", "a b"),
]


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda override: override[:30])
def test_every_override_that_cannot_be_read_is_one_error_with_its_fix(override: str) -> None:
    text = attempt(lambda: Composition([override]).config)
    assert "\n  fix: " in text
    if "NOPE" in override:
        assert override.partition("=")[0] in text
        assert "${oc.env:NOPE,DEFAULT}" in text


ALIASES = b"".join(b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1) if i else b"x"] * 9)) for i in range(9))
FILES = {  # a file of configs → words of the error
    "latin": ("name: föhn\n".encode("latin-1"), "must be UTF-8"),
    "bytes": (b"\x00\xff\xfe", "must be UTF-8"),
    "itself": (b"# @package _global_\ndefaults:\n  - itself\n", "must not contain itself"),
    "nested": (b"# @package _global_\nname: " + b"[" * 500 + b"]" * 500, "nested at most 100 deep"),
    "deeper": (b"# @package _global_\nname: " + b"[" * 1500 + b"]" * 1500, "nested "),  # libyaml reads 1,000 ahead
    "keyless": (b"# @package _global_\n? null\n: 2\n", "fix: "),
    "truncated": (b"# @package _global_\nname: [a", "must be valid YAML"),
    "text": (b"hello", "is not a key"),
    "folder": (None, "is not a choice"),
    "aliases": (ALIASES, "at most 100,000 values"),
    "endless": (b"# @package _global_\nnotes: &a [*a]\n", "at most 100,000 values"),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_damaged_config_file_is_one_error_with_its_fix(kind: str, tmp_path: Path) -> None:
    content, words = FILES[kind]
    file = tmp_path / "experiment" / f"{kind}.yaml"
    file.parent.mkdir()
    file.mkdir() if content is None else file.write_bytes(content)
    text = attempt(lambda: Composition([f"experiment={kind}"], str(tmp_path)).config)
    assert words in text
    assert "\n  fix: " in text


WRONG = {
    "nothing": "",
    "no file": "away/no.onnx",
    "a folder": "folder",
    "a run without a record": "outputs",
    "quotes": "a'b\"c\\",
    "a line break": "a\nb",
    "a long word": "é" * 3000,
    "a digest": "0123abcd",
    "an id": "0" * 32,
    "an option": "--nope",
}
# arguments of each command that are right, by name; "-" ends an option's name
RIGHT = {
    "adapter": ["{run}", "--output", "new.onnx_adapter"],
    "cache": ["gc", "--keep", "1d"],
    "diff": ["{run}", "{run}"],
    "export": ["{run}", "--output", "new", "--steps", "5"],
    "fit": ["rows.csv"],
    "gradient": [
        "model.onnx",
        "--of",
        "y",
        "--wrt",
        "w",
        "--output",
        "new.onnx",
        "--shape",
        "X=1,3",
        "--function",
        "f",
    ],
    "init": ["new"],
    "inspect": ["model.onnx"],
    "predict": ["{run}", "rows.csv", "--output", "new.csv", "--keep", "a", "--stage", "train", "--delimiter", ","],
    "report": ["{run}"],
    "repro": ["{run}"],
    "restore": ["{run}", "--into", "new.skops", "--stage", "train", "--output", "again.skops"],
    "retrain": ["{run}", "data.source.path=rows.csv"],
    "rollback": ["churn"],
    "run-stage": ["derive", "--input", "{run}", "--output", "new.onnx"],
    "show": ["{run}", "--stage", "train", "--svg", "new.svg"],
    "sync": ["{run}", "recorder.tracking_uri=sqlite:///new.db"],
}
ONLY_PAIRS = ("doctor", "plan", "schedule", "validate")
PLACES = [(name, place) for name, words in RIGHT.items() for place, word in enumerate(words) if word[:1] != "-"]


def test_the_matrix_has_every_command() -> None:
    assert {*RIGHT, *ONLY_PAIRS} == {*COMMANDS}


@pytest.fixture
def folder(linear: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with a run, a model and rows."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(linear, tmp_path / "run")
    (tmp_path / "folder").mkdir()
    (tmp_path / "outputs").mkdir()
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    (tmp_path / "rows.csv").write_text("age,a\n1,2\n")
    return tmp_path


MODEL = """<ir_version: 8, opset_import: ["": 18]> g (float[N,3] X) => (float[N,1] y)
 <float[3,1] w = {1, 2, -1}> { y = MatMul(X, w) }"""


@pytest.mark.usefixtures("folder", "capsys")
@pytest.mark.parametrize("name", RIGHT)
def test_every_argument_of_a_command_may_be_wrong(name: str) -> None:
    words = [word.format(run="run") for word in RIGHT[name]]
    texts = dict[tuple[int, str], str]()
    for place, kind in ((place, kind) for (one, place), kind in pairs(PLACES, list(WRONG), 3) if one == name):
        arguments = [*words[:place], WRONG[kind], *words[place + 1 :]]
        texts[place, kind] = attempt(lambda arguments=arguments: command(name)(arguments))
    for place in (place for command_name, place in PLACES if command_name == name):
        texts[place, "missing"] = attempt(lambda place=place: command(name)(words[:place]))
    assert all("\n  fix: " in text or "\n" not in text for text in texts.values()), texts
    for place in (place for command_name, place in PLACES if command_name == name):
        assert texts[place, "missing"] or words[place - 1].startswith("-") or place


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "other bytes": lambda content: bytes(range(256)) * 8,
    "not UTF-8": lambda content: content[:-20] + "ö".encode("latin-1") + content[-20:],
    "other JSON": lambda content: b'[1, {"a": null}]',
    "a folder": lambda content: None,
}
READERS = {  # commands that read the files of a run
    "show": ["run"],
    "diff": ["run", "run"],
    "predict": ["run", "rows.csv", "--output", "new.csv"],
    "report": ["run"],
    "repro": ["run"],
    "sync": ["run", "recorder.tracking_uri=sqlite:///away/none.db"],
}


@pytest.mark.usefixtures("folder", "capsys")
@pytest.mark.parametrize("damage", DAMAGE)
def test_every_file_of_a_run_may_be_damaged(damage: str, tmp_path: Path) -> None:
    last = max((tmp_path / "run" / "stages").iterdir())
    records = [tmp_path / "run" / name for name in ("run.json", "config.yaml", "environment.json")]
    files = [*records, *sorted(last.iterdir())]
    chosen = pairs(files, list(READERS), 3)
    for file in files:
        content = file.read_bytes()
        file.unlink()
        broken_content = DAMAGE[damage](content)
        file.mkdir() if broken_content is None else file.write_bytes(broken_content)
        for name in (name for one, name in chosen if one == file):
            text = attempt(lambda name=name: command(name)(READERS[name]))
            assert "\n" not in text or "\n  fix: " in text, (file.name, name, text)
            for new in tmp_path.glob("new.*"):
                new.unlink()
        shutil.rmtree(file) if broken_content is None else file.unlink()
        file.write_bytes(content)


def damaged(folder: Path, name: str, content: bytes, damage: str) -> Path:
    file, broken_content = folder / name, DAMAGE[damage](content)
    file.mkdir() if broken_content is None else file.write_bytes(broken_content)
    return file


LOADERS: dict[str, Callable[[Path], object]] = {
    "weights.pt": StateDictFile,
    "weights.safetensors": StateDictFile,
    "tokenizer.json": lambda file: TokensConfig(str(file), "X")._tokenizer(),
    "checkpoint.safetensors": lambda file: read_checkpoint(file.parent),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", LOADERS)
def test_every_file_of_weights_tokens_and_epochs_may_be_damaged(name: str, damage: str, tmp_path: Path) -> None:
    content = safetensors.numpy.save({"w": np.ones(99, np.float32)}, {"checkpoint": '{"epochs": 1, "key": "a"}'})
    file = damaged(tmp_path, name, content, damage)
    assert "\n  fix: " in attempt(lambda: LOADERS[name](file))


def test_a_misspelt_experiment_lists_them_all() -> None:
    text = attempt(lambda: Composition(["experiment=typo"]).config)
    folder = packaged_conf() / "experiment"
    names = [file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("*.yaml")]
    assert any("/" in name for name in names)
    assert all(name in text for name in names)


ROWS = {
    "rows.csv": b"age,a\n1,2\n",
    "rows.parquet": b"PAR1",
    "model.onnx": b"",
}


@pytest.mark.usefixtures("folder", "capsys")
@pytest.mark.parametrize("damage", DAMAGE)
def test_every_file_of_rows_and_every_model_may_be_damaged(damage: str, tmp_path: Path) -> None:
    model = (tmp_path / "model.onnx").read_bytes()
    for name, content in {**ROWS, "model.onnx": model, "rows.npz": b"PK", "rows.npy": b"\x93NUMPY"}.items():
        file, broken_content = tmp_path / f"bad-{name}", DAMAGE[damage](content)
        file.mkdir() if broken_content is None else file.write_bytes(broken_content)
        kind = name.partition(".")[2]
        calls: list[tuple[str, list[str]]] = [("predict", ["run", file.name, "--output", "out.csv"])]
        if kind == "onnx":
            calls = [("show", [file.name]), ("diff", [file.name, "model.onnx"])]
            calls += [("gradient", [file.name, "--of", "y", "--wrt", "w", "--output", "out.onnx"])]
        else:
            table = [f"data={kind}", f"data.source.path={file.name}", "data.source.label=y", "recorder=none"]
            calls += [("validate", ["experiment=linear_regression", *table])]
        for command_name, words in calls:
            text = attempt(lambda command_name=command_name, words=words: command(command_name)(words))
            assert "\n" not in text or "\n  fix: " in text, (file.name, command_name, text)


def test_an_own_config_file_with_the_name_of_a_packaged_one_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    own = tmp_path / "experiment" / "digits.yaml"
    own.write_text("# @package _global_\nseed: 3\n")
    assert "must not have the name of a packaged one" in attempt(lambda: Composition((), str(tmp_path)).values)
    own.write_bytes((packaged_conf() / "experiment" / "digits.yaml").read_bytes())  # a copy is as good
    assert Composition((), str(tmp_path)).values["seed"] == 0
