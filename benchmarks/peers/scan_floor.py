"""A hand-written ONNX graph of the same epoch, a Scan over its batches: the floor that ortpipe's graphs are held to.

Gradients are written out for these networks alone. With SGD the backward pass starts from −rate, so that the matrix
product of a weight's gradient adds its step to the weight; with Adam all parameters are one vector.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from plain import Epoch, Weights, main

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
BLOCKS = np.kron(np.eye(4), np.kron(np.ones((1, 2)), np.kron(np.eye(4), np.ones((1, 2)))))  # [16, 64]


class Body:
    """Collects nodes and constants; every operator returns the name of its value."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def const(self, value: Any, dtype: str = "float32") -> str:
        """Return the name of a constant."""
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), f"constant{len(self.constants)}"))
        return self.constants[-1].name

    def __getattr__(self, operator: str) -> Any:
        """Return the function that adds a node of this operator."""

        def add(*inputs: str, outputs: int = 1, to: str | None = None, **attributes: Any) -> Any:
            names = [to] if to else [f"value{len(self.nodes)}_{i}" for i in range(outputs)]
            self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
            return names[0] if len(names) == 1 else names

        return add


def dense(op: Body, problem: SimpleNamespace, weights: list[str], rows: str, seed: str, update: Any) -> str | None:
    """Add layers of Gemm and Relu, the loss and the backward pass; return the gradient of the rows, if asked for."""
    acts, count, inner = [rows], len(weights) // 2, rows != "X"
    for k in range(count):
        score = op.Gemm(acts[-1], weights[2 * k], weights[2 * k + 1])
        if k < count - 1:
            acts.append(op.Relu(score))
    batch = problem.batch
    if problem.classes:  # y is one-hot
        log_p = op.LogSoftmax(score, axis=-1)
        op.Mul(op.ReduceSum(op.Mul(log_p, "y"), keepdims=0), op.const(-1 / batch), to="loss")
        back = op.Mul(op.Sub(op.Exp(log_p), "y"), seed)
    else:
        away = op.Sub(score, "y")
        op.ReduceMean(op.Mul(away, away), keepdims=0, to="loss")
        back = op.Mul(away, seed)
    for k in reversed(range(count)):
        ahead = op.Gemm(back, weights[2 * k], transB=1) if k or inner else None
        update(2 * k, acts[k], back, transA=1)
        update(2 * k + 1, op.const(np.ones((1, batch))), back)
        if k and ahead is not None:
            back = op.Mul(ahead, positive(op, acts[k]))
    return ahead


def convolutions(op: Body, problem: SimpleNamespace, weights: list[str], seed: str, update: Any, add: Any) -> None:
    """Add Conv, Relu, MaxPool, Conv, Relu in front of the dense layer, and their backward pass."""
    first, second = problem.weights[0].shape[0], problem.weights[2].shape[0]
    batch = problem.batch
    a = op.Relu(op.Conv("X", weights[0], weights[1], pads=[1] * 4))
    pooled = op.MaxPool(a, kernel_shape=[2, 2], strides=[2, 2])
    b = op.Relu(op.Conv(pooled, weights[2], weights[3], pads=[1] * 4))
    rows = op.Reshape(b, op.const([batch, second * 16], "int64"))
    ahead = dense(op, problem, weights[4:], rows, seed, lambda k, *x, **y: update(k + 4, *x, **y))
    back = op.Mul(op.Reshape(ahead, op.const([batch, second, 4, 4], "int64")), positive(op, b))
    add(2, op.Transpose(op.Conv(swapped(op, pooled), swapped(op, back), pads=[1] * 4), perm=[1, 0, 2, 3]))
    add(3, op.ReduceSum(back, op.const([0, 2, 3], "int64"), keepdims=0))
    back = op.ConvTranspose(back, weights[2], pads=[1] * 4)
    largest = op.CastLike(op.Equal(a, wide(op, pooled, batch, first)), a)
    pixels = op.Reshape(largest, op.const([batch * first, 64], "int64"))
    ties = op.Reshape(op.MatMul(pixels, op.const(BLOCKS.T)), op.const([batch, first, 4, 4], "int64"))
    back = wide(op, op.Div(back, ties), batch, first)
    back = op.Mul(op.Mul(back, largest), positive(op, a))
    add(0, op.Transpose(op.Conv(swapped(op, "X"), swapped(op, back), pads=[1] * 4), perm=[1, 0, 2, 3]))
    add(1, op.ReduceSum(back, op.const([0, 2, 3], "int64"), keepdims=0))


def positive(op: Body, value: str) -> str:
    """Return 1 where the value is positive, else 0, in one kernel (Sign and Greater with Cast are slower)."""
    return op.HardSigmoid(value, alpha=3.4e38, beta=0.0)


def swapped(op: Body, value: str) -> str:
    """Return images and channels exchanged."""
    return op.Transpose(value, perm=[1, 0, 2, 3])


def wide(op: Body, value: str, batch: int, channels: int) -> str:
    """Return every pixel of 4×4 images four times, as 8×8: as a matrix product, which Expand is far slower than."""
    rows = op.Reshape(value, op.const([batch * channels, 16], "int64"))
    return op.Reshape(op.MatMul(rows, op.const(BLOCKS)), op.const([batch, channels, 8, 8], "int64"))


def epoch_graph(problem: SimpleNamespace) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return the model and the values that it carries at the start."""
    op, adam = Body(), problem.optimizer == "adam"
    shapes = [w.shape if w.ndim > 1 or problem.kind == "cnn" else (1, *w.shape) for w in problem.weights]
    if problem.kind == "cnn":
        shapes[5] = (1, *shapes[5])
    carried = {f"p{k}": w.reshape(s) for k, (w, s) in enumerate(zip(problem.weights, shapes, strict=True))}
    weights, gradients = list(carried), [""] * len(shapes)
    sizes = [int(np.prod(s)) for s in shapes]
    if adam:
        flat = np.concatenate([w.ravel() for w in problem.weights])
        carried = {"theta": flat, "mean": np.zeros_like(flat), "squares": np.zeros_like(flat)}
        parts = op.Split("theta", op.const(sizes, "int64"), outputs=len(sizes), axis=0)
        weights = [op.Reshape(p, op.const(s, "int64")) for p, s in zip(parts, shapes, strict=True)]
    factor = (1 if problem.classes else 2) / problem.batch
    seed = op.const(factor) if adam else op.Mul("rate", op.const(-factor))

    def product(k: int, left: str, right: str, **attributes: int) -> None:
        if adam:
            gradients[k] = op.Gemm(left, right, **attributes)
        else:
            op.Gemm(left, right, weights[k], to=f"p{k}/next", **attributes)

    def add(k: int, gradient: str) -> None:
        gradients[k] = gradient if adam else op.Add(weights[k], gradient, to=f"p{k}/next")

    if problem.kind == "cnn":
        convolutions(op, problem, weights, seed, product, add)
    else:
        dense(op, problem, weights, "X", seed, product)
    if adam:
        line = op.const([-1], "int64")
        g = op.Concat(*[op.Reshape(x, line) for x in gradients], axis=0)
        op.Add(op.Mul("mean", op.const(BETA1)), op.Mul(g, op.const(1 - BETA1)), to="mean/next")
        op.Add(op.Mul("squares", op.const(BETA2)), op.Mul(op.Mul(g, g), op.const(1 - BETA2)), to="squares/next")
        root = op.Add(op.Sqrt("squares/next"), "epsilon")
        op.Sub("theta", op.Mul(op.Div("mean/next", root), "rate"), to="theta/next")
    width = [problem.batch, problem.classes or 1]
    features = [problem.batch, 1, 8, 8] if problem.kind == "cnn" else [problem.batch, problem.sizes[0]]
    scanned = {"X": features, "y": width, "rate": []} | ({"epsilon": []} if adam else {})
    state = {name: list(array.shape) for name, array in carried.items()}
    body = helper.make_graph(
        op.nodes,
        "step",
        values(state) + values(scanned),
        values({f"{n}/next": s for n, s in state.items()}) + values({"loss": []}),
    )
    ends = [f"{n}/end" for n in state]
    scan = helper.make_node(
        "Scan",
        [*(f"{n}/start" for n in state), *(f"{n}/steps" for n in scanned)],
        [*ends, "losses"],
        body=body,
        num_scan_inputs=len(scanned),
    )
    inputs = {f"{n}/start": s for n, s in state.items()} | {f"{n}/steps": ["steps", *s] for n, s in scanned.items()}
    outputs = dict(zip(ends, state.values(), strict=True)) | {"losses": ["steps"]}
    graph = helper.make_graph([scan], "epoch", values(inputs), values(outputs), op.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(), carried


def values(shapes: dict[str, list[Any]]) -> list[Any]:
    """Return the descriptions of float32 values."""
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]


def build(problem: SimpleNamespace, threads: int) -> tuple[Epoch, Weights]:
    """Return the epoch and the weights."""
    model, carried = epoch_graph(problem)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    X = problem.X.reshape(-1, 1, 8, 8) if problem.kind == "cnn" else problem.X
    y = np.eye(problem.classes, dtype=np.float32)[problem.y] if problem.classes else problem.y.reshape(-1, 1)
    done = 0

    def epoch(index: np.ndarray) -> float:
        nonlocal carried, done
        t = np.arange(done + 1, done + len(index) + 1)
        done += len(index)
        rates = np.full(len(t), problem.lr, np.float32)
        feeds = {"X/steps": X[index], "y/steps": y[index], "rate/steps": rates}
        if problem.optimizer == "adam":
            root = (1 - BETA2**t) ** 0.5
            feeds["rate/steps"] = (problem.lr * root / (1 - BETA1**t)).astype(np.float32)
            feeds["epsilon/steps"] = (EPSILON * root).astype(np.float32)
        *ends, losses = session.run(None, feeds | {f"{n}/start": a for n, a in carried.items()})
        carried = dict(zip(carried, ends, strict=True))
        return float(losses.mean())

    def weights() -> dict[str, np.ndarray]:
        arrays = list(carried.values())
        if problem.optimizer == "adam":
            arrays = np.split(carried["theta"], np.cumsum([w.size for w in problem.weights])[:-1])
        return {n: a.reshape(w.shape) for n, a, w in zip(problem.names, arrays, problem.weights, strict=True)}

    return epoch, weights


if __name__ == "__main__":
    main(build)
