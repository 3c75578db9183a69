"""Export adapters separately: the model takes them as optional inputs, and a file for onnxruntime holds them.

The file (`.onnx_adapter`) is the flatbuffer of onnxruntime's lora/adapter_format/adapter_schema.fbs, identifier TORT::

    Parameter {name: string; dims: [int64]; data_type: int32, as ONNX's; raw_data: [uint8], little-endian}
    Adapter {format_version: int32 = 1; adapter_version: int32; model_version: int32; parameters: [Parameter]}
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.edit import open_initializers, set_initializers
from ortpipe.graph.forms.adapters import Adapter, insert

Arrays = Mapping[str, np.ndarray]


def apart(model: ir.Model, adapters: Mapping[str, Adapter], tensors: Arrays) -> dict[str, np.ndarray]:
    """Remove the training from a model with merged adapters, in place; return the trained arrays by input name.

    Without those inputs the model predicts as before training: by default R or L is 0, and other trained initializers
    have their initial values. R or L includes the scale. The inputs take any other adapter of the same shapes.

    Args:
        model: train's model, whose weights are W + s · L·R.
        adapters: the trained adapters by weight.
        tensors: train's tensors, with W as `initial/…`, and L and R as `parameter/…` and `initial/…`.
    """
    graph, trained_inputs = model.graph, dict[str, np.ndarray]()
    moved = [name for name in graph.initializers if f"initial/{name}" in tensors]
    for name in (name for name in moved if name not in adapters):
        trained_inputs[name] = tensors[f"parameter/{name}"].astype(query.array(graph.initializers[name]).dtype)
    set_initializers(model, {name: tensors[f"initial/{name}"] for name in moved})
    for name, old in adapters.items():
        rank = tensors[f"parameter/{old.left}"].shape[1]
        new = insert(graph, [name], rank, 1.0, np.random.default_rng(0))[name]
        for new_name, old_name in ((new.left, old.left), (new.right, old.right)):
            initial, trained = (tensors[f"{folder}/{old_name}"] for folder in ("initial", "parameter"))
            dtype = query.array(graph.initializers[new_name]).dtype
            trained_inputs[new_name] = (trained if initial.any() else old.scale * trained).astype(dtype)
            set_initializers(model, {new_name: initial})
    open_initializers(model, trained_inputs)
    return trained_inputs


def to_bytes(arrays: Arrays) -> bytes:
    """Return the content of an adapter file with these arrays.

    >>> to_bytes({"w/lora_A": np.ones((2, 1), np.float32)})[4:8]
    b'TORT'
    """
    import flatbuffers

    file = flatbuffers.Builder(sum(array.nbytes for array in arrays.values()) + 1024)
    tables = []
    for name, array in arrays.items():
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        file.StartVector(1, len(data), 8)
        file.head -= len(data)
        file.Bytes[file.Head() : file.Head() + len(data)] = data
        raw = file.EndVector()
        file.StartVector(8, array.ndim, 8)
        for size in reversed(array.shape):
            file.PrependInt64(size)
        dims, text = file.EndVector(), file.CreateString(name)
        file.StartObject(4)
        for slot, part in enumerate((text, dims)):
            file.PrependUOffsetTRelativeSlot(slot, part, 0)
        file.PrependInt32Slot(2, ir.DataType.from_numpy(array.dtype).value, 0)
        file.PrependUOffsetTRelativeSlot(3, raw, 0)
        tables.append(file.EndObject())
    file.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        file.PrependUOffsetTRelative(table)
    parameters = file.EndVector()
    file.StartObject(4)
    for slot in range(3):  # the versions of the format, of the adapter, and of the model
        file.PrependInt32Slot(slot, 1, 0)
    file.PrependUOffsetTRelativeSlot(3, parameters, 0)
    file.Finish(file.EndObject(), file_identifier=b"TORT")
    return bytes(file.Output())
