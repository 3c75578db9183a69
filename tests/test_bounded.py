"""Bombs, pipes and links: each reader of what others wrote stops at a bound, in one clear line."""

from __future__ import annotations

import base64
import functools
import gzip
import io
import json
import os
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import Ridge

from ortpipe import bounded
from ortpipe.app.run.checkpoint import read_checkpoint
from ortpipe.app.run.folder import read_example
from ortpipe.app.run.record import read_config, read_environment
from ortpipe.artifact_folder import load_artifact
from ortpipe.data import stream
from ortpipe.data.sources import SOURCES, csv
from ortpipe.errors import OrtpipeError
from ortpipe.graph.files.state_dict import StateDictFile
from ortpipe.graph.importing.lift import float_constants
from ortpipe.graph.importing.sizes import fold_sizes
from ortpipe.stages.convert.sources import stored_estimator
from ortpipe.stages.convert.sources.onnx_file import meaning
from ortpipe.stages.convert.sources.sklearn_estimator import read_estimator
from ortpipe.stages.convert.sources.torch_export import _read_weights

DEEP = b"[" * 100_000
HUGE = 2**31


def test_a_walk_yields_regular_files_below_the_folder_only(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    (outside / "key").write_text("private")
    for name in ("a/b/file", "file"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "a" / "link").symlink_to(outside / "key")
    (folder / "linked").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    found = [path.relative_to(folder).as_posix() for path in bounded.files_below(folder)]
    assert found == ["file", "a/b/file"]
    assert not bounded.all_regular(folder, "a")
    assert bounded.all_regular(folder, "a/b")
    for name in ("../outside/key", "a/../../outside/key", str(outside / "key"), "linked/key", "a/link", "pipe", "a\0"):
        assert list(bounded.files_below(folder, name)) == [], name
    for name in ("linked/key", "a/link", "pipe", "../outside/key"):
        with pytest.raises(ValueError, match="is a link, or no regular file"):
            bounded.read_below(folder, name)
    with pytest.raises(FileNotFoundError):
        bounded.read_below(folder, "none")
    assert bounded.read_below(folder, "a/b/file") == b"a/b/file"
    assert bounded.read(folder / "a" / "b" / "file", 3, end=True) == b"ile"
    with pytest.raises(ValueError, match="more than 3 bytes"):
        bounded.read(folder / "a" / "b" / "file", 3)
    with pytest.raises(ValueError, match="no regular file"):
        bounded.read(folder / "pipe")


def test_text_and_compressed_data_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zlib.compress(bytes(2000))
    assert bounded.inflate(packed, 2000) == bytes(2000)
    for data, most in ((packed, 1999), (packed[:-5], 2000)):
        with pytest.raises(ValueError, match=r"more than 1,999 bytes|end too early"):
            bounded.inflate(data, most)
    for deep in (b'{"a":' * 101 + b"1" + b"}" * 101, DEEP):
        with pytest.raises(ValueError, match="nested more than 100 deep"):
            bounded.parse_json(deep)
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        bounded.parse_yaml("[" * 101 + "]" * 101)
    monkeypatch.setattr(bounded, "VALUES", 1000)
    monkeypatch.setattr(bounded, "EVENTS", 1000)
    for parse in (bounded.parse_json, bounded.parse_yaml):
        with pytest.raises(ValueError, match="more than 1,000 values"):
            parse("[" + "1," * 1001 + "1]")
    assert bounded.parse_json(b"[" * 100 + b"]" * 100) == bounded.parse_yaml("[" * 100 + "]" * 100)


def claiming(name: str, content: bytes, size: int = HUGE) -> bytes:
    """Return a zip file whose compressed entry says that it has more bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    data = bytearray(file.getvalue())
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, size)
    return bytes(data)


def torch_file(pickled: bytes, **storages: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        for name, content in storages.items():
            archive.writestr(f"a/data/{name}", content)
    return file.getvalue()


def safetensors(*entries: tuple[int, int], text: bytes = b"") -> bytes:
    header = {f"t{i}": {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}
              for i, (begin, end) in enumerate(entries)}  # fmt: skip
    text = text or json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def fitted(**attributes: Any) -> Any:
    estimator = Ridge().fit(np.eye(3), np.arange(3.0))
    vars(estimator).update(attributes)
    return estimator


def doubled(times: int) -> list[Any]:
    bomb: list[Any] = ["x"]
    for _ in range(times):
        bomb = [bomb, bomb]
    return bomb


def record_of(program: bytes) -> dict[str, str]:
    return {stored_estimator.FITTED: base64.b85encode(zlib.compress(program)).decode()}


KEYS = {  # pickles of a dict with a key whose hash takes a deep recursion or much time
    "deep": b"}N" + b"\x85" * 300_000 + b"Ns.",
    "doubled": b"}N" + b"2\x86" * 40 + b"Ns.",
    "large": b"}("
    + b"".join(b"\x8a\x0c" + (k * (2**61 - 1)).to_bytes(12, "little") + b"N" for k in range(9999))
    + b"u.",
}
UNPICKLERS: dict[str, Callable[[bytes, Path], object]] = {
    "a state_dict": lambda program, p: StateDictFile(write(p / "a.pt", torch_file(program))),
    "a record": lambda program, _: stored_estimator.estimator_of(record_of(program), trust=False),
    "weights": lambda program, p: _read_weights(write(p / "a.pt", torch_file(program))),
    "old weights": lambda program, p: _read_weights(write(p / "a.pt", program)),
}


def repeated(folder: Path) -> Path:
    """Return a Parquet file of a few kilobytes with 2 GB of text."""
    texts = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["a" * 100_000])
    pq.write_table(pa.table({"x": texts, "y": np.zeros(20_000)}), folder / "a.parquet", store_schema=False)
    return folder / "a.parquet"


ALIASES = b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (i + 1, i + 1, i, i) for i in range(40))
BOMBS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a compressed program": (lambda p: StateDictFile(write(p / "a.pt", claiming("a/data.pkl", b"N."))), "more than"),
    "a deep header": (lambda p: StateDictFile(write(p / "a.safetensors", safetensors(text=DEEP))), "deserializing"),
    **{
        f"a {kind} key of {reader}": (functools.partial(read, program), "more than 4,194,304 values")
        for kind, program in KEYS.items()
        for reader, read in UNPICKLERS.items()
    },
    "overlapping tensors": (
        lambda p: StateDictFile(write(p / "a.safetensors", safetensors(*[(0, 64)] * 99, (6272, 0)))),
        "Error while deserializing header",
    ),
    "a header of any size": (
        lambda p: StateDictFile(write(p / "a.safetensors", (2**63).to_bytes(8, "little") + b"{}")),
        "must hold a state_dict",
    ),
    "a text in all rows": (lambda p: SOURCES["parquet"](path=str(repeated(p)), label="y")(), "in one row group"),
    "a compressed array": (
        lambda p: SOURCES["npz"](path=str(write(p / "a.npz", claiming("x.npy", b"x"))), label="y")(),
        "more than 1,073,741,824 bytes",
    ),
    "a compressed estimator": (
        lambda p: read_estimator(write(p / "a.skops", claiming("schema.json", b"{}")), trust=False),
        "more than 1,073,741,824 bytes",
    ),
    "a deep artifact": (lambda p: load_artifact(write(p / "artifact.json", DEEP).parent), "100 deep"),
    "a deep checkpoint": (
        lambda p: read_checkpoint(write(p / "checkpoint.safetensors", safetensors(text=DEEP)).parent),
        "100 deep",
    ),
    "a deep environment": (lambda p: read_environment(write(p / "environment.json", DEEP).parent), "100 deep"),
    "a deep config": (lambda p: read_config(write(p / "config.yaml", b"[" * 101 + b"]" * 101).parent), "100 deep"),
    "a config of aliases": (
        lambda p: read_config(write(p / "config.yaml", ALIASES).parent),
        "more than 100,000 values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_one_clear_line(bomb: str, tmp_path: Path) -> None:
    read, words = BOMBS[bomb]
    with pytest.raises(OrtpipeError, match=words):
        read(tmp_path)


def test_an_estimator_of_lists_that_hold_a_list_twice_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_estimator, "OBJECTS", 1000)
    with pytest.raises(OrtpipeError, match="more than 1,000 objects"):
        stored_estimator.estimator_of(record_of(pickle.dumps(fitted(alpha=doubled(40)))), trust=False)


def test_a_large_estimator_is_neither_stored_nor_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    record = stored_estimator.record_of(fitted())
    monkeypatch.setattr(stored_estimator, "LARGEST_PICKLE", 100)
    assert stored_estimator.record_of(fitted()) == {}
    with pytest.raises(OrtpipeError, match="more than 100 bytes"):
        stored_estimator.estimator_of(record, trust=False)


def test_compressed_text_streams_by_its_true_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (csv, stream):
        monkeypatch.setattr(module, "LIMIT", 2**20)
    rows = gzip.compress(b"x,y\n" + b"1,2\n" * 2**18)
    assert csv.Csv(path=str(write(tmp_path / "a.csv.gz", rows)), label="y")().notes[-1].startswith("the columns of")


def test_example_rows_and_descriptions_of_a_strangers_folder_are_bounded(tmp_path: Path) -> None:
    write(tmp_path / "example.npz", claiming("x.npy", b"x"))
    assert read_example(tmp_path) == {}
    for content in (
        DEEP,
        b"\xff",
        b'{"id2label": {"0": "a"}, "architectures": "BertForSequenceClassification"}',
        b"[1]",
    ):
        write(tmp_path / "config.json", content)
        assert meaning(tmp_path) == ({}, "config.json does not name the classes"), content


FILLED = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 2] x) => (float[N, 2] y) <int64[2] sizes = {SIZES}> {
  c = ConstantOfShape<value = KIND[1] {1}>(sizes)  y = Use(c, x) }"""


@pytest.mark.parametrize("sizes", ["60000, 60000", "3, -1"])
def test_a_constant_that_a_model_describes_is_bounded(sizes: str) -> None:
    model = ir.from_onnx_text(FILLED.replace("SIZES", sizes).replace("KIND", "float"))
    with pytest.raises(OrtpipeError, match="ConstantOfShape must have at most 1,073,741,824 bytes"):
        float_constants(model.graph)


def test_integers_that_a_model_describes_are_not_folded_if_they_are_many() -> None:
    model = ir.from_onnx_text(FILLED.replace("SIZES", "60000, 60000").replace("KIND", "int64"))
    fold_sizes(model, deep=True)
    assert [node.op_type for node in model.graph] == ["ConstantOfShape", "Use"]


READERS = re.compile(
    r"\.(read_bytes|read_text|iterdir|glob|rglob|is_symlink)\(|\bos\.(walk|listdir|scandir|open)\(|(?<![\w.])open\("
    r"|\.open\(|\bjson\.loads?\(|\byaml\.(safe_)?load|\bnp\.load\(|\bzlib\.decompress|\bpickle\.loads?\("
)
PLACES = (
    "app/**/*.py",
    "pipeline/*.py",
    "artifact*.py",
    "facts.py",
    "graph/files/state_dict.py",
    "graph/files/tensors.py",
    "data/tokens.py",
)
PLACES += ("stages/convert/sources/onnx_file.py", "stages/convert/sources/stored_estimator.py")
OWN_FILES = {  # what a file may still read: what this process or this installation wrote, and names in a folder
    "app/claim.py": "names in the run's own folder",
    "app/command_list.py": "names of the package's own modules",
    "app/commands/cache.py": "the number of damaged entries",
    "app/commands/export.py": "the package's own code",
    "app/commands/init.py": "the packaged project",
    "app/compose.py": "names of configs",
    "app/fit/inputs.py": "names in a folder",
    "app/hydra_errors.py": "the packaged configs",
    "app/key_origin.py": "the user's own configs",
    "app/lookup.py": "names in the store",
    "app/run/process.py": "files of /proc",
    "app/run/stage_log.py": "writes a log",
    "app/schema.py": "a value of the command line",
    "app/sweep/callback.py": "names in the folder that Hydra made",
    "app/sweep/search/trials.py": "names in the folder that Hydra made",
    "app/sweep/live.py": "logs of a job that runs",
    "app/terminal.py": "this process's streams",
    "app/tracking/model.py": "a tag",
    "artifact_folder.py": "files that it wrote",
    "graph/files/tensors.py": "a checked .safetensors file",
    "facts.py": "what it has just written",
    "pipeline/digest.py": "hashes a file",
    "pipeline/locks.py": "locks",
    "pipeline/store.py": "names in the store",
    "stages/convert/sources/onnx_file.py": "names in a folder",
    "stages/convert/sources/stored_estimator.py": "a pickle that the user trusts",
}


def test_strangers_files_have_one_way_in() -> None:
    package = Path(bounded.__file__).parent
    files = sorted({file for place in PLACES for file in package.glob(place)})
    found = {file.relative_to(package).as_posix() for file in files if READERS.search(file.read_text())}
    assert found == OWN_FILES.keys(), "read by ortpipe.bounded, or say here whose file it is"
