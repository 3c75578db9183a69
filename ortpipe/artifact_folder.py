"""Artifacts as folders: model.onnx, tensors.safetensors and artifact.json."""

import json
import os
import types
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from ortpipe.artifact import Arrays, Artifact, under
from ortpipe.bounded import MOST, file_below, parse_json, read_below
from ortpipe.errors import ModelError
from ortpipe.facts import Facts, in_metadata
from ortpipe.files import atomic_folder, link_files
from ortpipe.graph.core.apart import bytes_of, same_bytes
from ortpipe.graph.files.serial import NOTHING, located, read_apart, write

FORMAT = 3  # the format of an artifact's folder
TENSORS = "tensors.safetensors"


def save_artifact(
    artifact: Artifact,
    folder: str | os.PathLike[str],
    *,
    once: bool = False,
    like: Path | None = None,
    beside: Mapping[str, str] = types.MappingProxyType({}),
) -> Path:
    """Write an artifact as one folder, atomically, replacing an existing one.

    The folder holds `model.onnx` (+ `model.onnx.data` above 2 GB), `tensors.safetensors` and `artifact.json`, which
    names the `source/…` tensors that still equal initializers of the model: these are stored only in the model.

    Args:
        artifact: the artifact.
        folder: the folder to write.
        once: keep an existing folder; the files of a new one are read-only.
        like: a folder with an artifact of the same content, whose files are linked instead of written again.
        beside: other files of the folder by name, as text.
    """
    target, same = Path(folder), _in_model(artifact)
    with atomic_folder(target, once=once) as partial:
        if like is None or not link_files(like, partial, {"model.onnx", TENSORS}, without="artifact.json"):
            model, weights = artifact.apart()
            write(model, partial, weights=weights)
            _write_tensors({name: a for name, a in artifact.tensors.items() if name not in same}, partial / TENSORS)
        facts = {"format": FORMAT, "digest": artifact.digest(), "same": same, "facts": artifact.facts.fields()}
        for name, text in {"artifact.json": json.dumps(facts, indent=1, default=vars) + "\n", **beside}.items():
            (partial / name).write_bytes(text.encode())
        if once and os.name == "posix":  # Windows does not delete read-only files, nor links to them
            for file in partial.iterdir():
                file.chmod(file.stat().st_mode & 0o444)  # links to the file would see an edit in place, too
    return target


def _in_model(artifact: Artifact) -> list[str]:
    """Return the names of `source/…` tensors that equal the model's initializers bit by bit."""
    names = []
    for name, array in under("source", artifact.tensors).items():
        initializer = artifact.initializers.get(name)
        if initializer is None or (array.dtype, array.shape) != (initializer.dtype, initializer.shape):
            continue
        if same_bytes(array, initializer):
            names.append(f"source/{name}")
    return names


CODES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}  # dtype → safetensors' code
CODES |= {f"{sign}int{bits}": f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
DTYPES = {code: name for name, code in CODES.items()}


def _write_tensors(arrays: Arrays, path: Path) -> None:
    """Write a .safetensors file, one array after the other.

    The library's `save` would hold two copies of all arrays; its `save_file` makes the file readable by its owner only,
    and its errors have no errno.
    """
    header, begin = dict[str, object](), 0
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # so that each is aligned
    for name in names:
        dtype, end = arrays[name].dtype.name, begin + arrays[name].nbytes
        if dtype not in CODES:
            rule = "An artifact's tensors must hold numbers or booleans."
            raise ModelError(rule, got=f"{name!r} of {dtype}", fix="Leave it out, or write it as numbers.")
        header[name] = {"dtype": CODES[dtype], "shape": arrays[name].shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(bytes_of(arrays[name]))


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a .safetensors file, each array into immutable bytes; the library would hold two copies."""
    _check_header(path)
    arrays = dict[str, np.ndarray]()
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = parse_json(file.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                dtype = np.dtype(DTYPES[entry["dtype"]])
                file.seek(8 + size + begin)
                raw = np.empty(0, np.uint8) if begin == end else np.frombuffer(file.read(end - begin), np.uint8)
                arrays[name] = raw.view(dtype.newbyteorder("<")).reshape(entry["shape"])
    return arrays


def _check_header(path: Path) -> None:
    try:
        with safe_open(path, "np"):
            pass
    except (OSError, SafetensorError):  # without an errno for any cause
        path.open("rb").close()  # raises with an errno if the file cannot be opened now
        with safe_open(path, "np"):  # raises if the file is damaged
            pass


def load_artifact(folder: str | os.PathLike[str], digest: str | None = None) -> Artifact:
    """Read an artifact that `save_artifact` wrote, and verify the recorded digest, and `digest` if it is given.

    Raises:
        ModelError: a file is missing or damaged, or the content has another digest.
        OSError: a file exists and cannot be read now.
    """
    source = Path(folder)
    record = source / "artifact.json"
    if not os.path.lexists(record):
        rule, fix = "An artifact must be a folder with artifact.json.", "Give a stage's folder of a run."
        raise ModelError(rule, got=source, fix=fix)
    try:
        written = parse_json(read_below(source, record.name, MOST))
        if written.get("format", FORMAT) != FORMAT:
            rule = f"An artifact's format must be the one of this version of ortpipe, {FORMAT}."
            fix = "Read it with the version that wrote it, or run the stage again."
            raise ModelError(rule, got=f"{source}: format {written['format']}", fix=fix)
        expected = {written["digest"], digest or written["digest"]}
        with located(record):
            facts = Facts.from_json(written["facts"])
        model, weights = read_apart(file_below(source, "model.onnx"))
        artifact = Artifact(model, facts, _read_tensors(file_below(source, TENSORS)), weights=weights)
        same = {name: artifact.initializers[name.removeprefix("source/")] for name in written["same"]}
        artifact = artifact.with_tensors({**artifact.tensors, **same}) if same else artifact
        actual = artifact.digest() if in_metadata(model, facts) else "other facts in model.onnx"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in NOTHING:
            raise
        raise ModelError(
            "An artifact's files must be there and readable.",
            got=f"{source}: {error}",
            fix="The folder is damaged: run the stage again.",
        ) from error
    if {actual} != expected:
        rule = "An artifact's content must have the digest it was written with."
        fix = "The folder is damaged: run the stage again."
        raise ModelError(rule, got=f"{source}: {actual} instead of {' and '.join(sorted(expected))}", fix=fix)
    return artifact
