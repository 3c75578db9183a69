"""Artifacts as folders: model.onnx, tensors.safetensors and artifact.json."""

import json
import os
import types
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError

from ortpipe.artifact import Artifact, in_folder
from ortpipe.bounded import MOST_BYTES, file_below, parse_json, read_below
from ortpipe.errors import ModelError
from ortpipe.facts_json import in_metadata, read_facts
from ortpipe.files import atomic_folder, link_files
from ortpipe.graph.core.apart import same_bytes
from ortpipe.graph.files.serial import NOTHING, located, read_apart, write
from ortpipe.graph.files.tensors import read_tensors, write_tensors

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
            with open(partial / TENSORS, "wb") as tensors:
                write_tensors({name: a for name, a in artifact.tensors.items() if name not in same}, tensors)
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
    for name, array in in_folder("source", artifact.tensors).items():
        initializer = artifact.initializers.get(name)
        if initializer is None or (array.dtype, array.shape) != (initializer.dtype, initializer.shape):
            continue
        if same_bytes(array, initializer):
            names.append(f"source/{name}")
    return names


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
        written = parse_json(read_below(source, record.name, MOST_BYTES))
        if written.get("format", FORMAT) != FORMAT:
            rule = f"An artifact's format must be the one of this version of ortpipe, {FORMAT}."
            fix = "Read it with the version that wrote it, or run the stage again."
            raise ModelError(rule, got=f"{source}: format {written['format']}", fix=fix)
        expected = {written["digest"], digest or written["digest"]}
        with located(record):
            facts = read_facts(written["facts"])
        model, weights = read_apart(file_below(source, "model.onnx"))
        artifact = Artifact(model, facts, read_tensors(file_below(source, TENSORS))[0], weights=weights)
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
