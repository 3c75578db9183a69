"""Training on all rows at once: SciPy's L-BFGS-B drives the gradient graph."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import numpy as np

from ortpipe.artifact import Artifact, under
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvergenceError, TrainError
from ortpipe.graph import query
from ortpipe.graph.compose import extract
from ortpipe.graph.modes import draws
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.checkpoint import Checkpoint
from ortpipe.stages.train.config import LOSS, TrainConfig
from ortpipe.stages.train.early_stop import EarlyStop
from ortpipe.stages.train.initial import first_values
from ortpipe.stages.train.losses import Epoch, Losses
from ortpipe.stages.train.optimizers.lbfgs import LBFGS
from ortpipe.stages.train.step import cut
from ortpipe.stages.train.validation import Validation
from ortpipe.timing import Stopwatch

Arrays = Mapping[str, np.ndarray]


def minimize(
    artifact: Artifact,
    config: TrainConfig,
    data: Data,
    validate: Validation | None,
    runtime: RuntimeConfig | None,
    report: Callable[[object], None],
    start: Checkpoint | Arrays | None,
    watch: Stopwatch,
) -> dict[str, np.ndarray]:
    """Return train's tensors: the parameters at the end (the best, where training stops early) and the losses.

    The arguments are train's, and what evaluates the validation rows. From a start only its parameters are taken.

    Raises:
        ConvergenceError: the loss is not finite where the search has gone.
        TrainError: the loss is not a function of the parameters alone.
    """
    from scipy import optimize

    optimizer = config.optimizer
    assert isinstance(optimizer, LBFGS)
    rows = feeds(artifact.model, artifact.facts, in_memory(data))
    before = start.tensors if isinstance(start, Checkpoint) else start
    initial = first_values(artifact, config) if before is None else under("parameter", before)
    loss_and_gradient = _Objective(artifact, rows, initial, runtime)
    watch.lap("graphs")
    stop, begun = EarlyStop(config.early_stop, initial), time.perf_counter()
    losses, watched = Losses(), config.early_stop
    divisor = 1 if artifact.facts.reduction == "mean" else len(next(iter(rows.values())))

    def iterated(intermediate_result: optimize.OptimizeResult) -> None:
        loss, values = float(intermediate_result.fun), loss_and_gradient.parameters(intermediate_result.x)
        if not math.isfinite(loss):
            raise _diverged(loss, losses.train)
        losses.train.append(loss / divisor)
        number, found = len(losses.train), dict[str, float]()
        if validate is not None:
            found = validate(values) if number % config.validate_every == 0 else {}
            losses.validated(found, watched)
        seconds = time.perf_counter() - begun
        loss, validation = losses.train[-1], found.pop(LOSS, None)
        report(Epoch(number, config.epochs, loss, validation, None, number, seconds, number / seconds, found))
        stop.catch_up(losses.watched(watched), values)
        if stop.over:
            raise StopIteration

    found = optimize.minimize(
        loss_and_gradient,
        loss_and_gradient.flat(initial),
        jac=True,
        method="L-BFGS-B",
        callback=iterated,
        options={
            "maxcor": optimizer.history,
            "maxiter": config.epochs,
            "maxfun": 2**31 - 1,
            "maxls": 50,
            "gtol": optimizer.tolerance,
            "ftol": optimizer.improvement,
        },
    )
    if not losses.train:
        iterated(found)  # it began at the minimum, or found no way down from there
    end: Arrays = loss_and_gradient.parameters(found.x)
    if validate is not None and np.isnan(losses.validation[-1]):  # the last iteration always has one
        last = losses.train[-1]
        losses.only(len(losses.train) - 1)
        losses.train.append(last)
        losses.validated(validate(end), watched)
        stop.catch_up(losses.watched(watched), end)
    if watched.patience is not None and validate is not None:
        end = stop.best_values
    return {
        **{f"initial/{name}": array for name, array in initial.items()},
        **{f"parameter/{name}": array for name, array in end.items()},
        "losses/step": np.array(losses.train) * divisor,
        **losses.tensors(),
    }


def in_memory(data: Data) -> Rows:
    """Return the training rows, all of which lbfgs reads for every step."""
    if not isinstance(data.train, Rows):
        raise TrainError(
            "lbfgs trains on all rows at once, in memory.",
            got=f"a stream of {len(data.train)} rows",
            fix="Choose another train/optimizer, or set data.source.stream=false where they fit.",
        )
    return data.train


class _Objective:
    """The loss and its gradient as functions of one flat vector in float64."""

    def __init__(self, artifact: Artifact, rows: Arrays, initial: Arrays, runtime: RuntimeConfig | None) -> None:
        facts = artifact.facts
        assert facts.loss is not None
        if facts.statistics or draws(artifact.model):
            raise TrainError(
                "lbfgs minimizes a loss that depends on the parameters alone.",
                got="a model with running statistics or random draws",
                fix="Export it for inference, or choose another train/optimizer.",
            )
        outputs = [facts.loss, *facts.gradients.values()]
        model = extract(artifact.model, outputs)
        taken = query.input_types(model)
        self._types = {name: taken[name] for name in facts.gradients}
        self._shapes = {name: initial[name].shape for name in facts.gradients}
        self._rows, self._outputs = {k: v for k, v in rows.items() if k in taken}, outputs
        self._session = Session(model, runtime)

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        loss, *gradients = self._session.run({**self._rows, **self.parameters(x)}, self._outputs)
        return float(loss), self.flat(dict(zip(self._shapes, gradients, strict=True)))

    def flat(self, arrays: Arrays) -> np.ndarray:
        return np.concatenate([arrays[name].astype(np.float64).ravel() for name in self._shapes])

    def parameters(self, x: np.ndarray) -> dict[str, np.ndarray]:
        return {name: array.astype(self._types[name]) for name, array in cut(x, self._shapes).items()}


def _diverged(loss: float, train: list[float]) -> ConvergenceError:
    shown = ", ".join(f"{value:.6g}" for value in train[-5:]) or "none"
    return ConvergenceError(
        "Training must keep losses finite; nothing was published.",
        got=f"loss {loss} after {len(train)} iterations of lbfgs; last finite losses {shown}",
        fix="Scale the inputs, add a penalty, or choose another train/optimizer.",
    )
