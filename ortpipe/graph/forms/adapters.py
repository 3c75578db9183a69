"""Low-rank adapters (LoRA, Hu et al., 2021): W + s · L·R replaces a weight W, and only L and R are trained.

L is [p, r] and R [r, q] beside a weight [p, q] of rank r « p, q. A convolution's weight [out, in/g, k…] is, in each of
its g groups, a matrix [out/g, in/g · k…]: there L is a kernel [out, r, 1…], and R one of [g · r, in/g, k…].

`apart` exports them: the model takes them as optional inputs, and a file for onnxruntime holds them. The file
(`.onnx_adapter`) is the flatbuffer of onnxruntime's lora/adapter_format/adapter_schema.fbs, identifier TORT::

    Parameter {name: string; dims: [int64]; data_type: int32, as ONNX's; raw_data: [uint8], little-endian}
    Adapter {format_version: int32 = 1; adapter_version: int32; model_version: int32; parameters: [Parameter]}
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph.choice.readers import Use, UseFinder
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.check import clean
from ortpipe.graph.core.edit import keep_outputs, open_initializers, set_initializers
from ortpipe.graph.core.selection import some

ROUNDS = "QuantizeLinear"
Arrays = Mapping[str, np.ndarray]


class Adapter(NamedTuple):
    """A pair of matrices beside a weight; the fields are those of its entry in `Facts.adapters`."""

    left: str  # the initializer L
    right: str  # R
    scale: float  # s


def why_not(weight: ir.Value, finder: UseFinder, rank: int) -> str | None:
    """Return the reason why a weight gets no adapter, or None.

    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[N,3] X) => (float[N,2] y)
    ...   <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}> { h = MatMul(X, w) y = Add(h, b) }'''
    >>> graph = ir.from_onnx_text(text).graph
    >>> {name: why_not(value, UseFinder(graph), 2) for name, value in graph.initializers.items()}
    {'w': '3 x 2 numbers, too few for an adapter of rank 2', 'b': 'no matrix or kernel'}
    """
    sizes = weight.shape.numpy() if weight.shape is not None else ()
    if len(sizes) < 2:
        return "no matrix or kernel"
    uses = finder.uses(weight)
    read = {weight, *(y for use in uses for step in use.path for y in step.outputs)}
    if any(reader.op_type == ROUNDS for value in read for reader, _ in value.uses()):
        return f"read through {ROUNDS}"
    for use in uses:
        node, through = use.node, [step.op_type for step in use.path if step.op_type != "Transpose" or len(sizes) > 2]
        fits = (node.op_type == "MatMul" and len(sizes) == 2) or (node.op_type in ("Gemm", "Conv") and use.place == 1)
        if through or not fits or node.domain:
            return f"read through {through[0]}" if through else f"read by {node.op_type}"
    groups = {use.node.attributes.get_int("group", 1) for use in uses}
    if len(groups) != 1:
        return "read by convolutions of several groups" if groups else "read by nothing"
    columns = math.prod(sizes[1:])
    if rank * (sizes[0] + groups.pop() * columns) >= sizes[0] * columns:
        return f"{' x '.join(map(str, sizes))} numbers, too few for an adapter of rank {rank}"
    return None


def insert(
    graph: ir.Graph, names: Sequence[str], rank: int, scale: float, rng: np.random.Generator
) -> dict[str, Adapter]:
    """Add adapters to weights for which `why_not` is None, in place; the graph's outputs stay the same.

    They do to the last bit, unless a runtime folded a normalization into the convolution before it, which the adapter
    prevents.

    The matrix that reads the data is drawn from U(±1/√fan_in), like a layer's weights; the other one is 0. They become
    new initializers, `<weight>/lora_A` and `<weight>/lora_B`.
    """
    finder, adapters, taken = UseFinder(graph), dict[str, Adapter](), Names(used_names(graph))
    uses_by_name = {name: finder.uses(graph.initializers[name]) for name in names}  # before any branch reads them
    for name, uses in uses_by_name.items():
        array, op = query.array(graph.initializers[name]), Builder(graph, name, names=taken)
        group = uses[0].node.attributes.get_int("group", 1)
        left = np.zeros((len(array), rank, *(1,) * (array.ndim - 2)), array.dtype)
        right = np.zeros((group * rank, *array.shape[1:]), array.dtype)
        data_side, fan_in = (left, len(left)) if _meets_left(uses[0]) else (right, math.prod(right.shape[1:]))
        data_side[...] = rng.uniform(-(fan_in**-0.5), fan_in**-0.5, data_side.shape)
        first, second = (
            op.parameter(f"{name}/lora_{'A' if matrix is data_side else 'B'}", matrix) for matrix in (left, right)
        )
        for use in uses:
            _add_branch(use, (first, second), scale, taken)
        adapters[name] = Adapter(str(first.name), str(second.name), scale)
    return adapters


def _is_transposed(use: Use) -> bool:
    """Return whether a node reads the transpose of a weight."""
    transposes = sum(step.attributes.get_ints("perm", (1, 0)) != (0, 1) for step in use.path) + (
        use.node.attributes.get_int("transB", 0) if use.node.op_type == "Gemm" else 0
    )
    return bool(transposes % 2)


def _meets_left(use: Use) -> bool:
    """Return whether L multiplies the data first, as in x · L · R; Rᵀ does in (L · R)ᵀ · x = Rᵀ · Lᵀ · x."""
    return use.node.op_type != "Conv" and _is_transposed(use) == (use.place == 0)


def _transposed(op: Builder, matrix: ir.Value) -> ir.Value:
    swapped: ir.Value = op.Transpose(matrix, perm=[1, 0])
    swapped.type, swapped.shape = matrix.type, ir.Shape([*matrix.shape][::-1]) if matrix.shape is not None else None
    return swapped


def _add_branch(use: Use, pair: tuple[ir.Value, ir.Value], scale: float, names: Names) -> None:
    """Add the product of a node's input with s · (L·R) to its output; the sum takes over the name."""
    node, y = use.node, use.node.outputs[0]
    assert isinstance(node.graph, ir.Graph)
    op = Builder(node.graph, f"{y.name}/lora", before=node, names=names)
    x, is_transposed, attributes = node.inputs[1 - use.place], _is_transposed(use), node.attributes
    first, second = pair if _meets_left(use) else pair[::-1]
    groups = attributes.get_int("group", 1)
    if node.op_type == "Gemm":
        scale *= attributes.get_float("alpha", 1.0)
    elif node.op_type == "MatMul" and is_transposed:
        first, second = (_transposed(op, matrix) for matrix in (first, second))

    def product(x: ir.Value | None, matrix: ir.Value, **extra: Any) -> Any:
        if node.op_type == "Conv":
            return op.Conv(x, matrix, **extra)
        if node.op_type == "Gemm":
            return op.Gemm(x, matrix, transB=int(is_transposed), **extra)
        return op.MatMul(x, matrix) if use.place else op.MatMul(matrix, x)

    first_attributes: dict[str, Any] = {**attributes} if node.op_type == "Conv" else {}
    first_attributes |= {"transA": attributes["transA"]} if "transA" in attributes else {}
    group = {"group": groups} if groups > 1 else {}
    inner = product(x, first, **first_attributes)
    inner.type = first.type  # values in a branch may have no type
    if y.shape is not None:
        axis = 1 if node.op_type == "Conv" else max(0, y.shape.rank() - (1 if use.place else 2))
        assert pair[0].shape is not None
        rank = groups * pair[0].shape.numpy()[1]
        inner.shape = ir.Shape([rank if i == axis else d for i, d in enumerate(y.shape)])
    delta = product(inner if scale == 1 else op.Mul(inner, scale), second, **group)
    delta.type, delta.shape = first.type, y.shape
    base = _with_bias(y)
    total = op.Add(base, delta)
    total.type, total.shape = first.type, base.shape
    ir.convenience.replace_all_uses_with(base, total, replace_graph_outputs=True)
    added, before = total.producer(), base.producer()
    assert added is not None and before is not None
    added.replace_input_with(0, base)
    node.graph.remove(added)
    node.graph.insert_after(before, added)
    name, base.name = str(base.name), None
    total.name, base.name = name, names.fresh(f"{name}/base")


def _with_bias(y: ir.Value) -> ir.Value:
    """Return a product with its bias: runtimes compute both in one kernel, which rounds differently from two."""
    uses = [] if y.is_graph_output() else list(y.uses())
    if len(uses) == 1 and uses[0].node.op_type == "Add" and uses[0].node.graph is y.producer().graph:  # type: ignore[union-attr]
        addend = uses[0].node.inputs[1 - uses[0].idx]
        return uses[0].node.outputs[0] if addend is not None and addend.is_initializer() else y
    return y


def merged(weight: np.ndarray, left: np.ndarray, right: np.ndarray, scale: float) -> np.ndarray:
    """Return W + s · L·R in the weight's type, computed in float64.

    >>> merged(np.eye(2, dtype=np.float32), np.array([[1.0], [0]]), np.array([[0, 3.0]]), 0.5)
    array([[1. , 1.5],
           [0. , 1. ]], dtype=float32)
    """
    rank = left.shape[1]
    groups = len(right) // rank
    delta = left.astype(np.float64).reshape(groups, -1, rank) @ right.astype(np.float64).reshape(groups, rank, -1)
    return (weight + scale * delta.reshape(weight.shape)).astype(weight.dtype)


def without_adapters(model: ir.Model, adapters: Mapping[str, Adapter]) -> None:
    """Remove adapters from a model, in place: each sum that `insert` wrote becomes its first addend.

    Raises:
        ModelError: another node reads an adapter, for instance because an engine rewrote the sum.
    """
    graph = model.graph
    pairs = [(adapter.left, adapter.right) for adapter in adapters.values()]
    for matrix in (graph.initializers[name] for pair in pairs for name in pair if name in graph.initializers):
        for node, base in list(_sums(matrix)):
            total = node.outputs[0]
            name, total.name = total.name, None
            ir.convenience.replace_all_uses_with(total, base, replace_graph_outputs=True)
            base.name = name
            assert isinstance(node.graph, ir.Graph)
            node.graph.remove(node, safe=True)
    if adapters:
        clean(model, loops=True)  # in branches, too; outputs that a body keeps for the gradient read adapters
        keep_outputs(model, [str(value.name) for value in graph.outputs])
    if unmerged := [name for pair in pairs for name in pair if name in graph.initializers]:
        raise ModelError(
            "An adapter can be merged only if nothing but the sum with its weight's product reads it.",
            got=f"{some(unmerged)}, which another node reads, too",
            fix="Choose derive=native.",
        )


def _sums(matrix: ir.Value) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield each addition of a product with a matrix, or with its transpose, and its other addend."""
    for node, _ in matrix.uses():
        if node.op_type == "Transpose":
            yield from _sums(node.outputs[0])
        for reader, place in node.outputs[0].uses() if node.outputs else ():
            base = reader.inputs[1 - place] if reader.op_type == "Add" else None
            if base is not None:
                yield reader, base


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
