"""Control flow: If, Scan, and Loop if it can be written as a Scan."""

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir import Graph, Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.cut import copied, cut, distinct, prune
from ortpipe.autodiff.expansions.loops import flipped, listed, why_not_a_scan
from ortpipe.autodiff.walk import active, gradients
from ortpipe.errors import DeriveError
from ortpipe.graph.core import query
from ortpipe.graph.core.operators import is_random

SHOWN = 16  # the most weights that a message names


def if_(op: Backward, node: Node, dys: Gradients, condition: Value) -> Gradients:
    """y = t(v) if c else e(v): dv by an If over the same c, whose branches are the gradients of t and e.

    A branch recomputes the forward values for its gradient: the other branch could not provide values of their shape.
    """
    captured = query.captured(node)
    targets = [v for v in captured if v in op.active]
    branches = [_branch(op, node, name, targets, dys) for name in ("then_branch", "else_branch")]
    reached = [v for v in targets if any(v in gradients_by_value for _, gradients_by_value in branches)]
    if not reached:
        return []
    for inner, gradients_by_value in branches:
        results = [gradients_by_value[v] if v in gradients_by_value else inner.zeros(v) for v in reached]
        inner.graph.outputs[:] = distinct(inner, results, reached)
        prune(inner.graph)
    then, otherwise = (inner.graph for inner, _ in branches)
    results = op.If(condition, then_branch=then, else_branch=otherwise, outputs=len(reached))
    gradient = dict(zip(reached, listed(results), strict=True))
    return [None, *(gradient.get(v) for v in captured)]


def _branch(
    op: Backward, node: Node, name: str, targets: Sequence[Value], dys: Gradients
) -> tuple[Backward, dict[Value, Value]]:
    graph = copied(op, node.attributes[name].as_graph())
    for inside in graph.all_nodes():
        if is_random(inside):
            raise DeriveError(
                "The gradient of an If computes a branch again, so branches must not draw random numbers.",
                got=f"{inside.op_type} in the {name} of {node.name or node.outputs[0].name!r}",
                fix="Draw the random numbers before the If and use them in its branches.",
            )
    inner = op.inside(graph)
    cotangents = []
    for y, dy in zip(list(graph.outputs), dys, strict=True):
        if dy is not None:
            cotangent = inner.Identity(dy)
            cotangent.type, cotangent.shape = y.type, y.shape
            cotangents.append((y, cotangent))
    return inner, gradients(inner, cotangents, targets)


def scan(op: Backward, node: Node, dys: Gradients, *_: Value) -> Gradients:
    """s_t, y_t = f(s_{t−1}, x_t, v): from the last step to the first,

    ds_{t−1} = ∂f/∂s · (ds_t, dy_t),   dx_t = ∂f/∂x · (ds_t, dy_t),   dv = Σ_t ∂f/∂v · (ds_t, dy_t)

    as a Scan over reversed inputs: ds and the sums dv are its states, dx its scan outputs. The forward Scan returns its
    states and the inner values that the gradient uses as extra outputs, so that no step is repeated.
    """
    body, captured = node.attributes["body"].as_graph(), query.captured(node)
    states = len(node.inputs) - node.attributes["num_scan_inputs"].as_int()
    carried, targets = _reach(op, node, body, states, captured, dys)
    inner = op.inside(body)
    arriving = [i for i in range(states, len(dys)) if dys[i] is not None]
    cotangents = [
        *((body.outputs[i], op.placeholder("carried", body.inputs[i], body.inputs[i].shape)) for i in carried),
        *((body.outputs[i], op.placeholder("arriving", body.outputs[i], body.outputs[i].shape)) for i in arriving),
    ]
    gradients_by_value = gradients(inner, cotangents, targets)
    if not gradients_by_value:
        return []
    shared = [v for v in captured if v in gradients_by_value]
    sums = [op.placeholder("sum", v, v.shape) for v in shared]
    scanned = [x for x in body.inputs[states:] if x in gradients_by_value]
    before = [body.inputs[i] for i in carried]
    outputs = [
        *(gradients_by_value[s] if s in gradients_by_value else inner.zeros(s) for s in before),
        *(inner.Add(total, gradients_by_value[v]) for v, total in zip(shared, sums, strict=True)),
        *(gradients_by_value[x] for x in scanned),
    ]
    graph, read_forward = cut(inner, distinct(inner, outputs, [*before, *shared, *scanned]))
    if not read_forward and not arriving:  # a Scan needs a scanned input
        read_forward = {body.inputs[states]: op.placeholder("unread", body.inputs[states], body.inputs[states].shape)}
    first, last = [p for _, p in cotangents[: len(carried)]], [p for _, p in cotangents[len(carried) :]]
    graph.inputs.extend([*first, *sums, *read_forward.values(), *last])
    starts = [dys[i] or op.zeros(node.outputs[i]) for i in carried] + [op.zeros(v) for v in shared]
    steps = [
        *(_per_step(node, inner, states, v) for v in read_forward),
        *(dy for i in arriving if (dy := dys[i]) is not None),
    ]
    results = op.Scan(
        *starts, *(flipped(op, v) for v in steps), body=graph, num_scan_inputs=len(steps), outputs=len(outputs)
    )
    gradient: dict[Value, Value] = {}
    for x, dx in zip([*before, *shared, *scanned], listed(results), strict=True):
        outer = _outside(node, body, x)
        dx.type, dx.shape = outer.type, outer.shape
        gradient[x] = flipped(op, dx) if x in scanned else dx
    return [gradient.get(x) for x in (*body.inputs, *captured)]


def _outside(node: Node, body: Graph, x: Value) -> Value:
    """Return the outer value for an input of the node's body; captured values are the same inside and outside."""
    outer = node.inputs[list(body.inputs).index(x)] if x in body.inputs else x
    assert outer is not None
    return outer


def _reach(
    op: Backward, node: Node, body: Graph, states: int, captured: Sequence[Value], dys: Gradients
) -> tuple[list[int], list[Value]]:
    """Return the states that carry a gradient, and the other values that may get one, iterated to a fixed point."""
    targets = [v for v in captured if v in op.active]
    targets += [x for x, outer in zip(body.inputs, node.inputs, strict=True) if outer in op.active]
    while more := _carries(body, states, targets):
        targets += more
    reached, added = set[int](), {i for i, dy in enumerate(dys) if dy is not None}
    while added:
        reached |= added
        needed = query.ancestors([body.outputs[i] for i in reached])
        added = {i for i in range(states) if body.inputs[i] in needed} - reached
    carried = [i for i in range(states) if i in reached and body.inputs[i] in targets]
    unwanted = {body.inputs[i] for i in range(states) if i not in carried}
    return carried, [t for t in targets if t not in unwanted]


def _carries(body: Graph, states: int, targets: Sequence[Value]) -> list[Value]:
    """Return the states that depend on a target after one more step."""
    reached = active(body, targets)
    return [x for x, y in zip(body.inputs[:states], body.outputs, strict=False) if y in reached and x not in targets]


def _per_step(node: Node, inner: Backward, states: int, value: Value) -> Value:
    """Return a value of the body for all steps: a scanned input, or an extra scan output of the node."""
    body = inner.graph
    if value in body.inputs[states:]:
        return _outside(node, body, value)
    for inside, outside in zip(body.outputs[states:], node.outputs[states:], strict=True):
        maker = inside.producer()
        is_copy = maker is not None and maker.op_type == "Identity" and maker.inputs[0] is value
        if outside.name and (inside is value or is_copy):
            return outside
    if value in body.outputs or value in body.inputs:
        copy = ir.node("Identity", [value])
        body.append(copy)
        copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
        value = inner.rename(copy.outputs[0], f"{value.name}/step")
        copy.name = value.name
    body.outputs.append(value)
    node.resize_outputs(len(node.outputs) + 1)
    steps = inner.rename(node.outputs[-1], f"{value.name}/steps")
    length = _outside(node, body, body.inputs[states]).shape
    steps.type = value.type
    if value.shape is not None:
        steps.shape = ir.Shape([length[0] if length is not None else None, *value.shape])
    return steps


def loop(op: Backward, node: Node, dys: Gradients, *_: Value | None) -> Gradients:
    """Raise for a Loop that cannot be written as a Scan."""
    read = query.ancestors([v for v in (*node.inputs, *query.captured(node)) if v is not None])
    trained = sorted(str(v.name) for v in read if v in op.active and v.is_initializer())
    named = f":[{','.join(trained[:SHOWN])}{',…' if len(trained) > SHOWN else ''}]" if trained else ""
    raise DeriveError(
        "A Loop has a gradient only if its number of iterations is given and its states keep their shapes.",
        got=f"{node.name or node.outputs[0].name!r}: {why_not_a_scan(node)}",
        fix=f"Take no gradient through it{{@freeze{named}}}; end the graph in front of it{{@cut}}, or write it "
        "with a trip count, or a condition that only compares a counter with a bound.",
    )


RULES: Rules = {"If": if_, "Loop": loop, "Scan": scan}
