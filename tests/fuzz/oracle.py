"""PyTorch's own gradients in float64, where torch is installed and has each operator of a graph."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

import ortpipe
from fuzz.draw import Case
from fuzz.reference import Reference, as_double, distance

Function = Callable[..., Any]
UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log"),
    *("Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
)
BINARY = {"Add": "add", "Div": "div", "MatMul": "matmul", "Mul": "mul", "Pow": "pow", "Sub": "sub"}


def functions() -> dict[str, Function]:
    """Return what computes each operator: of its attributes by name, and its inputs."""
    import torch
    from torch.nn import functional as F

    def axes_of(a: Mapping[str, Any], x: Any, axes: Any) -> list[int]:
        chosen = a.get("axes") if axes is None else axes.tolist()
        if not chosen:
            return [] if a.get("noop_with_empty_axes") else list(range(x.ndim))
        return list(chosen)

    def reduce(of: Function) -> Function:
        def reduced(a: Mapping[str, Any], x: Any, axes: Any = None) -> Any:
            along = axes_of(a, x, axes)
            return of(x, along, bool(a.get("keepdims", 1))) if along else x

        return reduced

    def gemm(a: Mapping[str, Any], x: Any, w: Any, c: Any = None) -> Any:
        x, w = (v.T if a.get(name) else v for v, name in ((x, "transA"), (w, "transB")))
        y = a.get("alpha", 1.0) * (x @ w)
        return y if c is None else y + a.get("beta", 1.0) * c

    def conv(a: Mapping[str, Any], x: Any, w: Any, b: Any = None) -> Any:
        n = x.ndim - 2
        pads = a.get("pads", [0] * 2 * n)
        if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            raise NotImplementedError
        x = F.pad(x, [p for i in reversed(range(n)) for p in (pads[i], pads[n + i])])
        strides, dilations = a.get("strides", [1] * n), a.get("dilations", [1] * n)
        return (F.conv1d, F.conv2d, F.conv3d)[n - 1](x, w, b, strides, 0, dilations, a.get("group", 1))

    def layer_norm(a: Mapping[str, Any], x: Any, s: Any, b: Any = None) -> Any:
        if s.ndim != x.ndim - a.get("axis", -1) % x.ndim:
            raise NotImplementedError
        return F.layer_norm(x, s.shape, s, b, a.get("epsilon", 1e-5))

    def gather(a: Mapping[str, Any], x: Any, i: Any) -> Any:
        axis = a.get("axis", 0) % x.ndim
        found = x.index_select(axis, i.reshape(-1) % x.shape[axis])
        return found.reshape(*x.shape[:axis], *i.shape, *x.shape[axis + 1 :])

    def reshape(a: Mapping[str, Any], x: Any, shape: Any) -> Any:
        if a.get("allowzero"):
            raise NotImplementedError
        return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape.tolist())])

    def unsqueeze(a: Mapping[str, Any], x: Any, axes: Any) -> Any:
        rank = x.ndim + len(axes)
        for axis in sorted(i % rank for i in axes.tolist()):
            x = x.unsqueeze(axis)
        return x

    def plain(of: Function) -> Function:
        return lambda a, *xs: of(*xs)

    def norm(p: int) -> Function:
        return reduce(lambda x, d, k: torch.linalg.vector_norm(x, p, d, k))

    table: dict[str, Function] = {
        "Clip": lambda a, x, low=None, high=None: x if low is high is None else torch.clamp(x, low, high),
        "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
        "Conv": conv,
        "CumSum": lambda a, x, axis: x.cumsum(int(axis)) if not (a.get("exclusive") or a.get("reverse")) else None,
        "Einsum": lambda a, *xs: torch.einsum(a["equation"].decode(), *xs),
        "Elu": lambda a, x: F.elu(x, a.get("alpha", 1.0)),
        "Expand": lambda a, x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist()))),
        "Flatten": lambda a, x: (
            x.reshape(int(np.prod(x.shape[: a.get("axis", 1)])), -1) if a.get("axis", 1) > 0 else None
        ),
        "Gather": gather,
        "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", b"none").decode()),
        "Gemm": gemm,
        "GlobalAveragePool": lambda a, x: x.mean(tuple(range(2, x.ndim)), True),
        "HardSwish": lambda a, x: F.hardswish(x),
        "LayerNormalization": layer_norm,
        "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
        "LogSoftmax": lambda a, x: F.log_softmax(x, a.get("axis", -1)),
        "Max": lambda a, *xs: xs[0] if len(xs) == 1 else torch.maximum(*xs),
        "Mean": lambda a, *xs: sum(xs) / len(xs),
        "Min": lambda a, *xs: xs[0] if len(xs) == 1 else torch.minimum(*xs),
        "Mish": lambda a, x: F.mish(x),
        "PRelu": lambda a, x, s: torch.where(x > 0, x, x * s),
        "ReduceL1": norm(1),
        "ReduceL2": norm(2),
        "ReduceLogSumExp": reduce(torch.logsumexp),
        "ReduceMean": reduce(torch.mean),
        "ReduceSum": reduce(torch.sum),
        "ReduceSumSquare": reduce(lambda x, d, k: (x * x).sum(d, k)),
        "Reshape": reshape,
        "Selu": lambda a, x: F.selu(x) if not a else None,
        "Softmax": lambda a, x: F.softmax(x, a.get("axis", -1)),
        "Softplus": lambda a, x: F.softplus(x),
        "Softsign": lambda a, x: F.softsign(x),
        "Squeeze": lambda a, x, axes=None: x.squeeze() if axes is None else x.squeeze(axes.tolist()),
        "Sum": lambda a, *xs: sum(xs),
        "Tile": lambda a, x, counts: x.repeat(counts.tolist()),
        "Transpose": lambda a, x: x.permute(a.get("perm", list(reversed(range(x.ndim))))),
        "Unsqueeze": unsqueeze,
        "Where": lambda a, c, x, y: torch.where(c, x, y),
    }
    named = {**{kind: kind.lower() for kind in UNARY}, **BINARY}
    return table | {kind: plain(getattr(torch, name)) for kind, name in named.items()}


def apart(case: Case) -> float | None:
    """Return how far the rules' gradients of the outputs' sum are from PyTorch's, both in float64, at most.

    None where torch lacks something.
    """
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    table, double = functions(), as_double(case.model)
    if any(node.op_type not in table or len(node.output) > 1 for node in double.graph.node):
        return None
    feeds = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in case.feeds.items()}
    arrays = {**{t.name: onnx.numpy_helper.to_array(t) for t in double.graph.initializer}, **feeds}
    values = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    for name in case.wrt:
        values[name].requires_grad_(True)
    try:
        for node in double.graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            values[node.output[0]] = table[node.op_type](attributes, *(values[x] if x else None for x in node.input))
        ends = [values[name] for name in case.of]
        if not all(isinstance(y, torch.Tensor) and y.requires_grad for y in ends):
            return None
    except (NotImplementedError, TypeError, AttributeError):  # a form that the table has not
        return None
    expected = torch.autograd.grad(sum(y.sum() for y in ends), [values[n] for n in case.wrt], materialize_grads=True)
    graph = ortpipe.gradient(double, case.of, case.wrt, ones=True)
    fed = {i.name: arrays[i.name] for i in graph.graph.input if i.name in arrays}
    found = Reference(graph).run(fed, [f"{name}_grad" for name in case.wrt])
    return float(np.max([distance(a, b.numpy()) for a, b in zip(found, expected, strict=True)]))  # nan where one is
