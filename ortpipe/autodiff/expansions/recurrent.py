"""RNN, GRU and LSTM as a Scan over time whose body is one step in plain operators.

The products of the inputs with W are one matrix product before the scan; only those with R are inside.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx_ir as ir
from onnx_ir import Graph, Node, Value

from ortpipe.autodiff.expansions.loops import flipped, listed
from ortpipe.errors import DeriveError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.rewrite import Rewrite

# activation: its attributes with their ONNX defaults; None where the default of onnxruntime's kernels differs.
# This table is local because the names are attribute values, and some are no operators.
ACTIVATIONS: dict[str, dict[str, float | None]] = {
    "Affine": {"alpha": None, "beta": None},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Relu": {},
    "ScaledTanh": {"alpha": None, "beta": None},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": None},
}
Activation = tuple[str, dict[str, float]]  # an activation and its parameters


@dataclass
class CellStep:
    """The context for a cell's formula: the builder of a step, one direction's weights, the activations."""

    op: Builder
    node: Node
    hidden: int
    weights: dict[str, Value]
    activations: Sequence[Activation]

    def activate(self, which: int, x: Value, *, clip: bool = True) -> Value:
        """Return the activation of x; x is clipped first if the node has `clip`.

        Affine is alpha · x + beta, ScaledTanh is alpha · tanh(beta · x).
        """
        (name, numbers), op, bound = self.activations[which], self.op, self.node.attributes.get_float("clip", None)
        if clip and bound is not None:
            x = op.Clip(x, -bound, bound)
        if name not in ("Affine", "ScaledTanh"):
            return getattr(op, name)(x, **numbers)
        alpha, beta = numbers["alpha"], numbers["beta"]
        return x * alpha + beta if name == "Affine" else op.Tanh(x * beta) * alpha

    def split(self, x: Value, *parts: int) -> Sequence[Value]:
        """Split the last axis into parts, each a multiple of the hidden size wide."""
        return _split(self.op, x, [p * self.hidden for p in parts], axis=-1)


def rnn(step: CellStep, x: Value, h: Value) -> tuple[Value, ...]:
    """h = f(x + h·Rᵀ), where x denotes x·Wᵀ + b, here and below."""
    return (step.activate(0, step.op.Gemm(h, step.weights["r"], x, transB=1)),)


def gru(step: CellStep, x: Value, h: Value) -> tuple[Value, ...]:
    """z, r = f(x + h·Rᵀ);  n = g(x + (r ∘ h)·Rᵀ);  h = (1 − z) ∘ n + z ∘ h.

    With linear_before_reset, n = g(x + r ∘ (h·Rᵀ + b_R)).
    """
    op = step.op
    first, x_n = step.split(x, 2, 1)
    if "rn" in step.weights:
        z, r = step.split(step.activate(0, op.Gemm(h, step.weights["r"], first, transB=1)), 1, 1)
        n = step.activate(1, op.Gemm(r * h, step.weights["rn"], x_n, transB=1))
    else:
        bias = [step.weights["bn"]] if "bn" in step.weights else []
        first_h, n_h = step.split(op.Gemm(h, step.weights["r"], *bias, transB=1), 2, 1)
        z, r = step.split(step.activate(0, first + first_h), 1, 1)
        n = step.activate(1, x_n + r * n_h)
    return ((1 - z) * n + z * h,)


def lstm(step: CellStep, x: Value, h: Value, c: Value) -> tuple[Value, ...]:
    """i, f = σ(x + h·Rᵀ + p ∘ c);  c = f ∘ c + i ∘ g(x + h·Rᵀ);  o = σ(x + h·Rᵀ + p ∘ c);  h = o ∘ k(c).

    With input_forget, f = 1 − i.
    """
    op = step.op
    i, o, f, g = step.split(op.Gemm(h, step.weights["r"], x, transB=1), 1, 1, 1, 1)
    p_i, p_o, p_f = step.split(step.weights["p"], 1, 1, 1) if "p" in step.weights else (None, None, None)
    i = step.activate(0, i + p_i * c if p_i is not None else i)
    if step.node.attributes.get_int("input_forget", 0):
        f = 1 - i
    else:
        f = step.activate(0, f + p_f * c if p_f is not None else f)
    c = f * c + i * step.activate(1, g)
    o = step.activate(0, o + p_o * c if p_o is not None else o)
    return o * step.activate(2, c, clip=False), c


class Cell(NamedTuple):
    """A recurrent operator: the formula of a step, its default activations, its numbers of gates and states."""

    formula: Callable[..., tuple[Value, ...]]
    activations: tuple[str, ...]
    gates: int
    states: int


CELLS = {
    "GRU": Cell(gru, ("Sigmoid", "Tanh"), gates=3, states=1),
    "LSTM": Cell(lstm, ("Sigmoid", "Tanh", "Tanh"), gates=4, states=2),
    "RNN": Cell(rnn, ("Tanh",), gates=1, states=1),
}


def recurrent(op: Builder, node: Node) -> Sequence[Value | None]:
    """Rewrite each direction as a scan, and concatenate the results."""
    cell = CELLS[node.op_type]
    x, w, r, b, lengths, *starts = (*node.inputs, *[None] * 8)[: 5 + cell.states]
    peephole = node.inputs[7] if len(node.inputs) > 7 else None
    assert x is not None and w is not None and r is not None
    batch_first, direction = node.attributes.get_int("layout", 0), node.attributes.get_string("direction", "forward")
    if batch_first:
        x = op.Transpose(x, perm=[1, 0, 2])
        starts = [op.Transpose(s, perm=[1, 0, 2]) if s is not None else None for s in starts]
    hidden = node.attributes.get_int("hidden_size", 0) or _hidden_size(node, r)
    ways = ["forward", "reverse"] if direction == "bidirectional" else [direction]
    functions = _activations(node, cell.activations * len(ways))
    zeros = op.Expand(op.like(0, r), _sides(op, x, [1], hidden)) if None in starts else None
    parts = {name: _parts(op, v, len(ways)) for name, v in {"w": w, "r": r, "b": b, "p": peephole}.items()}
    first = [_parts(op, s, len(ways)) or [zeros] * len(ways) for s in starts]
    mask = None
    if lengths is not None:  # [t < length] as booleans [T, N, 1]
        steps = op.Range(0, op.Squeeze(op.Gather(op.Shape(x), [0]), [0]), 1)
        mask = op.Less(op.Unsqueeze(steps, [1, 2]), op.Unsqueeze(op.Cast(lengths, to=ir.DataType.INT64), [1]))
    y = node.outputs[0]
    wants_all = bool(y.name) and (bool(y.uses()) or y.is_graph_output())
    results = []
    for d, way in enumerate(ways):
        weights = {name: part[d] for name, part in parts.items() if part}
        scanned = [v if way == "forward" else flipped(op, v) for v in (x, mask) if v is not None]
        scanned[0] = _projected(op, node, scanned[0], weights, cell.gates, hidden)
        direction_activations = functions[d * len(cell.activations) :][: len(cell.activations)]
        ends = _scan(
            op,
            CellStep(op, node, hidden, weights, direction_activations),
            cell,
            [s[d] for s in first],
            scanned,
            wants_all,
        )
        if wants_all and way == "reverse":
            ends[-1] = flipped(op, ends[-1])
        results.append(ends)
    everything = _joined(op, [ends[-1] for ends in results], 1) if wants_all else None
    last = [_joined(op, [ends[i] for ends in results], 0) for i in range(cell.states)]
    if batch_first:
        everything = op.Transpose(everything, perm=[2, 0, 1, 3]) if everything is not None else None
        last = [op.Transpose(v, perm=[1, 0, 2]) for v in last]
    return [v if old.name else None for v, old in zip([everything, *last], node.outputs, strict=False)]


def _hidden_size(node: Node, r: Value) -> int:
    if r.shape is None or not isinstance(r.shape[2], int):
        raise DeriveError(
            "A recurrent operator's hidden size must be known.",
            got=f"{node.op_type} at node {node.name or node.outputs[-1].name!r}, without hidden_size",
            fix="Write hidden_size into the node, or end the graph in front of it{@cut}.",
        )
    return r.shape[2]


def _activations(node: Node, usual: Sequence[str]) -> list[Activation]:
    """Return each activation with its parameters; those that have any consume alphas and betas in order."""
    canonical_names = {name.lower(): name for name in ACTIVATIONS}
    lists = {key: list(node.attributes.get_floats(f"activation_{key}", ())) for key in ("alpha", "beta")}
    place = f"node {node.name or node.outputs[-1].name!r}"
    activations = []
    for activation in node.attributes.get_strings("activations", usual):
        name, numbers = canonical_names.get(activation.lower()), dict[str, float]()
        if name is None:
            raise DeriveError(
                "A recurrent operator's activations must be ONNX's.",
                got=f"{activation!r} at {place}",
                fix=f"Use one of {', '.join(canonical_names)}.",
            )
        for key, default in ACTIVATIONS[name].items():
            value = lists[key].pop(0) if lists[key] else default
            if value is None or (node.op_type == "RNN" and f"activation_{key}" not in node.attributes):
                raise DeriveError(
                    "Where ONNX's and onnxruntime's defaults differ, an activation's parameters are required.",
                    got=f"{activation} of {node.op_type} at {place}, without its {key}",
                    fix=f"Write activation_{key} into the node's attributes.",
                )
            numbers[key] = value
        activations.append((name, numbers))
    return activations


def _sides(op: Builder, x: Value, axes: Sequence[int], last: int) -> Value:
    """Return a shape vector of some of x's dimensions and a last one."""
    return op.Concat(op.Gather(op.Shape(x), [*axes]), [last], axis=0)


def _split(op: Builder, x: Value, sizes: Sequence[int], axis: int = 0) -> Sequence[Value]:
    return op.Split(x, [*sizes], axis=axis, outputs=len(sizes))


def _parts(op: Builder, x: Value | None, count: int) -> list[Any]:
    """Return a tensor's slices along its first axis, one per direction."""
    if x is None:
        return []
    return [op.Squeeze(v, [0]) for v in ([x] if count == 1 else _split(op, x, [1] * count))]


def _projected(op: Builder, node: Node, x: Value, weights: dict[str, Value], gates: int, hidden: int) -> Value:
    """Return x·Wᵀ + b_W + b_R for all steps; store in `weights` the parts for a step: R, and GRU's slices of it."""
    linear, r = node.attributes.get_int("linear_before_reset", 0), weights["r"]
    biases = []
    if "b" in weights and gates != 3:
        biases = [op.Add(*_split(op, weights.pop("b"), [gates * hidden] * 2))]
    elif "b" in weights:
        parts = _split(op, weights.pop("b"), [2 * hidden, hidden] * 2)
        last = parts[1] if linear else parts[1] + parts[3]
        biases = [op.Concat(parts[0] + parts[2], last, axis=0)]
        if linear:  # added to the whole product with R; its first two parts already have their bias
            weights["bn"] = op.Concat(op.Expand(op.like(0, r), [2 * hidden]), parts[3], axis=0)
    if gates == 3 and not linear:
        weights["r"], weights["rn"] = _split(op, r, [2 * hidden, hidden])
    # all steps as rows of one product; onnxruntime has no float64 kernel for a fused Transpose and MatMul
    rows = op.Gemm(op.Flatten(x, axis=2), weights.pop("w"), *biases, transB=1)
    return op.Reshape(rows, _sides(op, x, [0, 1], gates * hidden))


def _scan(
    op: Builder, step: CellStep, cell: Cell, starts: Sequence[Value], scanned: Sequence[Value], wants_all: bool
) -> list[Value]:
    """Return one direction's last states and, if `wants_all`, h of every step [T, N, hidden].

    After the end of a row's sequence, its state is kept and its h is 0.
    """
    like, name = step.weights["r"], step.node.op_type
    before = [op.placeholder(state, like, ir.Shape([None, step.hidden])) for state in ("h", "c")[: cell.states]]
    x = op.placeholder("x", like, None)
    body = Graph([*before, x], [], nodes=[], name=f"{name}/step")
    step.op = inner = Builder(body, name, names=op._names)
    with inner.formulas():
        after = list(cell.formula(step, x, *before))
    h = after[0]
    if len(scanned) == 2:
        valid = op.placeholder("valid", Value(type=ir.TensorType(ir.DataType.BOOL)), None)
        body.inputs.append(valid)
        h = inner.Where(valid, h, inner.like(0, like)) if wants_all else h
        after = [inner.Where(valid, new, old) for new, old in zip(after, before, strict=True)]
    if wants_all:
        after.append(inner.Identity(h) if h is after[0] else h)
    body.outputs.extend(after)
    for value in after:
        value.type = like.type
    return listed(op.Scan(*starts, *scanned, body=body, num_scan_inputs=len(scanned), outputs=len(after)))


def _joined(op: Builder, values: Sequence[Value], axis: int) -> Value:
    wide = [op.Unsqueeze(v, [axis]) for v in values]
    return wide[0] if len(wide) == 1 else op.Concat(*wide, axis=axis)


EXPANSIONS: dict[str, Rewrite] = {"GRU": recurrent, "LSTM": recurrent, "RNN": recurrent}
