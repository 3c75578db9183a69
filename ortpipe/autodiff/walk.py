"""The backward walk: reverse accumulation over a graph with a table of rules.

A rule is `rule(op, node, dy, *inputs)`: given the gradient of the node's first output, it returns one gradient per
input, or None for an input without one. It writes them with `op` as formulas (`dy * (1 - y)`). The walk takes care of
the rest:

- dy has y's shape; for the operators of `SMALL` it may have any shape that broadcasts to y, such as a scalar;
- for operators with several outputs (`SEVERAL_OUTPUTS`) dy is a list, with None for outputs without a gradient;
- results are cast to the input's type, get a type and shape, and are summed along broadcast axes;
- results that depend on no trained value are dropped.

A rule may add outputs to the forward node (the mask of a Dropout, the log-probabilities of a loss, a Scan's states) so
that nothing is computed twice. A rule of control flow returns gradients for the inputs, then for the outer values that
the node's subgraphs capture, in the order of `operands`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx_ir import Graph, Node, Value

from ortpipe.autodiff.backward import SIMPLIFIER, Backward, Gradients
from ortpipe.autodiff.table import EXPANSIONS, RULES
from ortpipe.doors import later
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Names, used_names
from ortpipe.graph.core.operators import having

if TYPE_CHECKING:
    from ortpipe.autodiff.expand import expanded
    from ortpipe.autodiff.missing import reject_no_rule, reject_quantized
else:
    later(__name__)

BROADCASTING = having("broadcasts") | {"Expand"}  # their rules' results have y's shape, or broadcast to it
NEVER_QUANTIZED = {*query.FLOATS, ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.STRING}
INTEGERS = having("layout", "view", "quantized")  # their rules allow quantized values
SEVERAL_OUTPUTS = having("several")
SMALL = (BROADCASTING | having("unary", "entrywise", "reduces")) - {"GlobalMaxPool"}


def gradients(op: Backward, cotangents: Iterable[tuple[Value, Value]], targets: Iterable[Value]) -> dict[Value, Value]:
    """Return Σ cotangentᵀ · ∂output/∂target over (output, cotangent), for every target that an output depends on.

    A value's gradient is the sum of the results of its users' rules (reverse accumulation). Targets may be values of an
    outer graph.
    """
    targets = list(targets)
    op.active = active(op.forward, targets)
    received: dict[Value, list[Value]] = defaultdict(list)
    for output, cotangent in cotangents:
        received[output].append(cotangent)
    for node in reversed(op.forward):
        arrived = [op.total(received[y], y) if received.get(y) else None for y in node.outputs]
        if not any(arrived) or not any(x in op.active for x in operands(node) if x is not None):
            continue
        with op.formulas():
            dxs = _by_rule(op, node, arrived)
        for x, dx in zip(operands(node), dxs, strict=False):
            if x is not None and dx is not None and x in op.active:
                if x.dtype in query.FLOATS and dx.dtype not in (None, x.dtype):
                    dx = op.cast(dx, x)
                received[x].append(op.unbroadcast(dx, x, node.outputs[0] if node.op_type in BROADCASTING else None))
    return {t: op.full(op.total(received[t], t), t) for t in targets if received.get(t)}


def operands(node: Node) -> tuple[Value | None, ...]:
    """Return a node's inputs, then the values that its subgraphs capture."""
    return (*node.inputs, *query.captured(node))


def active(nodes: Iterable[Node], targets: Iterable[Value]) -> set[Value]:
    """Return the values that depend on a target: floats and quantized values; other integers end the dependency."""
    reached = set(targets)
    for node in nodes:
        read = [x for x in operands(node) if x in reached]
        if read:
            reached.update(y for y in node.outputs if y.dtype is None or y.dtype in query.FLOATS)
        if (node.op_type == "QuantizeLinear" and read) or any(map(_quantized, read)):
            reached.update(filter(_quantized, node.outputs))
    return reached


def _quantized(x: Value | None) -> bool:
    """Return whether a value may hold quantized floats; int64 values are positions or sizes."""
    return x is not None and x.dtype is not None and x.dtype not in NEVER_QUANTIZED


def _by_rule(op: Backward, node: Node, arrived: Gradients) -> Gradients:
    rule = op.rules.get(node.op_type) if not node.domain else None
    if rule is None:
        reject_no_rule(op, node, operands(node))
    integers = [x.name for x in operands(node) if x in op.active and _quantized(x)]
    if integers and node.op_type not in INTEGERS:
        reject_quantized(node, integers[0])
    if node.op_type not in SMALL:
        arrived = [op.full(dy, y) if dy is not None else None for dy, y in zip(arrived, node.outputs, strict=True)]
    if node.op_type in SEVERAL_OUTPUTS:
        return rule(op, node, arrived, *node.inputs)
    return rule(op, node, arrived[0], *node.inputs) if arrived[0] is not None else []


def with_gradients(model: ir.Model, loss: str, targets: Sequence[str]) -> tuple[ir.Model, dict[str, str]]:
    """Return the model with gradients as further outputs, and the name of each target's gradient.

    A target on which the loss does not depend has none. The given model may be modified.

    Raises:
        DeriveError: an operator between a target and the loss has no rule; the error names its node.
    """
    if model.functions or not all(map(_is_plain, model.graph.all_nodes())):
        model = expanded(model, [loss], targets)
    graph = model.graph
    if SIMPLIFIER is not None:
        SIMPLIFIER.prepare(model)
    op = Backward(graph, RULES)
    by_name = query.values(graph)
    output = by_name[loss]
    gradient_by_target = gradients(op, [(output, op.like(1, output))], [by_name[name] for name in targets])
    graph.outputs.extend(dict.fromkeys(gradient_by_target.values()))
    return model, {str(target.name): str(gradient.name) for target, gradient in gradient_by_target.items()}


def _is_plain(node: ir.Node) -> bool:
    """Return whether a node stays as it is when others are expanded: it has a rule, and computes no sizes."""
    if node.op_type == "Constant":
        return True
    if node.domain or node.op_type not in RULES or node.op_type in ("If", *EXPANSIONS):
        return False
    schema = onnx.defs.get_schema(node.op_type)
    has_defaults = schema.attributes and (schema.has_function or schema.has_context_dependent_function)
    return not has_defaults and all(y.dtype in query.FLOATS for y in node.outputs)


def named(graph: Graph, results: Mapping[str, Value], reserved: Collection[str] = ()) -> dict[str, Value]:
    """Give each result its public name, or the first free variant, and return the results by requested name.

    A result is copied to a new value if it is an input, an initializer, another output, a duplicate or reserved.
    """
    values, taken = dict[str, Value](), {output for output in graph.outputs if output not in results.values()}
    taken |= {value for value in results.values() if value.name in reserved}
    for name, value in results.items():
        if value in taken or value.producer() is None:
            node = ir.node("Identity", [value])
            graph.append(node)
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            value = node.outputs[0]
        values[name] = value
        taken.add(value)
    names = Names(used_names(graph) - {str(value.name) for value in values.values()})
    for name, value in values.items():
        value.name = names.fresh(name)
    return values


def name_gradients(graph: Graph, gradients: Mapping[str, str], reserved: Collection[str]) -> dict[str, str]:
    """Name the gradients <parameter>_grad, <input>_grad and return the names; each has its parameter's shape.

    A reserved value that is also a gradient (e^x is its own) keeps its name.
    """
    by_name = query.values(graph)
    values = named(graph, {f"{name}_grad": by_name[gradient] for name, gradient in gradients.items()}, reserved)
    for name in gradients:
        values[f"{name}_grad"].shape = by_name[name].shape
    return {name: str(values[f"{name}_grad"].name) for name in gradients}
