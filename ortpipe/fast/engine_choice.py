"""The rule of `runtime.engine=auto`: operators, sizes and the number of steps decide, never a measurement."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.stages.train.training import Training


def choose(training: Training, steps: int, obstacle: Callable[[str], str | None]) -> tuple[str, str]:
    """Return the engine for a number of steps, and the numbers that ruled out others.

    With n nodes in the gradient model, and a batch times the parameters below `c_products` and `xla_products`: C if
    n · steps reach `c_node_steps` and no product reads arrays of three axes, XLA if they reach `xla_node_steps`. Else
    ONNX Runtime. `obstacle` returns why an engine cannot train the model, or None; it is called last.
    """
    artifact, config = training.artifact, training.config
    if config.parallel is not None and config.parallel.transport == "devices":
        return "xla", "only it trains on devices in parallel"
    if config.parallel is not None or config.optimizer.solver == "lbfgs":
        return "onnxruntime", "parallel training and lbfgs need it"
    model, parameters = artifact.signature, sum(artifact.initializers[name].size for name in artifact.facts.gradients)
    nodes, products = len(model.graph.node), parameters * config.batch_size * config.accumulate
    reasons = [f"{nodes:,} nodes, {steps:,} steps"]
    for engine, most, least, stacked in (
        ("c", THRESHOLDS.c_products, THRESHOLDS.c_node_steps, _stacked(model)),
        ("xla", THRESHOLDS.xla_products, THRESHOLDS.xla_node_steps, 0),
    ):
        if nodes * steps < least:
            reason: str | None = f"nodes × steps is below {least:,}"
        elif products >= most:
            reason = f"rows × parameters is {products:,}, not below {most:,}"
        else:
            reason = f"{stacked:,} products of three axes" if stacked else obstacle(engine)
        if reason is None:
            return engine, "; ".join(reasons)
        reasons.append(f"not {engine}: {reason}")
    return "onnxruntime", "; ".join(reasons)


def _stacked(model: onnx.ModelProto) -> int:
    """Return the number of products that read an array of three axes or more, such as those of TabM."""
    graph = model.graph
    axes = {value.name: len(value.type.tensor_type.shape.dim) for value in (*graph.value_info, *graph.input)}
    axes |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type in ("MatMul", "Einsum")]
    return sum(any(axes.get(name, 0) > 2 for name in node.input) for node in products)
