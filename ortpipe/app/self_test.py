"""Train a tiny problem through the stages and compare its losses with the same arithmetic in NumPy."""

import numpy as np
import onnx

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    Data,
    DeriveConfig,
    Rows,
    RuntimeConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    train,
)
from ortpipe.errors import TrainError
from ortpipe.stages.derive.engines import ENGINES

MODEL = """<ir_version: 8, opset_import: ["": 17]> line (float[N, 3] X) => (float[N, 1] y)
  <float[3, 1] w = {0, 0, 0}, float[1] b = {0}> { h = MatMul(X, w) y = Add(h, b) }"""
ROWS, BATCH, EPOCHS, RATE = 64, 16, 25, 0.1
TOLERANCE = 1e-4  # of a float32 loss, relative to the first one


def self_test(engine: str, runtime: RuntimeConfig) -> str:
    """Train a line on 64 rows with the gradients of an engine, and describe the result.

    Raises:
        TrainError: the losses differ from those of NumPy, or fall too little.
    """
    X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    y = X @ np.array([1.0, -2.0, 3.0], np.float32) + 0.5
    loss = add_loss(convert(onnx.parser.parse_model(MODEL)), AddLossConfig(LOSSES["l2"](), reduction="mean"))
    gradient = derive(loss, DeriveConfig(engine=ENGINES[engine]()))
    config = TrainConfig(OPTIMIZERS["sgd"](lr=RATE), epochs=EPOCHS, batch_size=BATCH, shuffle=False)
    losses = train(gradient, config, data=Data(Rows({"X": X}, y)), runtime=runtime).tensors["losses/step"]
    expected = descent(X, y)
    worst = float(abs(losses - expected).max() / expected[0])
    if not worst <= TOLERANCE or not losses[-1] < losses[0] / 1000:
        raise TrainError(
            "Training a line must give the losses of gradient descent in NumPy.",
            got=f"engine {engine}: {losses[0]:.6g} to {losses[-1]:.6g} in {len(losses)} steps, NumPy "
            f"{expected[0]:.6g} to {expected[-1]:.6g}",
            fix="Install onnxruntime again in a fresh environment; if that does not help, report it with this output.",
        )
    return f"{len(losses)} steps with {engine} gradients, loss {losses[0]:.3g} to {losses[-1]:.2g} as in NumPy"


def descent(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the loss of every step: ℓ = mean (X·w + b − y)², w ← w − η·∂ℓ/∂w, b ← b − η·∂ℓ/∂b, in float64."""
    w, b, losses = np.zeros(3), 0.0, []
    for _ in range(EPOCHS):
        for first in range(0, ROWS, BATCH):
            rows = X[first : first + BATCH].astype(np.float64)
            residuals = rows @ w + b - y[first : first + BATCH]
            losses.append((residuals**2).mean())
            w, b = w - RATE * 2 * rows.T @ residuals / BATCH, b - RATE * 2 * residuals.mean()
    return np.array(losses)
