"""Models and artifacts to and from disk, and models down to what the runtime loads."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import version_converter
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import ModelError
from ortpipe.files import temporary, whole_folder
from ortpipe.graph.sound import FIX, check_sound, check_valid
from ortpipe.graph.windows import with_plain_windows

OPSET = 21  # the newest that onnxruntime-training 1.19.2 runs
IR_VERSION = 10  # the newest that it loads
OLDEST_IR_VERSION = 8  # before 4, an initializer had to be an input too
FORMAT = 1  # of an artifact's folder
TENSORS = "tensors.safetensors"
NOTHING = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)  # no file under that name
LARGE = 2**31 - 2**20  # protobuf stops at 2 GiB; above this, weights go beside the model


def read(path: Path) -> onnx.ModelProto:
    """Read an .onnx file, external data included.

    Raises:
        ModelError: the file is missing, is no ONNX model, or points at data outside its folder.
        OSError: it is there and cannot be read now.
    """
    if not path.is_file():
        raise ModelError(
            "The .onnx file must exist.",
            got=path,
            fix="Check the path; relative ones start at the current folder.",
        )
    try:
        model = onnx.load(str(path), format="protobuf")  # whatever its suffix says
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in NOTHING:
            raise
        with contextlib.suppress(ValueError, RuntimeError):  # a location that is no path, or a loop of links
            for file in files(path):  # onnx's words for a disk that fails are those for a wrong file: ask the disk
                file.open("rb").close()
        raise ModelError(
            "The .onnx file and its external data must be readable.",
            got=f"{path}: {error}",
            fix="Export the model again, and keep its external data files beside it.",
        ) from error
    if not model.graph.node or not model.opset_import:
        raise ModelError(
            "The file must hold an ONNX model with at least one node.",
            got=f"{path}: nothing",
            fix="Export the model again.",
        )
    for tensor in _tensors(model):  # both forms of storage give the same bytes
        tensor.ClearField("data_location")
    with _located(path):
        check_sound(model)
    return model


@contextlib.contextmanager
def _located(path: Path) -> Iterator[None]:
    """Say where it is, of a model that is refused."""
    try:
        yield
    except ModelError as error:
        error.add_note(f"  in: {path}")
        raise


def files(path: Path) -> tuple[Path, ...]:
    """Return an .onnx file and the files of external data beside it, of those that are there.

    Only the graph is read. Data outside the file's folder have no part in it: `read` refuses them.
    """
    if not path.is_file():
        return ()
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except (DecodeError, ValueError):
        return (path,)
    stored = [t for t in _tensors(model) if t.data_location == t.EXTERNAL]
    places = {entry.value for tensor in stored for entry in tensor.external_data if entry.key == "location"}
    folder = path.parent.resolve()
    found = [(folder / place).resolve() for place in sorted(places)]
    return (path, *(file for file in found if file.is_relative_to(folder) and file.is_file()))


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: initializers and constants, those of inner graphs and local functions too."""
    places: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    for place in places:  # which grows
        if isinstance(place, onnx.GraphProto):
            yield from place.initializer
        for attribute in (a for node in place.node for a in node.attribute):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            places += (attribute.g, *attribute.graphs)


def write(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """Write a model into a folder; above 2 GB its weights go to one file beside it."""
    path = folder / name
    if model.ByteSize() <= LARGE:
        path.write_bytes(model.SerializeToString(deterministic=True))
    else:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)  # saving with external data empties the tensors of what it is given
        onnx.save(copy, str(path), save_as_external_data=True, location=f"{name}.data")
    return path


def write_whole(model: onnx.ModelProto, folder: Path) -> None:
    """Write a model into a folder where people look: its files appear whole, `model.onnx` last."""
    partial = temporary(folder / "model")
    partial.mkdir()
    try:
        write(model, partial)
        for file in sorted(partial.iterdir(), reverse=True):
            os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def on_disk(model: onnx.ModelProto) -> Iterator[str]:
    """Give the path of a temporary copy, for what cannot take 2 GB of bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(write(model, Path(folder)))


def lowered(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model at an opset and IR version that the training runtime loads.

    Models at opset 13 to 21 keep theirs; newer ones are converted down, older ones up. Local functions are inlined,
    and windows that runtimes slide otherwise than ONNX says get explicit pads.

    Raises:
        ModelError: the model is not valid, or an operator has no form in that opset.
    """
    check_valid(model)
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except RuntimeError as error:
            got = str(error).strip().splitlines()[-1]
            raise ModelError("Local functions are called as they are defined.", got=got, fix=FIX) from error
    else:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        model = copy
    opsets: dict[str, int] = {}
    for entry in model.opset_import:  # some exporters list the default domain twice, or by its other name
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        opsets[domain] = max(entry.version, opsets.get(domain, 0))
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(domain, v) for domain, v in sorted(opsets.items()))
    version = opsets.get("", OPSET)
    if not 13 <= version <= OPSET:
        target = OPSET if version > OPSET else 13
        try:
            model = version_converter.convert_version(model, target)
        except (RuntimeError, onnx.shape_inference.InferenceError) as error:
            raise ModelError(
                f"The training runtime runs opset 13 to {OPSET}; a model at another opset must have an equal there.",
                got=f"opset {version}: {str(error).strip().splitlines()[-1]}",
                fix=f"Export the model with opset {OPSET} or lower.",
            ) from error
    model.ir_version = min(max(model.ir_version, OLDEST_IR_VERSION), IR_VERSION)
    return with_plain_windows(model)


def save_artifact(
    artifact: Artifact, folder: str | os.PathLike[str], *, once: bool = False, like: Path | None = None
) -> Path:
    """Write an artifact as one folder, which appears whole or not at all.

    The folder holds `model.onnx` (+ `model.onnx.data` above 2 GB), `tensors.safetensors` and `artifact.json`.

    Args:
        artifact: what to write.
        folder: where; a folder that is there is replaced.
        once: leave a folder that is there as it is; the files of a new one are read-only.
        like: a folder that holds an artifact of the same content: its files are linked instead of written again.
    """
    target = Path(folder)
    with whole_folder(target, once=once) as partial:
        if like is None or not _linked(like, partial):
            write(artifact.model, partial)
            (partial / TENSORS).write_bytes(save(dict(artifact.tensors)))
        facts = {"format": FORMAT, "digest": artifact.digest(), "facts": artifact.facts.as_json()}
        (partial / "artifact.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        if once and os.name == "posix":  # Windows deletes no file that is read-only, nor a link to it
            for file in partial.iterdir():
                file.chmod(file.stat().st_mode & 0o444)  # others may link them, who would all see an edit in place
    return target


def _linked(source: Path, folder: Path) -> bool:
    """Link an artifact's model and tensors into a folder, or return that these two are not on one file system.

    External data are copied: onnx refuses to read them from a file that has two names.
    """
    try:
        for file in source.iterdir():
            if file.suffix == ".data":
                shutil.copyfile(file, folder / file.name)
            elif file.name != "artifact.json":
                os.link(file, folder / file.name)
    except OSError:
        linked = False
    else:
        linked = {"model.onnx", TENSORS} <= {file.name for file in folder.iterdir()}  # the source may be going
    if not linked:
        for file in folder.iterdir():
            file.unlink()
    return linked


def load_artifact(folder: str | os.PathLike[str], digest: str | None = None) -> Artifact:
    """Read what `save_artifact` wrote.

    Args:
        folder: where it is.
        digest: what the content must have beside the recorded one, which is the same.

    Raises:
        ModelError: a file is missing or damaged, or the content's digest is another one.
        OSError: a file is there and cannot be read now.
    """
    source = Path(folder)
    record = source / "artifact.json"
    if not record.is_file():
        raise ModelError(
            "An artifact is a folder with artifact.json.",
            got=source,
            fix="Name a stage's folder that a run wrote.",
        )
    try:
        written = json.loads(record.read_text(encoding="utf-8"))
        if written.get("format", FORMAT) > FORMAT:
            raise ModelError(
                f"An artifact's format is one that this version of ortpipe knows: {FORMAT} or lower.",
                got=f"{source}: format {written['format']}",
                fix="Read it with the version that wrote it, or make it again.",
            )
        known = {written["digest"], digest or written["digest"]}
        with _located(record):
            facts = Facts.from_json(written["facts"])
        artifact = Artifact(read(source / "model.onnx"), facts, load((source / TENSORS).read_bytes()))
        found = artifact.digest()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in NOTHING:
            raise
        raise ModelError(
            "An artifact's files must be there and readable.",
            got=f"{source}: {error}",
            fix="The folder is damaged: run the stage again.",
        ) from error
    if {found} != known:
        raise ModelError(
            "An artifact's content must have the digest it was written with.",
            got=f"{source}: {found} instead of {' and '.join(sorted(known))}",
            fix="The folder is damaged: run the stage again.",
        )
    return artifact
