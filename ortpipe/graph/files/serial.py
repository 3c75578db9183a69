"""Read and write models."""

import contextlib
import errno
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.external_data_helper
from google.protobuf.message import DecodeError

from ortpipe.bounded import check_size
from ortpipe.doors import later
from ortpipe.errors import ModelError
from ortpipe.files import temporary
from ortpipe.graph.core.apart import put_together, serialized, stub, take_apart, take_out, write_beside
from ortpipe.graph.core.protos import Weights, graphs, is_large, is_large_weight, sealed

if TYPE_CHECKING:  # for reading
    from ortpipe.graph.core.sound import check_sound
else:
    later(__name__)

LARGEST_FILE = 2**31  # bytes of an .onnx file, without its external data: protobuf's limit
OLDEST_IR_VERSION = 8  # older models are written at this one; before 4, initializers had to be inputs, too
NOTHING = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)  # no file under that name


def read(path: Path) -> onnx.ModelProto:
    """Read an .onnx file, external data included; raises as `read_apart`."""
    return put_together(*read_apart(path))


def read_apart(path: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Read an .onnx file, external data included; return the model and its large weights.

    Raises:
        ModelError: the file is missing, is no ONNX model, or refers to data outside its folder.
        OSError: the file exists and cannot be read now.
    """
    model = read_without_data(path)
    with _readable(path):
        external = _read_data(model, path.parent)
    for tensor in all_tensors(model):  # so that models with and without external data are the same bytes
        tensor.ClearField("data_location")
    with located(path):
        check_sound(model, external)
    return model, external | take_out(model)


def read_without_data(path: Path) -> onnx.ModelProto:
    """Read an .onnx file as it is, but not its external data; raises as `read_apart`."""
    if not path.is_file():
        raise ModelError(
            "The .onnx file must exist.",
            key="path",
            got=path,
            fix="Check the path; relative ones start at the current folder.",
        )
    with _readable(path):
        check_size(path.stat().st_size, LARGEST_FILE)
        model = onnx.load(str(path), format="protobuf", load_external_data=False)  # for any suffix
    if not model.graph.node or not model.opset_import:
        raise ModelError(
            "The file must hold an ONNX model with at least one node.",
            got=f"{path}: nothing",
            fix="Download or export the model again.",
        )
    return model


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise ModelError for a damaged file or external data, and OSError if one of the files cannot be read now."""
    try:
        yield
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in NOTHING:
            raise
        with contextlib.suppress(ValueError, RuntimeError):  # a location that is no path, or cyclic links
            for file in files(path):  # onnx reports a failing disk like a wrong file, so read it
                file.open("rb").close()
        raise ModelError(
            "The .onnx file and its external data must be readable.",
            got=f"{path}: {error}",
            fix="Name an ONNX model, and keep its external data files beside it; if it is damaged, download or "
            "export it again.",
        ) from error


def _read_data(model: onnx.ModelProto, folder: Path) -> dict[str, np.ndarray]:
    """Read a model's external data into its tensors, and return those of its large weights, each in memory once."""
    weights, main = dict[str, np.ndarray](), {id(tensor): tensor for tensor in model.graph.initializer}
    for tensor in [tensor for tensor in all_tensors(model) if tensor.data_location == tensor.EXTERNAL]:
        raw = external_bytes(tensor, folder)
        if id(tensor) in main and is_large_weight(tensor.data_type, math.prod(tensor.dims)):
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).newbyteorder("<")
            weights[tensor.name] = sealed(np.frombuffer(raw, dtype).reshape(tensor.dims))
            tensor.CopyFrom(stub(tensor))
        else:
            tensor.raw_data = raw
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return weights


def external_bytes(tensor: onnx.TensorProto, folder: Path) -> bytes:
    """Return a tensor's external data, read by onnx with its checks, without the copies that protobuf would hold."""
    plain = SimpleNamespace(name=tensor.name, external_data=list(tensor.external_data), raw_data=b"")
    onnx.external_data_helper.load_external_data_for_tensor(plain, str(folder))
    return plain.raw_data


@contextlib.contextmanager
def located(path: Path) -> Iterator[None]:
    """Add the file's path to a ModelError."""
    try:
        yield
    except ModelError as error:
        error.add_note(f"  in: {path}")
        raise


def files(path: Path) -> tuple[Path, ...]:
    """Return an .onnx file and its existing files of external data.

    Only the graph is read. Data outside the file's folder are left out, for `read` rejects them.
    """
    if not path.is_file():
        return ()
    try:
        check_size(path.stat().st_size, LARGEST_FILE)
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except (DecodeError, ValueError):
        return (path,)
    return (path, *data_files(model, path.parent.resolve()))


def data_files(model: onnx.ModelProto, folder: Path) -> dict[Path, list[onnx.TensorProto]]:
    """Return the existing files of external data in a model's folder, with the tensors of each."""
    stored = dict[Path, list[onnx.TensorProto]]()
    for tensor in (tensor for tensor in all_tensors(model) if tensor.data_location == tensor.EXTERNAL):
        for entry in (entry for entry in tensor.external_data if entry.key == "location"):
            stored.setdefault((folder / entry.value).resolve(), []).append(tensor)
    return {file: stored[file] for file in sorted(stored) if file.is_relative_to(folder) and file.is_file()}


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every initializer and attribute tensor of a model, also in inner graphs and local functions."""
    for place in (model.graph, *model.functions):
        for graph in graphs(place):
            yield from getattr(graph, "initializer", ())
            for attribute in (a for node in graph.node for a in node.attribute):
                yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)


def write(
    model: onnx.ModelProto,
    folder: Path,
    name: str = "model.onnx",
    weights: Weights | None = None,
    *,
    beside: bool = False,
) -> Path:
    """Write a model, whose large weights may be in `weights`, into a folder; return its path.

    Above 2 GB, or with `beside`, the weights go to one file beside it.
    """
    path = folder / name
    if weights is None and (beside or is_large(model)):
        model, weights = take_apart(model)
    if is_large(model) and not weights:  # in inner graphs, or of other types
        copy = onnx.ModelProto()
        copy.CopyFrom(model)  # saving with external data clears the model's tensors
        onnx.save(copy, str(path), save_as_external_data=True, location=f"{name}.data")
    elif weights and (beside or is_large(model)):
        write_beside(model, weights, path)
    else:
        path.write_bytes(serialized(model, weights))
    return path


def write_atomically(
    model: onnx.ModelProto, folder: Path, name: str = "model.onnx", weights: Weights | None = None
) -> None:
    """Write a model into a folder atomically: each file is complete when it appears, the .onnx file last."""
    partial = temporary(folder / Path(name).stem)
    partial.mkdir(parents=True)
    try:
        write(model, partial, name, weights)
        for file in sorted(partial.iterdir(), reverse=True):
            os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def on_disk(model: onnx.ModelProto, weights: Weights | None = None) -> Iterator[str]:
    """Yield the path of a temporary copy with its weights beside it, which a runtime can memory-map."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(write(model, Path(folder), weights=weights, beside=True))
