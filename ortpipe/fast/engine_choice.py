"""The rule of `runtime.engine=auto`: operators, sizes and the number of steps decide, never a measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import onnx

from ortpipe.errors import EngineError
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.runtime import c, xla
from ortpipe.stages.train.training import Training


def choose(training: Training, steps: int, installed: Collection[str]) -> tuple[str, str]:
    """Return the engine for a number of steps, and the reason.

    With n nodes in the gradient model, and a batch times the parameters below `c_products` and `xla_products`: C if
    n · steps reach `c_node_steps`, XLA if they reach `xla_node_steps`. Else ONNX Runtime. An engine must be installed
    and know all operators.
    """
    artifact, config = training.artifact, training.config
    if config.parallel is not None or config.optimizer.solver == "lbfgs":
        return "onnxruntime", "parallel training and lbfgs need it"
    model, parameters = artifact.signature, sum(artifact.initializers[name].size for name in artifact.facts.gradients)
    nodes, products = len(model.graph.node), parameters * config.batch_size * config.accumulate
    for engine, module, most, least in (
        ("c", c, THRESHOLDS.c_products, THRESHOLDS.c_node_steps),
        ("xla", xla, THRESHOLDS.xla_products, THRESHOLDS.xla_node_steps),
    ):
        if engine in installed and products < most and nodes * steps >= least and _supports(module, model):
            return engine, f"{nodes:,} nodes, {steps:,} steps"
    return "onnxruntime", f"{nodes:,} nodes, {steps:,} steps"


def _supports(engine: object, model: onnx.ModelProto) -> bool:
    """Return whether an engine knows all operators of a model."""
    with contextlib.suppress(EngineError):
        engine.check_operators(model)  # type: ignore[attr-defined]
        return True
    return False
