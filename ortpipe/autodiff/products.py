"""Products with the Jacobian and the Hessian of part of a graph, appended to it."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir import Graph, Value

from ortpipe.autodiff.backward import Backward
from ortpipe.autodiff.cut import distinct
from ortpipe.autodiff.expansions.loops import listed
from ortpipe.autodiff.rules.elementwise import flat
from ortpipe.autodiff.table import RULES
from ortpipe.autodiff.walk import gradients, operands
from ortpipe.errors import DeriveError
from ortpipe.graph.core import query
from ortpipe.graph.core.inference import infer

STEPS = [name for name, rule in RULES.items() if rule is flat]


def vjp(model: ir.Model, outputs: Sequence[Value], targets: Sequence[Value], ones: bool) -> dict[str, Value]:
    """Return Jᵀȳ for each target."""
    gradients_by_target = _pulled_back(model.graph, outputs, targets, ones)
    return {f"{t.name}_grad": gradients_by_target[t] for t in targets}


def hvp(model: ir.Model, outputs: Sequence[Value], targets: Sequence[Value], ones: bool) -> dict[str, Value]:
    """Return ∂⟨Jᵀȳ, v⟩/∂x for each target, the gradient of a gradient's product; 0 if that product is constant."""
    first = _pulled_back(model.graph, outputs, targets, ones)
    infer(model)  # the second pass needs shapes that the rules of the first one did not set
    op = Backward(model.graph, RULES, "hessian")
    second = gradients(op, [(first[t], _like(op, t, "tangent")) for t in targets], targets)
    return {f"{t.name}_hvp": second[t] if t in second else op.zeros(t) for t in targets}


def jvp(model: ir.Model, outputs: Sequence[Value], targets: Sequence[Value], ones: bool) -> dict[str, Value]:
    """Return J·v for each output as ∂⟨Jᵀȳ, v⟩/∂ȳ, since Jᵀȳ is linear in ȳ."""
    graph = model.graph
    op = Backward(graph, RULES)
    seeds = [_like(op, y, "grad") for y in outputs]
    pulled_back = _all(graph, gradients(op, zip(outputs, seeds, strict=True), targets), outputs, targets)
    infer(model)
    op = Backward(graph, RULES, "tangent")
    tangents = [(pulled_back[t], _like(op, t, "tangent")) for t in targets]
    pushed = gradients(op, tangents, seeds)
    results = {f"{y.name}_tangent": pushed[s] for y, s in zip(outputs, seeds, strict=True)}
    for y, seed in zip(outputs, seeds, strict=True):
        graph.inputs.remove(seed)  # Jᵀȳ is linear in ȳ: only its shape is still used, and zeros have the same one
        if seed.uses():
            zeros = Backward(graph, RULES, "tangent").zeros(y)
            ir.convenience.replace_all_uses_with(seed, zeros)
            graph.sort()
    return results


def jacobian(model: ir.Model, outputs: Sequence[Value], targets: Sequence[Value], ones: bool) -> dict[str, Value]:
    """Return J for each output and target."""
    graph, results = model.graph, dict[str, Value]()
    for y in outputs:
        names = {t: f"{y.name}_{t.name}_jacobian" for t in targets}
        rows_by_target = _rows(graph, y, [t for t in targets if t in query.ancestors([y])])
        op = Backward(graph, RULES, "jacobian")
        for t in targets:
            shape, empty = op.Concat(op.shape(y), op.shape(t), axis=0), _may_be_empty(y, t)
            results[names[t]] = (
                op.Reshape(rows_by_target[t], shape, **empty)
                if t in rows_by_target
                else op.Expand(op.like(0, t), shape)
            )
            results[names[t]].type, results[names[t]].shape = t.type, ir.Shape([*(y.shape or ()), *(t.shape or ())])
    return results


def _rows(graph: Graph, y: Value, targets: Sequence[Value]) -> dict[Value, Value]:
    """Return the rows of the Jacobian, one per entry of y: a Scan over the part of a VJP that uses the cotangent."""
    op = Backward(graph, RULES)
    if y.shape is not None and not y.shape.rank():
        return _all(graph, gradients(op, [(y, op.like(1, y))], targets), [y], targets)
    seed = _like(op, y, "grad")
    row_gradients = _all(graph, gradients(op, [(y, seed)], targets), [y], targets)
    graph.inputs.remove(seed)
    reached, moved = {seed}, []
    for node in graph:
        if any(x in reached for x in operands(node)):
            reached.update(node.outputs)
            moved.append(node)
    size, empty = op.Size(y), _may_be_empty(y)
    entries, shape = op.Range(0, size, 1), op.shape(y)
    steps = op.Range(0, op.Max(size, 1), 1) if empty else entries  # onnxruntime's Scan needs at least one step
    graph.remove(moved)
    body = Graph([row := op.placeholder("row", entries, ir.Shape([]))], [], nodes=moved, name=f"{y.name}/row")
    inner = op.inside(body)
    one_hot = inner.Reshape(inner.cast(inner.Equal(entries, row), y), shape, **empty)
    one_hot.shape = y.shape
    body.remove(start := [node for node in body if node not in inner.forward])
    body.insert_before(moved[0], start) if moved else body.extend(start)  # no nodes: J is the identity
    ir.convenience.replace_all_uses_with(seed, one_hot)
    body.outputs[:] = distinct(
        inner, [row_gradients[t] if row_gradients[t] is not seed else one_hot for t in targets], targets
    )
    rows = listed(op.Scan(steps, body=body, num_scan_inputs=1, outputs=len(targets)))
    if empty:
        rows = [op.Slice(of_target, [0], op.Reshape(size, [1]), [0]) for of_target in rows]
    return dict(zip(targets, rows, strict=True))


def _may_be_empty(*values: Value) -> dict[str, int]:
    """Return the attributes for a Reshape to these values' sizes: some if a size may be 0, else none."""
    sizes = [size for value in values for size in query.sizes(value) or [None]]
    return {"allowzero": 1} if any(size is None or size == 0 for size in sizes) else {}


def _pulled_back(graph: Graph, outputs: Sequence[Value], targets: Sequence[Value], ones: bool) -> dict[Value, Value]:
    op = Backward(graph, RULES)
    seeds = [op.like(1, y) if ones else _cotangent(op, y) for y in outputs]
    return _all(graph, gradients(op, zip(outputs, seeds, strict=True), targets), outputs, targets)


def _cotangent(op: Backward, y: Value) -> Value:
    """Return the input for the gradient of y; it defaults to 1 if y has one element."""
    seed = _like(op, y, "grad")
    if y.shape is not None and all(d == 1 for d in y.shape):
        assert y.dtype is not None
        seed.const_value = ir.tensor(np.ones(y.shape.numpy(), y.dtype.numpy()), dtype=y.dtype, name=seed.name)
        op.graph.register_initializer(seed)
    return seed


def _like(op: Backward, value: Value, suffix: str) -> Value:
    assert value.dtype is not None
    seed = op.input(f"{value.name}_{suffix}", value.dtype, [])
    seed.shape = value.shape
    return seed


def _all(
    graph: Graph, gradients_by_target: dict[Value, Value], outputs: Sequence[Value], targets: Sequence[Value]
) -> dict[Value, Value]:
    """Return the gradients if every target has one: a target has none if all paths are step functions or integers."""
    for target in targets:
        if target not in gradients_by_target:
            of = " and ".join(repr(y.name) for y in outputs)
            flat = _flat(graph, outputs, target)
            raise DeriveError(
                "A derivative needs a path of operators that have gradients.",
                got=f"{of} depends on {target.name!r} only through {flat}, which has no gradient",
                fix="Leave it out, or take the derivative of a value before that node.",
            )
    return gradients_by_target


def _flat(graph: Graph, outputs: Sequence[Value], target: Value) -> str:
    """Return the names, for a message, of the nodes that block the gradient between a target and the outputs."""
    reached, needed, cuts = {target}, query.ancestors(outputs), []
    for node in graph:
        if not needed.isdisjoint(node.outputs) and any(x in reached for x in operands(node)):
            passed = [] if node.op_type in STEPS else [y for y in node.outputs if y.dtype in query.FLOATS]
            reached.update(passed)
            cuts += [] if passed else [query.called(node)]
    readers = [query.called(node) for node in graph if target in operands(node)]  # for example a running mean
    return " and ".join((cuts or readers)[:3])


PRODUCTS: dict[str, Callable[..., dict[str, Value]]] = {"vjp": vjp, "jvp": jvp, "jacobian": jacobian, "hvp": hvp}
