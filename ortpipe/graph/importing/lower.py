"""Convert models to an opset that the runtime loads, with windows that every runtime computes alike.

Comparing onnxruntime 1.19.2 and 1.31.1 with ONNX's formulas, over modes × sizes × kernels × strides × dilations, showed
where it deviates: auto_pad=SAME computes negative pads where the stride is longer than the window, ignores dilations,
and disagrees with shape inference under ceil_mode; an AveragePool with ceil_mode and count_include_pad (1.19.2) divides
by more entries than it covers; a Col2Im of one axis (1.19.2, 1.23.2) misplaces columns. All of them fail if a Pad with
axes reads a Transpose. A reduction over no axes (1.19.2, 1.23.2) fails, or omits its other steps, as the square.

`inline` puts one such model inside another.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
from onnx import version_converter

from ortpipe.errors import ModelError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.check import FAILURES, inferred
from ortpipe.graph.core.doubles import FORMS
from ortpipe.graph.core.inference import infer, parsed
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.protos import all_nodes
from ortpipe.graph.core.query import called, sizes
from ortpipe.graph.core.rewrite import Rewrite, rewrite
from ortpipe.graph.core.sound import FIX, check_valid
from ortpipe.graph.core.types import IR_VERSION, OPSET
from ortpipe.graph.files.serial import OLDEST_IR_VERSION
from ortpipe.graph.importing.functions import initializers_to_constants
from ortpipe.graph.importing.opsets import at_opset, opset_of

Axis = tuple[Any, int, int]  # its size (None: unknown), its stride, and the extent of a window
MICROSOFT = "com.microsoft"
NAMELESS = {"LayerNormalization": 17, "SimplifiedLayerNormalization": 99}  # by the opset in which ONNX has them
POOLS = having("pool")
NO_AXES = "noop_with_empty_axes"


def lowered(model: onnx.ModelProto, apart: Collection[str] = (), moved: list[str] | None = None) -> onnx.ModelProto:
    """Return the model at an opset and IR version that the training runtime loads.

    Models at opset 18 to 21 keep it, newer ones are converted down to 21, older ones up to 18. Below 18 most reductions
    have their axes as an attribute, and below 16 no operator adds up the values of repeated indices; the graphs that
    ortpipe writes need both. Local functions, and ONNX's functions of newer opsets, are inlined; windows that runtimes
    compute otherwise than ONNX says get explicit pads. Initializers named in `apart` have their values elsewhere.
    Nodes with windows of auto_pad=SAME that onnxruntime places elsewhere than ONNX are appended to `moved`.

    Raises:
        ModelError: the model is not valid, or an operator has no equivalent in that opset.
    """
    low = onnx.ModelProto()
    low.CopyFrom(model)
    _mark_runtime_operators(low)
    check_valid(low, apart)
    if low.functions:
        try:
            low = onnx.inliner.inline_local_functions(low)
        except RuntimeError as error:
            actual = str(error).strip().splitlines()[-1]
            raise ModelError("Calls of local functions must match their definitions.", got=actual, fix=FIX) from error
    opsets: dict[str, int] = {}
    for entry in low.opset_import:  # some exporters list the default domain twice, or by its other name
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        opsets[domain] = max(entry.version, opsets.get(domain, 0))
    del low.opset_import[:]
    low.opset_import.extend(onnx.helper.make_opsetid(domain, v) for domain, v in sorted(opsets.items()))
    low = at_opset(low)
    for node in all_nodes(low.graph):
        if node.op_type == "MeanVarianceNormalization" and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))  # its function body lacks the default
        if node.domain == MICROSOFT and node.op_type in NAMELESS:
            node.domain = ""
    low.ir_version = min(max(low.ir_version, OLDEST_IR_VERSION), IR_VERSION)
    if not any(
        node.op_type in ("Col2Im", "Conv", "Pad", *POOLS, *FORMS)
        or any(a.name == NO_AXES and a.i for a in node.attribute)
        for node in all_nodes(low.graph)
    ):
        return low
    graph_model = parsed(low)
    changed = [
        _write_plain_windows(graph_model, [] if moved is None else moved),
        _write_double_kernels(graph_model),
        _write_all_pads(graph_model),
        _write_no_reductions(graph_model),
    ]
    return ir.to_proto(graph_model) if any(changed) else low


def changed_opset(model: onnx.ModelProto, low: onnx.ModelProto) -> list[str]:
    """Return a note on the change of opset that `lowered` made, if it made one."""
    before, after = opset_of(model), opset_of(low)
    return [f"converts the file from opset {before} to {after}"] if before != after else []


def _mark_runtime_operators(model: onnx.ModelProto) -> None:
    """Move operators that only onnxruntime has in ONNX's domain to com.microsoft."""
    version = opset_of(model)
    domains = {o.domain for o in model.opset_import}
    for node in all_nodes(model.graph):
        if node.domain in ("", "ai.onnx") and version < NAMELESS.get(node.op_type, 0):
            node.domain = MICROSOFT
            if MICROSOFT not in domains:
                domains.add(MICROSOFT)
                model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))


def _write_double_kernels(model: ir.Model) -> bool:
    """Write the float64 functions of FORMS in other operators, as the builder does; return whether there were any."""
    functions = [node for node in model.graph.all_nodes() if node.op_type in FORMS]
    if functions:
        infer(model)
    nodes = [node for node in functions if node.outputs[0].dtype == ir.DataType.DOUBLE]

    def again(op: Builder, node: ir.Node) -> list[ir.Value]:
        return [getattr(op, node.op_type)(*node.inputs, **{name: a.value for name, a in node.attributes.items()})]

    rewrite(model.graph, dict.fromkeys(FORMS, again), nodes=nodes)
    return bool(nodes)


def _write_all_pads(model: ir.Model) -> bool:
    """Write pads of all axes where a Pad names its axes; return whether one does."""
    nodes = [node for node in model.graph.all_nodes() if node.op_type == "Pad" and len(node.inputs) > 3]
    if nodes:
        infer(model)
    rewrite(model.graph, {"Pad": _all_pads}, nodes=nodes)
    return bool(nodes)


def _all_pads(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Pad without axes, if the axes are constant and the rank is known."""
    x, pads, value, axes = node.inputs
    places, mode = query.constant(axes), node.attributes.get_string("mode", "constant")
    if places is None or x is None or x.shape is None:
        return None
    rank = x.shape.rank()
    indices = np.concatenate([places % rank, places % rank + rank])
    return [op.Pad(x, op.ScatterElements(np.zeros(2 * rank, np.int64), indices, pads), value, mode=mode)]


def _write_no_reductions(model: ir.Model) -> bool:
    """Write the other steps of reductions over no axes; return whether there are any."""
    nodes = [n for n in model.graph.all_nodes() if n.attributes.get_int(NO_AXES, 0) and query.axes(n, None) == []]
    rules: dict[str, Rewrite] = {
        **dict.fromkeys([node.op_type for node in nodes], lambda op, n: [op.Identity(n.inputs[0])]),
        **dict.fromkeys(["ReduceL1", "ReduceL2"], lambda op, n: [op.Abs(n.inputs[0])]),
        "ReduceLogSum": lambda op, n: [op.Log(n.inputs[0])],
        "ReduceSumSquare": lambda op, n: [op.Mul(n.inputs[0], n.inputs[0])],
    }
    rewrite(model.graph, rules, nodes=nodes)
    return bool(nodes)


def _write_plain_windows(model: ir.Model, moved: list[str]) -> bool:
    """Write explicit pads where a runtime deviates from ONNX, if sizes are known; return whether there are windows."""
    nodes = [node for node in model.graph.all_nodes() if not node.domain]
    windows = [n for n in nodes if n.op_type in ("Conv", *POOLS)]
    windows = [node for node in windows if _is_same(node) or node.attributes.get_int("ceil_mode", 0) == 1]
    if not windows and not any(node.op_type == "Col2Im" for node in nodes):
        return False
    for node in windows:
        if _is_same(node) and node.op_type in POOLS:  # SAME's number of windows does not depend on ceil_mode
            node.attributes.pop("ceil_mode", None)
    infer(model)
    columns = [n for n in nodes if n.op_type == "Col2Im" and any(sizes(x) == [1] for x in n.inputs[1:])]
    names = Names(used_names(model.graph))
    for node in windows:
        _write_pads(node, names, moved)
    rewrite(model.graph, {"Col2Im": _columns_of_rows}, nodes=columns)
    return bool(windows or columns)


def _columns_of_rows(op: Builder, node: ir.Node) -> list[ir.Value]:
    """Col2Im of one axis, as that of an image of height 1."""
    x, length, width = node.inputs
    pads = node.attributes.get_ints("pads") or [0, 0]
    attributes = {name: [1, *(node.attributes.get_ints(name) or [1])] for name in ("dilations", "strides")}
    sizes = [op.Concat([1], v, axis=0) for v in (length, width)]
    return [op.Squeeze(op.Col2Im(x, *sizes, pads=[0, pads[0], 0, pads[1]], **attributes), [2])]


def _write_pads(node: ir.Node, names: Names, moved: list[str]) -> None:
    spatial, of_kernel = ((sizes(x) or [])[2:] for x in (*node.inputs, None)[:2])
    kernel: Sequence[Any] = node.attributes.get_ints("kernel_shape") or of_kernel
    if None in kernel:
        raise ModelError(
            "The kernel of a window with auto_pad or ceil_mode must have static sizes.",
            got=f"{called(node)}: {node.inputs[1].name!r} of shape {node.inputs[1].shape}",  # type: ignore[union-attr]
            fix="Set the node's kernel_shape.",
        )
    n = len(kernel)
    strides = node.attributes.get_ints("strides") or [1] * n
    dilations = node.attributes.get_ints("dilations") or [1] * n
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    axes: list[Axis] = list(zip(spatial or [None] * n, strides, extents, strict=True))
    if _is_same(node):
        if any(d > 1 or e < s for d, (_, s, e) in zip(dilations, axes, strict=True)):
            pads = _pads(node, axes)
            moved += [node.name or str(node.outputs[0].name)] if _is_moved(node, axes, kernel, pads) else []
            node.attributes["pads"] = ir.AttrInt64s("pads", pads)
            del node.attributes["auto_pad"]
    else:
        pads = list(node.attributes.get_ints("pads") or [0] * 2 * n)
        _reject_empty_windows(node, axes, pads)
        if node.attributes.get_int("count_include_pad", 0):
            del node.attributes["count_include_pad"]
            if any(pads):  # the pads become entries of the input, which a pool always counts
                assert isinstance(node.graph, ir.Graph)
                op = Builder(node.graph, f"{node.outputs[0].name}/padded", before=node, names=names)
                node.replace_input_with(0, op.Pad(node.inputs[0], op.const([0, 0, *pads[:n], 0, 0, *pads[n:]])))
                del node.attributes["pads"]


def _pads(node: ir.Node, axes: Sequence[Axis]) -> list[int]:
    """Return the pads of auto_pad=SAME: how far ⌈size / stride⌉ windows reach beyond the input, at least 0."""
    totals = []
    for i, (size, stride, extent) in enumerate(axes):
        if size is None and stride > 1 and extent > 1:
            raise ModelError(
                "auto_pad of a window that is dilated, or shorter than its stride, is supported for static sizes only.",
                got=f"{called(node)}: axis {i + 2} of {node.inputs[0].name!r}",  # type: ignore[union-attr]
                fix="Set the sizes of the inputs{@sizes}.",
            )
        totals.append(max(0, (-1 if size is None else (-(-size // stride) - 1) * stride - size) + extent))
    upper = node.attributes.get_string("auto_pad") == "SAME_UPPER"
    begin = [t // 2 if upper else t - t // 2 for t in totals]
    return [*begin, *(t - b for t, b in zip(totals, begin, strict=True))]


def _is_moved(node: ir.Node, axes: Sequence[Axis], kernel: Sequence[int], pads: Sequence[int]) -> bool:
    """Return whether onnxruntime places windows of auto_pad=SAME elsewhere: it ignores dilations; pads can be < 0."""
    is_dilated = [extent for *_, extent in axes] != [*kernel]
    totals = [(-(-(n or 0) // s) - 1) * s + k - (n or 0) for (n, s, _), k in zip(axes, kernel, strict=True)]
    begin = [int((total + (node.attributes.get_string("auto_pad") == "SAME_LOWER")) / 2) for total in totals]
    begin_and_end = [*begin, *(total - first for total, first in zip(totals, begin, strict=True))]
    if is_dilated:
        return node.op_type != "Conv" and begin_and_end != [*pads]  # it rejects a dilated Conv
    return begin != [*pads[: len(begin)]]


def _reject_empty_windows(node: ir.Node, axes: Sequence[Axis], pads: Sequence[int]) -> None:
    """Raise ModelError for a window of only pads: runtimes disagree on whether it exists, and on its value."""
    for i, (size, stride, extent) in enumerate(axes):
        begin, end = pads[i], pads[i + len(axes)]
        if size is not None and -(-(size + begin + end - extent) // stride) * stride - begin >= size:
            raise ModelError(
                "Every window of a pool with ceil_mode must cover an entry of its input.",
                got=f"{called(node)}: the last window along axis {i + 2} has only pads",
                fix="Set other sizes of the inputs{@sizes}, or end the graph before it{@cut}.",
            )


def _is_same(node: ir.Node) -> bool:
    return node.attributes.get_string("auto_pad", "").startswith("SAME")


def prepared(model: onnx.ModelProto, op: Builder) -> ir.Model:
    """Return a model for `inline`, at the opset of the graph that `op` writes; ModelError: no equivalent there."""
    low, target = lowered(model), op.graph.opset_imports.get("", OPSET)
    version = next((entry.version for entry in low.opset_import if entry.domain == ""), target)
    if version != target:
        try:
            low = version_converter.convert_version(low, target)
        except FAILURES as error:
            raise ModelError(
                "A model inside another one must have an equivalent at its opset.",
                got=f"opset {version} inside opset {target}: {str(error).strip().splitlines()[-1]}",
                fix=f"Convert it to opset {target} (onnx.version_converter), or both models to a later one.",
            ) from error
    return parsed(inferred(low))


def inline(op: Builder, model: ir.Model, feeds: Mapping[str, ir.Value], prefix: str) -> None:
    """Move the nodes of a prepared model behind those that `op` has written; the model's graph keeps its outputs.

    Args:
        op: writes at the end of a graph.
        model: the prepared model, which is empty afterwards.
        feeds: the value for each of its inputs.
        prefix: goes in front of the names of its values.
    """
    graph = model.graph
    initializers_to_constants(graph)
    for value in query.data_inputs(graph):
        ir.convenience.replace_all_uses_with(value, feeds[str(value.name)], replace_graph_outputs=True)
    for node in graph.all_nodes():
        for inner in query.subgraphs(node):
            for value in (*inner.inputs, *inner.initializers.values()):
                op.rename(value, f"{prefix}/{value.name}")
        for value in node.outputs:
            if value.name:
                op.rename(value, f"{prefix}/{value.name}")
            if value.shape is not None:  # names of dimensions mean nothing in the other graph
                value.shape = ir.Shape([d if isinstance(d, int) else None for d in value.shape])
        node.name = node.outputs[0].name
    nodes = list(graph)
    graph.remove(nodes)
    op.graph.extend(nodes)
    imports = {domain: v for domain, v in graph.opset_imports.items() if domain not in op.graph.opset_imports}
    op.graph.opset_imports.update(imports)
