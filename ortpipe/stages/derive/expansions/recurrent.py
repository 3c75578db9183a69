"""RNN, GRU and LSTM as a Scan over time whose body is one step in plain operators.

The products of the inputs with W are one matrix product in front of the scan; only those with R are inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.errors import DeriveError
from ortpipe.graph.builder import Builder
from ortpipe.stages.derive.expansions.loops import flipped

Activation = Callable[[Builder, ir.Value, ir.Value], ir.Value]  # (op, x, a value of x's type)
# name: operator, and the attributes it has with their ONNX defaults; None where onnxruntime's kernels have another one
ACTIVATIONS: dict[str, tuple[str, dict[str, float | None]]] = {
    "affine": ("Affine", {"alpha": None, "beta": None}),
    "elu": ("Elu", {"alpha": 1.0}),
    "hardsigmoid": ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    "leakyrelu": ("LeakyRelu", {"alpha": 0.01}),
    "relu": ("Relu", {}),
    "scaledtanh": ("ScaledTanh", {"alpha": None, "beta": None}),
    "sigmoid": ("Sigmoid", {}),
    "softplus": ("Softplus", {}),
    "softsign": ("Softsign", {}),
    "tanh": ("Tanh", {}),
    "thresholdedrelu": ("ThresholdedRelu", {"alpha": None}),
}


class Step:
    """What a cell's formula is written with: the step's builder, one direction's weights, its activations."""

    def __init__(
        self,
        op: Builder,
        node: ir.Node,
        hidden: int,
        weights: dict[str, ir.Value],
        activations: Sequence[Activation],
    ) -> None:
        self.op, self.node, self.hidden, self.weights, self.activations = op, node, hidden, weights, activations
        self.like = weights["r"]  # a value whose type is known

    def activate(self, which: int, x: ir.Value) -> ir.Value:
        """Return the activation of x, which is clipped first where the node says so."""
        if "clip" in self.node.attributes:
            bound = self.node.attributes["clip"].as_float()
            x = self.op.Clip(x, self.op.like(-bound, self.like), self.op.like(bound, self.like))
        return self.activations[which](self.op, x, self.like)

    def split(self, x: ir.Value, *parts: int) -> Sequence[ir.Value]:
        """Cut the last axis into parts, each some hidden sizes wide."""
        sizes = self.op.const(np.array([p * self.hidden for p in parts], np.int64))
        made: Sequence[ir.Value] = self.op.Split(x, sizes, axis=-1, outputs=len(parts))
        return made


def rnn_step(step: Step, x: ir.Value, h: ir.Value) -> tuple[ir.Value, ...]:
    """h = f(x + h·Rᵀ), where x stands for x·Wᵀ + b, here and below."""
    op = step.op
    return (step.activate(0, op.Gemm(h, step.weights["r"], x, transB=1)),)


def gru_step(step: Step, x: ir.Value, h: ir.Value) -> tuple[ir.Value, ...]:
    """z, r = f(x + h·Rᵀ);  n = g(x + (r ∘ h)·Rᵀ);  h = (1 − z) ∘ n + z ∘ h.

    With linear_before_reset, n = g(x + r ∘ (h·Rᵀ + b_R)).
    """
    op = step.op
    first, x_n = step.split(x, 2, 1)
    if "rn" in step.weights:
        z, r = step.split(step.activate(0, op.Gemm(h, step.weights["r"], first, transB=1)), 1, 1)
        n = step.activate(1, op.Gemm(op.Mul(r, h), step.weights["rn"], x_n, transB=1))
    else:
        bias = [step.weights["bn"]] if "bn" in step.weights else []
        first_h, n_h = step.split(op.Gemm(h, step.weights["r"], *bias, transB=1), 2, 1)
        z, r = step.split(step.activate(0, op.Add(first, first_h)), 1, 1)
        n = step.activate(1, op.Add(x_n, op.Mul(r, n_h)))
    return (op.Add(op.Mul(op.Sub(op.like(1, h), z), n), op.Mul(z, h)),)


def lstm_step(step: Step, x: ir.Value, h: ir.Value, c: ir.Value) -> tuple[ir.Value, ...]:
    """i, f = σ(x + h·Rᵀ + p ∘ c);  c = f ∘ c + i ∘ g(x + h·Rᵀ);  o = σ(x + h·Rᵀ + p ∘ c);  h = o ∘ k(c).

    With input_forget, f = 1 − i.
    """
    op = step.op
    i, o, f, g = step.split(op.Gemm(h, step.weights["r"], x, transB=1), 1, 1, 1, 1)
    p_i, p_o, p_f = step.split(step.weights["p"], 1, 1, 1) if "p" in step.weights else (None, None, None)
    i = step.activate(0, op.Add(i, op.Mul(p_i, c)) if p_i is not None else i)
    if integer(step.node, "input_forget"):
        f = op.Sub(op.like(1, h), i)
    else:
        f = step.activate(0, op.Add(f, op.Mul(p_f, c)) if p_f is not None else f)
    c = op.Add(op.Mul(f, c), op.Mul(i, step.activate(1, g)))
    o = step.activate(0, op.Add(o, op.Mul(p_o, c)) if p_o is not None else o)
    return op.Mul(o, step.activations[2](op, c, step.like)), c


def rnn(op: Builder, node: ir.Node) -> Sequence[ir.Value | None]:
    """RNN."""
    return _recurrent(op, node, rnn_step, ("Tanh",), gates=1, states=1)


def gru(op: Builder, node: ir.Node) -> Sequence[ir.Value | None]:
    """GRU."""
    return _recurrent(op, node, gru_step, ("Sigmoid", "Tanh"), gates=3, states=1)


def lstm(op: Builder, node: ir.Node) -> Sequence[ir.Value | None]:
    """LSTM."""
    return _recurrent(op, node, lstm_step, ("Sigmoid", "Tanh", "Tanh"), gates=4, states=2)


def integer(node: ir.Node, name: str) -> int:
    """Return an int attribute, 0 where it is not given."""
    return node.attributes[name].as_int() if name in node.attributes else 0


def _recurrent(
    op: Builder,
    node: ir.Node,
    formula: Callable[..., tuple[ir.Value, ...]],
    default: Sequence[str],
    gates: int,
    states: int,
) -> Sequence[ir.Value | None]:
    """Write every direction as a scan, and put their results side by side."""
    x, w, r, b, lengths, *given = (*node.inputs, *[None] * 8)[: 6 + 2 * (states - 1)]
    starts, peephole = given[:states], given[states] if states == 2 else None
    assert x is not None and w is not None and r is not None
    batch_first = bool(integer(node, "layout"))
    if batch_first:
        x = op.Transpose(x, perm=[1, 0, 2])
        starts = [op.Transpose(s, perm=[1, 0, 2]) if s is not None else None for s in starts]
    hidden = integer(node, "hidden_size") or _static(node, r)
    direction = node.attributes["direction"].as_string() if "direction" in node.attributes else "forward"
    ways = ["forward", "reverse"] if direction == "bidirectional" else [direction]
    functions = _activations(node, [*default] * len(ways))
    mask = _mask(op, x, lengths) if lengths is not None else None
    parts = {name: _parts(op, v, len(ways)) for name, v in {"w": w, "r": r, "b": b, "p": peephole}.items()}
    first = [_parts(op, s, len(ways)) if s is not None else [_zeros(op, x, r, hidden)] * len(ways) for s in starts]
    wants_all = bool(node.outputs[0].name) and (bool(node.outputs[0].uses()) or node.outputs[0].is_graph_output())
    results = []
    for d, way in enumerate(ways):
        weights = {name: part[d] for name, part in parts.items() if part}
        scanned = [v if way == "forward" else flipped(op, v) for v in (x, mask) if v is not None]
        scanned[0] = _projected(op, node, scanned[0], weights, gates, hidden)
        own = functions[d * len(default) : (d + 1) * len(default)]
        made = _scan(op, node, formula, weights, own, [s[d] for s in first], scanned, hidden, wants_all)
        if wants_all and way == "reverse":
            made[-1] = flipped(op, made[-1])
        results.append(made)
    ends = [_joined(op, [made[i] for made in results], 0) for i in range(states)]
    everything = _joined(op, [made[-1] for made in results], 1) if wants_all else None
    if batch_first:
        ends = [op.Transpose(v, perm=[1, 0, 2]) for v in ends]
        everything = op.Transpose(everything, perm=[2, 0, 1, 3]) if everything is not None else None
    return [v if old.name else None for v, old in zip([everything, *ends], node.outputs, strict=False)]


def _static(node: ir.Node, r: ir.Value) -> int:
    if r.shape is None or not isinstance(r.shape[2], int):
        raise DeriveError(
            "A recurrent operator's hidden size must be known.",
            got=f"{node.op_type} at node {node.name or node.outputs[-1].name!r}, without hidden_size",
            fix="Export the model with hidden_size, or with a static shape of R.",
        )
    return r.shape[2]


def _activations(node: ir.Node, usual: Sequence[str]) -> list[Activation]:
    """Return one function per activation; alphas and betas are read off their lists by those that have one."""
    names = list(node.attributes["activations"].as_strings()) if "activations" in node.attributes else list(usual)
    lists = {
        key: list(node.attributes[f"activation_{key}"].as_floats()) if f"activation_{key}" in node.attributes else []
        for key in ("alpha", "beta")
    }
    where = f"node {node.name or node.outputs[-1].name!r}"
    made = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise DeriveError(
                "A recurrent operator's activations must be ONNX's.",
                got=f"{name!r} at {where}",
                fix=f"Use one of {', '.join(ACTIVATIONS)}.",
            )
        op_type, numbers = ACTIVATIONS[name.lower()]
        own = {}
        for key, default in numbers.items():
            value = lists[key].pop(0) if lists[key] else default
            if value is None or (node.op_type == "RNN" and f"activation_{key}" not in node.attributes):
                raise DeriveError(
                    "Where ONNX's and onnxruntime's defaults differ, an activation's numbers must be given.",
                    got=f"{name} of {node.op_type} at {where}, without its {key}",
                    fix=f"Export the model with activation_{key}.",
                )
            own[key] = value
        made.append(_activation(op_type, own))
    return made


def _activation(op_type: str, numbers: dict[str, float]) -> Activation:
    """Return f(x); Affine is alpha · x + beta, ScaledTanh is alpha · tanh(beta · x)."""

    def function(op: Builder, x: ir.Value, like: ir.Value) -> ir.Value:
        alpha, beta = (op.like(numbers.get(k, 0), like) for k in ("alpha", "beta"))
        if op_type == "Affine":
            return op.Add(op.Mul(x, alpha), beta)
        if op_type == "ScaledTanh":
            return op.Mul(op.Tanh(op.Mul(x, beta)), alpha)
        return getattr(op, op_type)(x, **numbers)

    return function


def _mask(op: Builder, x: ir.Value, lengths: ir.Value) -> ir.Value:
    """Return [t < length] as booleans [T, N, 1]."""
    time = op.Squeeze(op.Gather(op.Shape(x), _axis(op, 0)), _axis(op, 0))
    steps = op.Range(op.const(np.int64(0)), time, op.const(np.int64(1)))
    return op.Less(op.Unsqueeze(steps, op.const(np.array([1, 2]))), op.Unsqueeze(_long(op, lengths), _axis(op, 1)))


def _long(op: Builder, x: ir.Value) -> ir.Value:
    made: ir.Value = op.Cast(x, to=ir.DataType.INT64)
    return made


def _axis(op: Builder, axis: int) -> ir.Value:
    return op.const(np.array([axis], np.int64))


def _parts(op: Builder, x: ir.Value | None, count: int) -> list[ir.Value]:
    """Return each direction's part of a tensor whose first axis is the directions."""
    if x is None:
        return []
    parts = [x] if count == 1 else op.Split(x, op.const(np.ones(count, np.int64)), axis=0, outputs=count)
    made = [op.Squeeze(part, _axis(op, 0)) for part in parts]
    for part in made:
        part.type = x.type
    return made


def _zeros(op: Builder, x: ir.Value, r: ir.Value, hidden: int) -> ir.Value:
    rows = op.Gather(op.Shape(x), _axis(op, 1))
    made: ir.Value = op.Expand(op.like(0, r), op.Concat(rows, op.const(np.array([hidden])), axis=0))
    return made


def _projected(
    op: Builder, node: ir.Node, x: ir.Value, weights: dict[str, ir.Value], gates: int, hidden: int
) -> ir.Value:
    """Return x·Wᵀ + b_W + b_R for all steps, and leave in `weights` what the steps need: R, and GRU's parts of it."""
    linear = bool(integer(node, "linear_before_reset"))
    biases = []
    if "b" in weights:
        sizes = [2 * hidden, hidden] * 2 if gates == 3 else [gates * hidden] * 2
        parts = op.Split(weights.pop("b"), op.const(np.array(sizes, np.int64)), axis=0, outputs=len(sizes))
        if gates != 3:
            biases = [op.Add(*parts)]
        else:
            last = parts[1] if linear else op.Add(parts[1], parts[3])
            biases = [op.Concat(op.Add(parts[0], parts[2]), last, axis=0)]
            if linear:  # added to the whole product with R, whose first two parts have their bias already
                nothing = op.Expand(op.like(0, weights["r"]), op.const(np.array([2 * hidden], np.int64)))
                weights["bn"] = op.Concat(nothing, parts[3], axis=0)
    if gates == 3 and not linear:
        thirds = op.const(np.array([2 * hidden, hidden], np.int64))
        weights["r"], weights["rn"] = op.Split(weights["r"], thirds, axis=0, outputs=2)
        weights["r"].type = node.inputs[2].type  # type: ignore[union-attr]
    # rows of all steps in one product; onnxruntime has no float64 kernel for the Transpose and MatMul that it fuses
    w, shape = weights.pop("w"), op.Shape(x)
    width = op.Gather(shape, op.const(np.array([2], np.int64)))
    rows = op.Reshape(x, op.Concat(_axis(op, -1), width, axis=0))
    steps = op.Gather(shape, op.const(np.array([0, 1], np.int64)))
    made: ir.Value = op.Gemm(rows, w, *biases, transB=1)
    return op.Reshape(made, op.Concat(steps, _axis(op, gates * hidden), axis=0))


def _scan(
    op: Builder,
    node: ir.Node,
    formula: Callable[..., tuple[ir.Value, ...]],
    weights: dict[str, ir.Value],
    activations: Sequence[Activation],
    starts: Sequence[ir.Value],
    scanned: Sequence[ir.Value],
    hidden: int,
    wants_all: bool,
) -> list[ir.Value]:
    """Return one direction's last states and, where wanted, h of every step [T, N, hidden].

    Behind the end of its sequence a row's state stays, and its h is 0.
    """
    like = weights["r"]
    before = [op.placeholder(name, like, ir.Shape([None, hidden])) for name in ("h", "c")[: len(starts)]]
    x = op.placeholder("x", like, None)
    inputs = [*before, x]
    body = ir.Graph(inputs, [], nodes=[], name=f"{node.op_type}/step")
    inner = Builder(body, node.op_type, names=op._names)
    after = list(formula(Step(inner, node, hidden, weights, activations), x, *before))
    h = after[0]
    if len(scanned) == 2:
        valid = ir.Value(name=op._names.fresh(f"{node.op_type}/valid"), type=ir.TensorType(ir.DataType.BOOL))
        body.inputs.append(valid)
        h = inner.Where(valid, h, inner.like(0, like)) if wants_all else h
        after = [inner.Where(valid, new, old) for new, old in zip(after, before, strict=True)]
    if wants_all and h is after[0]:
        h = inner.Identity(h)
    body.outputs.extend([*after, h] if wants_all else after)
    for value in body.outputs:
        value.type = like.type
    made = op.Scan(*starts, *scanned, body=body, num_scan_inputs=len(scanned), outputs=len(body.outputs))
    return [made] if isinstance(made, ir.Value) else list(made)


def _joined(op: Builder, values: Sequence[ir.Value], axis: int) -> ir.Value:
    wide = [op.Unsqueeze(v, _axis(op, axis)) for v in values]
    made: ir.Value = wide[0] if len(wide) == 1 else op.Concat(*wide, axis=axis)
    return made
