"""Windows that every runtime slides alike: what onnxruntime computes otherwise than ONNX says, in another form.

Found by comparing onnxruntime 1.19.2 and 1.31.1 with the formulas, over modes × sizes × kernels × strides × dilations:
auto_pad=SAME pads by less than nothing where a stride passes its window, forgets dilations, and disagrees with shape
inference under ceil_mode; an AveragePool with ceil_mode and count_include_pad (1.19.2) divides by more than it covers.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from ortpipe.errors import ModelError
from ortpipe.graph.sound import FIX, graphs

POOLS = ("AveragePool", "LpPool", "MaxPool")
SPOKEN_FOR = ("", "ai.onnx")


def with_plain_windows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with explicit pads where a runtime would choose others than ONNX says.

    Raises:
        ModelError: a size that the pads depend on is not static, or a window of a pool lies on its pads alone.
    """
    slid = [n for g in graphs(model.graph) for n in g.node if n.op_type in ("Conv", *POOLS) and n.domain in SPOKEN_FOR]
    if not any(_same(node) or _attributes(node).get("ceil_mode") for node in slid):
        return model
    own = onnx.ModelProto()
    own.CopyFrom(model)
    for graph in graphs(own.graph):
        for node in graph.node:
            if node.op_type in POOLS and _same(node):  # whose number of windows does not depend on ceil_mode
                _set(node, ceil_mode=None)
    try:
        known = onnx.shape_inference.infer_shapes(own)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError("The shapes in a model agree.", got=str(error).strip(), fix=FIX) from error
    sizes = {t.name: list(t.dims) for t in known.graph.initializer}
    for graph in graphs(known.graph):
        for value in (*graph.input, *graph.value_info):
            dims = value.type.tensor_type.shape.dim
            sizes[value.name] = [d.dim_value if d.HasField("dim_value") else None for d in dims]
    for graph in list(graphs(own.graph)):
        for node in list(graph.node):
            if node.op_type in ("Conv", *POOLS) and node.domain in SPOKEN_FOR:
                _rewrite(graph, node, sizes)
    return own


def _rewrite(graph: onnx.GraphProto, node: onnx.NodeProto, sizes: dict[str, Any]) -> None:
    given = _attributes(node)
    kernel = given.get("kernel_shape") or (sizes.get(node.input[1]) or [])[2:]
    n = len(kernel)
    strides, dilations = given.get("strides") or [1] * n, given.get("dilations") or [1] * n
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    places = (sizes.get(node.input[0]) or [])[2:] or [None] * n
    if _same(node):
        if any(e < s or d > 1 for e, s, d in zip(extents, strides, dilations, strict=True)):
            _set(node, auto_pad=None, pads=_pads(node, places, strides, extents))
    elif given.get("ceil_mode"):
        pads = given.get("pads") or [0] * 2 * n
        _refuse_empty(node, places, strides, extents, pads)
        if node.op_type == "AveragePool" and given.get("count_include_pad"):
            _pad_before(graph, node, pads)


def _pads(node: onnx.NodeProto, places: list[Any], strides: list[int], extents: list[int]) -> list[int]:
    """Return the pads of auto_pad=SAME: what ⌈size / stride⌉ windows reach beyond the input, never below 0."""
    totals = []
    for i, (size, stride, extent) in enumerate(zip(places, strides, extents, strict=True)):
        if size is None and stride > 1 and extent > 1:
            raise ModelError(
                "auto_pad of a dilated window, or one that its stride passes, is supported for static sizes.",
                got=f"{node.op_type} at node {node.name or node.output[0]!r}: axis {i + 2} of {node.input[0]!r}",
                fix="Export the model with explicit pads, or with a static size there.",
            )
        reached = -1 if size is None else (-(-size // stride) - 1) * stride - size
        totals.append(max(0, reached + extent))
    upper = _attributes(node)["auto_pad"] == b"SAME_UPPER"
    begin = [t // 2 if upper else t - t // 2 for t in totals]
    return [*begin, *(t - b for t, b in zip(totals, begin, strict=True))]


def _refuse_empty(
    node: onnx.NodeProto, places: list[Any], strides: list[int], extents: list[int], pads: list[int]
) -> None:
    """Refuse a window of nothing but pads: runtimes do not agree whether it is there, nor on what it holds."""
    for i, (size, stride, extent) in enumerate(zip(places, strides, extents, strict=True)):
        begin, end = pads[i], pads[i + len(places)]
        if size is not None and -(-(size + begin + end - extent) // stride) * stride - begin >= size:
            raise ModelError(
                "Every window of a pool with ceil_mode covers a place of its input.",
                got=f"{node.op_type} at node {node.name or node.output[0]!r}: the last of axis {i + 2} has only pads",
                fix="Export the model with ceil_mode=0.",
            )


def _pad_before(graph: onnx.GraphProto, node: onnx.NodeProto, pads: list[int]) -> None:
    """Let zeros be places like others, so that a pool counts them without being told to."""
    if any(pads):
        n, name = len(pads) // 2, f"{node.output[0]}/padded"
        taken = {v for g in graphs(graph) for inner in g.node for v in (*inner.input, *inner.output)}
        while name in taken or f"{name}/pads" in taken:
            name += "_"
        amounts = helper.make_node(
            "Constant", [], [f"{name}/pads"], value_ints=[0, 0, *pads[:n], 0, 0, *pads[n:]], name=f"{name}/pads"
        )
        padded = helper.make_node("Pad", [node.input[0], f"{name}/pads"], [name], name=name)
        place = next(i for i, other in enumerate(graph.node) if other.output[0] == node.output[0])
        node.input[0] = name
        _set(node, pads=None, count_include_pad=None)
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        rest = [amounts, padded, changed, *graph.node[place + 1 :]]
        del graph.node[place:]
        graph.node.extend(rest)
    else:
        _set(node, count_include_pad=None)


def _same(node: onnx.NodeProto) -> bool:
    return _attributes(node).get("auto_pad", b"").startswith(b"SAME")


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _set(node: onnx.NodeProto, **values: Any) -> None:
    """Set attributes, or take off those that are None."""
    kept = [a for a in node.attribute if a.name not in values]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in values.items() if v is not None)])
