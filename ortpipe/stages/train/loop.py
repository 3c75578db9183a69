"""The loop over epochs: run the epoch graph on their batches, watch the losses."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ortpipe.data.batches import Batches
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Rows
from ortpipe.errors import ConvergenceError
from ortpipe.graph.modes import is_random, set_seeds
from ortpipe.runtime.session import Session
from ortpipe.stages.train.checkpoint import tensors_of
from ortpipe.stages.train.config import LOSS, ClipConfig
from ortpipe.stages.train.diagnose import Run, gradient_norms, shown
from ortpipe.stages.train.epoch import EpochGraph, build_epoch
from ortpipe.stages.train.losses import PHASES, Epoch, Losses
from ortpipe.stages.train.passes import for_batch_size
from ortpipe.stages.train.rates import rates, rows_per_epoch, steps_per_epoch
from ortpipe.stages.train.step import TrainStep
from ortpipe.stages.train.training import Training

Load = Callable[[int, int], Session]  # loads the epoch graph for an epoch's number and a batch size


class Loop:
    """Runs epochs of a step's epoch graph.

    Args:
        training: what is trained.
        step: of it.
        values: the carried values by name.
        losses: those so far: they say how many epochs and steps are behind it.

    Attributes:
        values: the carried values as they are now.
        losses: every loss so far.
        monitored: what is watched, which falls as it improves: see `Losses.watched`.
    """

    def __init__(self, training: Training, step: TrainStep, values: Mapping[str, np.ndarray], losses: Losses) -> None:
        config, facts, model = training.config, training.artifact.facts, training.artifact.model
        self.values, self.losses, self.monitored = dict(values), losses, losses.watched(config.early_stop)
        self._training, self._config, self._step = training, config, step
        self._epoch = build_epoch(step)
        self._load = _loader(self._epoch, training)

        def feed(rows: Rows) -> dict[str, np.ndarray]:
            return {k: v for k, v in feeds(model, facts, rows).items() if k in step.batch}

        size = config.batch_size * config.accumulate
        self._batches = Batches(training.data.train, feed, size, seed=config.seed, shuffle=config.shuffle)
        self._rows = rows_per_epoch(config, self._batches.count)
        self._total = config.epochs * steps_per_epoch(config, self._batches.count)
        self._per_row = facts.reduction != "sum"
        self._latest: Run | None = None
        self._done = sum(len(run) for run in losses.step)
        self._whole = (self.values, len(losses.step), len(losses.train))

    def run(self) -> Iterator[Epoch]:
        """Yield after each epoch.

        Raises:
            ConvergenceError: a loss (of training or validation) or a parameter is not finite.
        """
        behind, epochs = self._done, self._config.epochs
        for number in range(len(self.losses.train) + 1, epochs + 1):
            sums = [self._run(number, part) for chunk in self._batches.epoch(number) for part in self._updates(chunk)]
            total = math.fsum(loss for run in sums for loss in run)  # exact: the same whatever the chunks
            self.losses.train.append(total / self._rows)
            self._check_values()
            PHASES.debug("batches")
            metrics = self._validate(number)
            PHASES.debug("validation")
            self._whole = (self.values, len(self.losses.step), number)
            loss, rate, validation = self.losses.train[-1], float(self.losses.rate[-1][-1]), metrics.pop(LOSS, None)
            yield Epoch(number, epochs, loss, validation, rate, self._done, self._done - behind, metrics)
            PHASES.debug("listeners, checkpoints")

    def _validate(self, number: int) -> dict[str, float]:
        """Evaluate the validation rows when it is their turn; keep what is found (nan when it is not)."""
        config, losses, validate = self._config.early_stop, self.losses, self._training.validate
        if validate is None:
            self.monitored.append(losses.train[-1])
            return {}
        due = number % self._config.validate_every == 0 or number == self._config.epochs
        metrics = validate(self._step.parameters(self.values)) if due else {}
        self._check_validation(metrics)
        losses.validated(metrics, config)
        self.monitored += [config.sign * metrics[config.monitor]] if due else []
        return metrics

    def _updates(self, chunk: Mapping[str, np.ndarray]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield a chunk as it is, or, where updates accumulate, [updates, K, size, …]: K batches each."""
        config = self._config
        steps, rows = next(iter(chunk.values())).shape[:2]
        whole, rest = divmod(rows, config.batch_size)
        if config.drop_last and rest:
            chunk = {name: array[:, :-rest] for name, array in chunk.items()}
            rows, rest = rows - rest, 0
        if config.accumulate == 1:
            yield from [chunk] if rows else []
            return
        for first, count, size in ((0, whole, config.batch_size), (rows - rest, 1, rest)):
            if count * size:
                cut = slice(first, first + count * size)
                yield {name: a[:, cut].reshape(steps, count, size, *a.shape[2:]) for name, a in chunk.items()}

    def _run(self, number: int, batches: Mapping[str, np.ndarray]) -> list[float]:
        """Do one step per batch; return each step's sum of the losses of its rows."""
        step, names = self._step, self._epoch.names
        count, *sizes = next(iter(batches.values())).shape[: 3 if self._config.accumulate > 1 else 2]
        steps = np.arange(self._done + 1, self._done + count + 1)
        exact = rates(self._config, steps, number, self._total) * self._config.schedule.factor(self.monitored)
        scalars = {name: function(exact, steps).astype(step.dtype) for name, function in step.scalars.items()}
        feed = {names[name]: value for name, value in {**self.values, **batches, **scalars}.items()}
        self._latest = Run(number, sizes[-1], feed)
        PHASES.debug("batches")
        session = self._load(number, sizes[-1])
        PHASES.debug("sessions")
        *carried, losses = session.run(feed)
        PHASES.debug("session.run")
        used = exact.astype(step.dtype)
        self._check_losses(losses, used)
        self.values = dict(zip(step.carried, carried, strict=True))
        self.losses.step.append(losses)
        self.losses.rate.append(used)
        self._done += count
        rows = math.prod(sizes if self._per_row else sizes[:-1])  # a sum is of the rows of each of K batches
        return (losses.astype(np.float64) * rows).tolist()

    def back_to_whole_epochs(self) -> int:
        """Forget what was done of an epoch that was interrupted; return how many are whole."""
        self.values, steps, epochs = self._whole
        for runs in (self.losses.step, self.losses.rate):
            del runs[steps:]
        self.losses.only(epochs)
        self.monitored = self.losses.watched(self._config.early_stop)
        return epochs

    def _check_losses(self, losses: np.ndarray, used: np.ndarray) -> None:
        finite = np.isfinite(losses)
        if finite.all():
            return
        bad = int(np.argmin(finite))
        last = np.concatenate([*self.losses.step, losses[:bad]])
        raise self._diverged(f"loss {losses[bad]} at step {self._done + bad + 1}", last, float(used[bad]), bad)

    def _check_values(self) -> None:
        for name, value in tensors_of(self._step, self.values).items():
            if not np.isfinite(value).all():
                what = name.removeprefix("parameter/")
                raise self._diverged(f"{what} is not finite after step {self._done}", self.losses.step[-1])

    def _check_validation(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if not np.isfinite(value):
                last = np.array(self.losses.validation)
                raise self._diverged(f"validation {name} {value} after step {self._done}", last[~np.isnan(last)])

    def _diverged(self, what: str, last: np.ndarray, rate: float | None = None, at: int = -1) -> ConvergenceError:
        assert self._latest is not None
        load = _loader(self._epoch, self._training)
        norms = shown(gradient_norms(self._training, self._step, self._epoch, load, self._latest, at))
        rate = float(self.losses.rate[-1][-1]) if rate is None else rate
        finite = ", ".join(f"{loss:.6g}" for loss in last[-5:]) or "none"
        return ConvergenceError(
            "Training must keep losses and parameters finite; nothing was published.",
            got=f"{what}; learning rate {rate:g}; largest gradient norms {norms}; last finite losses {finite}",
            fix=self._way_out(),
        )

    def _way_out(self) -> str:
        """Return what can keep training finite and is not set yet."""
        ways = [f"Lower the rate (train.optimizer.lr={self._config.optimizer.lr / 10:g})", "scale the inputs"]
        if self._config.clip == ClipConfig():
            ways.append("clip gradients (train.clip.norm=1)")
        if not self._per_row:
            ways.append("use add_loss.reduction=mean")
        return f"{', '.join(ways[:-1])}, or {ways[-1]}."


def _loader(epoch: EpochGraph, training: Training) -> Load:
    """Return what loads the epoch graph.

    One that draws (dropout) is loaded anew for each epoch, with seeds of that epoch: its draws follow from the
    config's seed and the epoch's number alone.
    """
    sized = functools.cache(functools.partial(for_batch_size, epoch))
    load = functools.cache(lambda size: Session(sized(size), training.runtime))
    if not is_random(epoch.model):
        return lambda number, size: load(size)

    @functools.lru_cache(maxsize=2)  # whole batches, and the partial one
    def load_seeded(number: int, size: int) -> Session:
        [first] = np.random.default_rng([training.config.seed, number, size]).integers(1, 2**24, 1)
        model = ir.from_proto(sized(size))
        set_seeds(model, int(first))
        return Session(ir.to_proto(model), training.runtime)

    return load_seeded
