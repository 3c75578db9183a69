"""Both derive engines and the training build's own graph, side by side: nodes of the step, and time per SGD step.

    python -m benchmarks.engines [rounds]

Every row is one process: the three epochs run in turn, round after round, on one thread; the ratios are medians of
pairs. `builder` is the training build's gradient graph as it comes with the published update behind it, `ort` the same
with ortpipe's update and with standard operators on dense networks, `native` ortpipe's own rules.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

from ortpipe import LOSSES, OPTIMIZERS, AddLossConfig, Artifact, Data, DeriveConfig, Rows, add_loss, convert, derive
from ortpipe.app.assemble import plan_of
from ortpipe.app.cli import packaged_conf
from ortpipe.app.schema import build
from ortpipe.data.feeds import feeds
from ortpipe.data.load import load
from ortpipe.fast import Fast
from ortpipe.graph.core.builder import Builder
from ortpipe.pipeline.run import run
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.engines.native import Native
from ortpipe.stages.derive.engines.ort import STANDARD, Ort
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.epoch_graph import build_epoch
from ortpipe.stages.train.links import Inputs, Link, Outputs, scale_by_rate
from ortpipe.stages.train.optimizers import Optimizer
from ortpipe.stages.train.step import build_step

STEPS = {32: 256, 64: 128, 256: 32}


@dataclass(frozen=True)
class Problem:
    """A loss model, the rows of an epoch, and how they are trained on."""

    loss: Artifact
    data: Data
    optimizer: Optimizer
    batch: int


def synthetic(sizes: Sequence[int], classes: int, batch: int) -> Problem:
    """Return an estimator of scikit-learn on random rows, for plain SGD."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(batch * STEPS[batch], sizes[0]))
    y = rng.integers(0, classes, len(X)) if classes else rng.normal(size=len(X))
    kind = MLPClassifier if classes else MLPRegressor
    estimator = kind(hidden_layer_sizes=sizes[1:], max_iter=1) if len(sizes) > 1 else LinearRegression()
    data = Data(Rows({"X": X}, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = convert(estimator, data=data)
    loss = add_loss(model, AddLossConfig(LOSSES["cross_entropy" if classes else "l2"]()))
    return Problem(loss, data, OPTIMIZERS["sgd"](lr=1e-3), batch)


def shipped(experiment: str) -> tuple[Problem, DeriveConfig]:
    """Return an experiment of conf/ up to its loss and penalty, and its derive config."""
    with initialize_config_dir(str(packaged_conf()), version_base="1.3"):
        composed = compose("config", [f"experiment={experiment}"], return_hydra_config=True)
    HydraConfig.instance().set_config(composed)
    with open_dict(composed):
        del composed.hydra
    config = build(OmegaConf.to_container(composed, resolve=True))
    data = load(config.data)
    plan = [step for step in plan_of(config) if step.stage.name in ("convert", "add_loss", "penalty")]
    loss = run(tuple(plan), {"data": data, "runtime": config.runtime})
    return Problem(loss, data, config.train.optimizer, config.train.batch_size), config.derive


@dataclass(frozen=True)
class Plain(Optimizer):
    """SGD's update as it is published: v ← μ·v − η·g, θ ← θ + μ·v − η·g."""

    momentum: float | None
    lr: float = 0.01

    def __call__(self) -> tuple[Link, ...]:
        """Return −η·g, then μ·v − η·g, if there is momentum."""
        if self.momentum is None:
            return (scale_by_rate(),)
        return scale_by_rate(), Link(self._look_ahead, ("velocity",), linear=True)

    def _look_ahead(self, op: Builder, x: Inputs) -> Outputs:
        momentum = x.const(op, self.momentum or 0.0)
        velocity = op.Add(op.Mul(*x.state, momentum), x.u)
        return op.Add(op.Mul(velocity, momentum), x.u), (velocity,)


def epoch(problem: Problem, derived: Artifact) -> tuple[int, int, Callable[[], object]]:
    """Return the step's nodes (without constants), the steps of an epoch, and a function that runs one epoch."""
    step = build_step(derived, TrainConfig(problem.optimizer))
    model = build_epoch(step)
    Fast().rewrite(model, problem.batch, step.seed, step.gradients, None)
    session = Session(model)
    values = {t.name: onnx.numpy_helper.to_array(t) for t in derived.model.graph.initializer}
    values = step.pack(step.init(values))
    rows = feeds(derived.model, derived.facts, problem.data.train)
    steps = len(problem.data.train) // problem.batch
    given = {
        n: a[: steps * problem.batch].reshape(steps, problem.batch, *a.shape[1:])
        for n, a in rows.items()
        if n in step.batch
    }
    given |= values
    given |= {n: np.full(steps, 1e-4, np.float32) for n in step.scalars}
    return _varying(step.graph), steps, lambda: session.run(given)


def _varying(graph: ir.Graph) -> int:
    """Count the nodes that the runtime does not compute on loading: those that an input leads to."""
    reached = set(graph.inputs)
    for node in graph:
        if any(x in reached for x in node.inputs):
            reached.update(node.outputs)
    return sum(any(y in reached for y in node.outputs) for node in graph)


def main(rounds: int) -> None:
    """Print the table."""
    print(
        "| model (batch) | nodes builder / ort / native | µs a step builder / ort / native | native against builder |"
    )
    print("|---|---|---|---|")
    rows: list[tuple[str, Problem, DeriveConfig]] = [
        (name, synthetic(sizes, classes, batch), DeriveConfig())
        for name, sizes, classes, batch in (
            ("linear 10→1", (10,), 0, 32),
            ("MLP 10→50→20→1", (10, 50, 20), 0, 32),
            ("digits MLP 64→100→10", (64, 100), 10, 64),
            ("MLP 100→256→128→1", (100, 256, 128), 0, 256),
        )
    ]
    experiments = sorted((packaged_conf() / "experiment").glob("*.yaml"))
    rows += [(f"experiment={path.stem}", *shipped(path.stem)) for path in experiments]
    for name, problem, config in rows:
        engines = [dataclasses.replace(config, engine=engine) for engine in (Ort(), Ort(), Native())]
        with mock.patch.dict(STANDARD, clear=True):
            builder = derive(problem.loss, engines[0])
        made = [builder, *(derive(problem.loss, engine) for engine in engines[1:])]
        plain = dataclasses.replace(problem, optimizer=Plain(getattr(problem.optimizer, "momentum", None)))
        problems = (plain, problem, problem)
        nodes, [steps, *_], runs = zip(*map(epoch, problems, made), strict=True)
        times = np.array([[_timed(run) for run in runs] for _ in range(rounds)]) / steps * 1e6
        medians = " / ".join(f"{t:.1f}" for t in np.median(times, axis=0))
        ratio = np.median(times[:, 0] / times[:, 2])
        print(f"| {name} ({problem.batch}) | {' / '.join(map(str, nodes))} | {medians} | {ratio:.2f}× |", flush=True)


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
