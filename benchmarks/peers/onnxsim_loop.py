"""onnxsim's training loop: forward, backward and update in one ONNX graph, one run of it a step, state as OrtValues.

Its gradient engine takes one fixed batch size, and no SoftmaxCrossEntropyLoss or Flatten: the loss is written out.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxsim.compile_training import CustomOptimizer, compile_training_loop
from plain import Epoch, Weights, main

SGD = """<ir_version: 8, opset_import: ["": 17]>
 sgd (float[N] param, float[N] grad, float lr) => (float[N] next) { step = Mul(lr, grad) next = Sub(param, step) }"""


def loss_model(problem: SimpleNamespace) -> onnx.ModelProto:
    """Return the network with a mean loss behind it, for whole batches."""
    model = onnx.load(problem.folder / "model.onnx")
    graph, width = model.graph, problem.classes or 1
    features = [problem.batch, 1, 8, 8] if problem.kind == "cnn" else [problem.batch, problem.sizes[0]]
    for node in [node for node in graph.node if node.op_type == "Flatten"]:
        graph.initializer.append(numpy_helper.from_array(np.array([problem.batch, -1]), "flat_shape"))
        node.CopyFrom(helper.make_node("Reshape", [node.input[0], "flat_shape"], node.output))
    add = graph.node.append
    if problem.classes:
        add(helper.make_node("Softmax", ["scores"], ["p"], axis=-1))
        add(helper.make_node("Log", ["p"], ["log_p"]))
        add(helper.make_node("Mul", ["log_p", "y"], ["terms"]))
        factor = -1 / problem.batch
    else:
        add(helper.make_node("Sub", ["scores", "y"], ["away"]))
        add(helper.make_node("Mul", ["away", "away"], ["terms"]))
        factor = 1 / problem.batch
    add(helper.make_node("ReduceSum", ["terms"], ["total"], keepdims=0))
    graph.initializer.append(numpy_helper.from_array(np.float32(factor), "factor"))
    add(helper.make_node("Mul", ["total", "factor"], ["loss"]))
    del graph.input[:], graph.output[:]
    shapes: dict[str, list[Any]] = {"X": features, "y": [problem.batch, width]}
    graph.input.extend(helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items())
    graph.output.append(helper.make_tensor_value_info("loss", 1, []))
    return model


def build(problem: SimpleNamespace, threads: int) -> tuple[Epoch, Weights]:
    """Return the epoch and the weights; the runtime takes as many threads as the process has cores."""
    adam = problem.optimizer == "adam"
    optimizer = "adam" if adam else CustomOptimizer(onnx.parser.parse_model(SGD), 0)
    loop = compile_training_loop(loss_model(problem), "loss", problem.names, optimizer)
    X = problem.X.reshape(-1, 1, 8, 8) if problem.kind == "cnn" else problem.X
    y = np.eye(problem.classes, dtype=np.float32)[problem.y] if problem.classes else problem.y.reshape(-1, 1)

    def epoch(index: np.ndarray) -> float:
        feeds = zip(X[index], y[index], strict=True)
        return float(np.mean([loop({"X": rows, "y": truth}, problem.lr) for rows, truth in feeds]))

    return epoch, lambda: dict(loop.parameters())


if __name__ == "__main__":
    main(build)
