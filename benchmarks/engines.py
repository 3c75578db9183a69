"""Both derive engines and the training build's own graph, side by side: nodes of the step, and time per SGD step.

    python -m benchmarks.engines [rounds]

Every row is one process: the three epochs run in turn, round after round, on one thread; the ratios are medians of
pairs. `builder` is the training build's gradient graph as it comes, `ort` the same with its own operators rewritten
in standard ones, `native` ortpipe's own rules.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
import onnx
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

from ortpipe import LOSSES, OPTIMIZERS, AddLossConfig, Artifact, Data, DeriveConfig, Rows, add_loss, convert, derive
from ortpipe.data.feeds import feeds
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.engines import ort_lowering
from ortpipe.stages.derive.engines.native import Native
from ortpipe.stages.derive.engines.ort import Ort
from ortpipe.stages.train.epoch import build_epoch, with_batch_size
from ortpipe.stages.train.step import build_step

STEPS = {32: 256, 64: 128, 256: 32}


def problem(sizes: Sequence[int], classes: int, batch: int) -> tuple[Artifact, Data]:
    """Return a loss model and as many rows as one run of the epoch takes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(batch * STEPS[batch], sizes[0]))
    y = rng.integers(0, classes, len(X)) if classes else rng.normal(size=len(X))
    kind = MLPClassifier if classes else MLPRegressor
    estimator = kind(hidden_layer_sizes=sizes[1:], max_iter=1) if len(sizes) > 1 else LinearRegression()
    data = Data(Rows({"X": X}, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = convert(estimator, data=data)
    return add_loss(model, AddLossConfig(LOSSES["cross_entropy" if classes else "l2"]())), data


def epoch(artifact: Artifact, data: Data, batch: int) -> tuple[int, Callable[[], object]]:
    """Return how many nodes the step has (constants aside), and a function that runs one epoch."""
    step = build_step(artifact, OPTIMIZERS["sgd"](lr=1e-3))
    model, names = build_epoch(step)
    session, steps = Session(with_batch_size(model, batch)), STEPS[batch]
    values = {t.name: onnx.numpy_helper.to_array(t) for t in artifact.model.graph.initializer}
    rows = feeds(artifact.model, artifact.facts, data.train)
    given = {names[n]: a.reshape(steps, batch, *a.shape[1:]) for n, a in rows.items() if n in step.scanned}
    given |= {names[n]: values[n] for n in step.carried}
    given[names[step.scanned[-1]]] = np.full(steps, 1e-3, np.float32)
    return sum(node.op_type != "Constant" for node in step.graph), lambda: session.run(given)


def main(rounds: int) -> None:
    """Print the table."""
    print(
        "| model (batch) | nodes builder / ort / native | µs a step builder / ort / native | native against builder |"
    )
    print("|---|---|---|---|")
    for name, sizes, classes, batch in (
        ("linear 10→1", (10,), 0, 32),
        ("MLP 10→50→20→1", (10, 50, 20), 0, 32),
        ("digits MLP 64→100→10", (64, 100), 10, 64),
        ("MLP 100→256→128→1", (100, 256, 128), 0, 256),
    ):
        loss, data = problem(sizes, classes, batch)
        with mock.patch.object(ort_lowering, "lower", return_value=None):
            builder = derive(loss, DeriveConfig(Ort()))
        made = [builder, derive(loss, DeriveConfig(Ort())), derive(loss, DeriveConfig(Native()))]
        nodes, runs = zip(*(epoch(artifact, data, batch) for artifact in made), strict=True)
        times = np.array([[_timed(run) for run in runs] for _ in range(rounds)]) / STEPS[batch] * 1e6
        medians = " / ".join(f"{t:.1f}" for t in np.median(times, axis=0))
        ratio = np.median(times[:, 0] / times[:, 2])
        print(f"| {name} ({batch}) | {' / '.join(map(str, nodes))} | {medians} | {ratio:.2f}× |", flush=True)


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
