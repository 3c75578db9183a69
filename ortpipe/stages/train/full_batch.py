"""The L-BFGS solver: SciPy's L-BFGS-B drives the gradient graph on all rows at once."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays, in_folder
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvergenceError, TrainError
from ortpipe.graph.core.check import finish_apart
from ortpipe.graph.forms.modes import is_random
from ortpipe.stages.train.checkpoints import first_epochs
from ortpipe.stages.train.config import LOSS
from ortpipe.stages.train.epoch_graph import load_session
from ortpipe.stages.train.training import EarlyStop, Epoch, Losses, Training
from ortpipe.stages.train.validation import input_types
from ortpipe.stages.train.vector import VECTOR, Vector


def solve(training: Training) -> dict[str, np.ndarray]:
    """Return train's tensors: the losses and the final parameters (the best ones if training stops early).

    A start only provides parameters.

    Raises:
        ConvergenceError: the loss becomes non-finite during the search.
        TrainError: the loss does not depend on the parameters alone.
    """
    from scipy import optimize

    rows, before = training.feed(in_memory(training.data)), training.before
    initial = training.first_values() if before is None else in_folder("parameter", before)
    search = _Search(training, rows, initial)
    settings = vars(training.config.optimizer)
    result = optimize.minimize(
        search.objective,
        search.objective.flat(initial),
        jac=True,
        method="L-BFGS-B",
        callback=search.iterated,
        options={
            "maxcor": settings["history"],
            "maxiter": training.config.epochs,
            "maxfun": 2**31 - 1,
            "maxls": 50,
            "gtol": settings["tolerance"],
            "ftol": settings["improvement"],
        },
    )
    end = search.ended(result)
    return {
        **{f"initial/{name}": array for name, array in initial.items()},
        **{f"parameter/{name}": array for name, array in end.items()},
        "losses/step": np.array(search.losses.train) * search.divisor,
        **search.losses.tensors(),
    }


class _Search:
    """The iterations of a search: their losses, validation and early stopping."""

    def __init__(self, training: Training, rows: Arrays, initial: Arrays) -> None:
        self.objective, self.losses = _Objective(training, rows, initial), Losses(training.config.early_stop)
        self.divisor = 1 if training.artifact.facts.reduction == "mean" else len(next(iter(rows.values())))
        self._training, self._stop = training, EarlyStop[Arrays](training.config.early_stop, initial)

    def iterated(self, intermediate_result: Any) -> None:
        """Validate and report an iteration; SciPy's search ends with StopIteration."""
        config, validate, losses = self._training.config, self._training.validate, self.losses
        loss, values = float(intermediate_result.fun), self.objective.parameters(intermediate_result.x)
        if not math.isfinite(loss):
            shown = ", ".join(f"{value:.6g}" for value in losses.train[-5:]) or "none"
            raise ConvergenceError(
                "Losses must stay finite; nothing was published.",
                got=f"loss {loss} after {len(losses.train)} iterations of lbfgs; last finite losses {shown}",
                fix="Scale the inputs, add a penalty, or choose another {@train/optimizer}.",
            )
        number = len(losses.train) + 1
        metrics = None if validate is None else validate(values) if number % config.validate_every == 0 else {}
        losses.add(loss / self.divisor, metrics)
        watched = {**(metrics or {})}
        validation = watched.pop(LOSS, None)
        epoch = Epoch(number, config.epochs, losses.train[-1], validation, None, number, number, watched)
        self._training.report(epoch)
        self._stop(losses.watched, values)
        if self._stop.over:
            raise StopIteration

    def ended(self, result: Any) -> Arrays:
        """Validate the last iteration; return the parameters that training keeps."""
        config, validate = self._training.config, self._training.validate
        if not self.losses.train:
            self.iterated(result)  # the start is a minimum, or the line search failed
        end: Arrays = self.objective.parameters(result.x)
        if validate is not None and np.isnan(self.losses.validation[-1]):
            last, self.losses = self.losses.train[-1], first_epochs(self.losses, len(self.losses.train) - 1)
            self.losses.add(last, validate(end))
            self._stop(self.losses.watched, end)
        restored = config.early_stop.patience is not None and validate is not None
        return self._stop.best_values if restored else end


def in_memory(data: Data) -> Rows:
    """Return the training rows in memory, because every step reads all of them."""
    if not isinstance(data.train, Rows):
        raise TrainError(
            "lbfgs needs all rows in memory.",
            got=f"a stream of {len(data.train)} rows",
            fix="Choose another {@train/optimizer}, or set {@data.source.stream}=false if they fit.",
        )
    return data.train


class _Objective:
    """The loss and its gradient as functions of one flat vector in float64."""

    def __init__(self, training: Training, rows: Arrays, initial: Arrays) -> None:
        artifact, facts = training.artifact, training.artifact.facts
        assert facts.loss is not None
        self._names, self._outputs = [*facts.gradients], [facts.loss, *facts.gradients.values()]
        model = artifact.ir_model(self._outputs)
        if facts.statistics or is_random(model):
            raise TrainError(
                "lbfgs needs a loss that only depends on the parameters.",
                got="a model with running statistics or random draws",
                fix="Choose another {@train/optimizer}, or a model that was exported for inference.",
            )
        self._types = input_types(model)
        self._layout = Vector({name: initial[name].shape for name in facts.gradients}, ir.DataType.DOUBLE)
        self._rows = {name: array for name, array in rows.items() if name in self._types}
        proto, weights = finish_apart(model, deep=True)
        self._session = load_session(training.runtime, proto, weights)

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        loss, *gradients = self._session.run({**self._rows, **self.parameters(x)}, self._outputs)
        return float(loss), self.flat(dict(zip(self._names, gradients, strict=True)))

    def flat(self, arrays: Arrays) -> np.ndarray:
        return self._layout.pack(arrays)[VECTOR].astype(np.float64)

    def parameters(self, x: np.ndarray) -> dict[str, np.ndarray]:
        return {name: array.astype(self._types[name]) for name, array in self._layout.unpack({VECTOR: x}).items()}
