"""The rule of `runtime.engine=auto`: operators, sizes and the number of steps decide, never a measurement."""

from __future__ import annotations

from collections.abc import Callable

from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.stages.train.training import Training


def choose(training: Training, steps: int, obstacle: Callable[[str], str | None]) -> tuple[str, str]:
    """Return the engine for a number of steps, and the numbers that ruled out others.

    With n nodes in the gradient model, and a batch times the parameters below `c_products` and `xla_products`: C if
    n · steps reach `c_node_steps`, XLA if they reach `xla_node_steps`. Else ONNX Runtime. `obstacle` returns why an
    engine cannot train the model, or None; it is called last.
    """
    artifact, config = training.artifact, training.config
    if config.parallel is not None and config.parallel.transport == "devices":
        return "xla", "only it trains on devices in parallel"
    if config.parallel is not None or config.optimizer.solver == "lbfgs":
        return "onnxruntime", "parallel training and lbfgs need it"
    parameters = sum(artifact.initializers[name].size for name in artifact.facts.gradients)
    nodes, products = len(artifact.signature.graph.node), parameters * config.batch_size * config.accumulate
    reasons = [f"{nodes:,} nodes, {steps:,} steps"]
    for engine, most, least in (
        ("c", THRESHOLDS.c_products, THRESHOLDS.c_node_steps),
        ("xla", THRESHOLDS.xla_products, THRESHOLDS.xla_node_steps),
    ):
        if nodes * steps < least:
            reason: str | None = f"nodes × steps is below {least:,}"
        elif products >= most:
            reason = f"rows × parameters is {products:,}, not below {most:,}"
        else:
            reason = obstacle(engine)
        if reason is None:
            return engine, "; ".join(reasons)
        reasons.append(f"not {engine}: {reason}")
    return "onnxruntime", "; ".join(reasons)
