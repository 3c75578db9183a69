"""The loop over epochs: run the epoch graph on their batches, watch the losses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ortpipe.data.batches import Batches, StreamBatches
from ortpipe.errors import ConvergenceError
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import LOSS, ClipConfig, TrainConfig
from ortpipe.stages.train.diagnose import Diagnosis, shown
from ortpipe.stages.train.losses import Epoch, Losses
from ortpipe.stages.train.rates import rates, rows_per_epoch, steps_per_epoch
from ortpipe.stages.train.step import Step
from ortpipe.stages.train.update import per_step
from ortpipe.stages.train.validation import Validation
from ortpipe.timing import Stopwatch


class Loop:
    """Runs epochs of one epoch graph; `session` gives the graph loaded for an epoch's number and a batch size.

    Attributes:
        values: the carried values by name: parameters and optimizer state as they are now.
        losses: every loss so far; those that it starts with say how many epochs and steps are behind it.
        monitored: what is watched, which falls as it improves: see `Losses.watched`.
    """

    def __init__(
        self,
        session: Callable[[int, int], Session],
        step: Step,
        epoch_names: Mapping[str, str],
        values: Mapping[str, np.ndarray],
        batches: Batches | StreamBatches,
        config: TrainConfig,
        reduction: str,
        diagnose: Diagnosis,
        losses: Losses | None = None,
        watch: Stopwatch | None = None,
    ) -> None:
        self.values = dict(values)
        self.losses, self._watch = losses or Losses(), watch or Stopwatch()
        self.monitored = self.losses.watched(config.early_stop)
        self._session, self._step, self._names, self._config = session, step, epoch_names, config
        self._batches, self._rows = batches, rows_per_epoch(config, batches.count)
        self._dtype = next(iter(values.values())).dtype
        self._per_row, self._diagnose = reduction == "mean", diagnose
        self._latest: tuple[int, int, dict[str, np.ndarray]] | None = None  # epoch, batch size, feeds of the last run
        self._done = sum(len(run) for run in self.losses.step)
        self._epochs, self._total = config.epochs, config.epochs * steps_per_epoch(config, batches.count)
        self._whole = (self.values, len(self.losses.step), len(self.losses.train))

    def run(self, validate: Validation | None) -> Iterator[Epoch]:
        """Yield after each epoch.

        Raises:
            ConvergenceError: a loss (of training or validation) or a parameter is not finite.
        """
        start, behind = time.perf_counter(), self._done
        for number in range(len(self.losses.train) + 1, self._epochs + 1):
            sums = [self._run(number, part) for chunk in self._batches.epoch(number) for part in self._updates(chunk)]
            total = math.fsum(loss for run in sums for loss in run)  # exact: the same whatever the chunks
            self.losses.train.append(total / self._rows)
            self._check_values()
            self._watch.lap("batches")
            found = self._validate(validate, number)
            self._watch.lap("validation")
            self._whole = (self.values, len(self.losses.step), number)
            rate, seconds = float(self.losses.rate[-1][-1]), time.perf_counter() - start
            yield Epoch(
                *(number, self._epochs, self.losses.train[-1], found.pop(LOSS, None), rate, self._done),
                *(seconds, (self._done - behind) / seconds, found, dict(self._watch.seconds)),
            )
            self._watch.lap("listeners, checkpoints")

    def _validate(self, validate: Validation | None, number: int) -> dict[str, float]:
        """Evaluate the validation rows when it is their turn; keep what is found (nan when it is not)."""
        config, losses = self._config.early_stop, self.losses
        if validate is None:
            self.monitored.append(losses.train[-1])
            return {}
        due = number % self._config.validate_every == 0 or number == self._epochs
        found = validate(self._step.unpack(self.values)[0]) if due else {}
        self._check_validation(found)
        losses.validated(found, config)
        self.monitored += [config.sign * found[config.monitor]] if due else []
        return found

    def _updates(self, chunk: Mapping[str, np.ndarray]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield a chunk as it is, or, where updates accumulate, [updates, K, size, …]: K batches each."""
        config = self._config
        steps, rows = next(iter(chunk.values())).shape[:2]
        if config.drop_last and rows % config.batch_size:
            chunk = {name: array[:, : rows - rows % config.batch_size] for name, array in chunk.items()}
            rows -= rows % config.batch_size
        if config.accumulate == 1:
            yield from [chunk] if rows else []
            return
        whole = rows // config.batch_size
        for first, count, size in (
            (0, whole, config.batch_size),
            (whole * config.batch_size, 1, rows % config.batch_size),
        ):
            if count * size:
                cut = slice(first, first + count * size)
                yield {name: a[:, cut].reshape(steps, count, size, *a.shape[2:]) for name, a in chunk.items()}

    def _run(self, number: int, batches: Mapping[str, np.ndarray]) -> list[float]:
        """Do one step per batch; return each step's sum of the losses of its rows."""
        accumulated = self._config.accumulate > 1
        count, *sizes = next(iter(batches.values())).shape[: 3 if accumulated else 2]
        steps = np.arange(self._done + 1, self._done + count + 1)
        factor = self._config.schedule.factor(self.monitored)
        exact = rates(self._config, steps, number, self._total) * factor
        scalars = zip(self._step.scalars, per_step(self._config, exact, steps), strict=True)
        used = exact.astype(self._dtype)
        feeds = {self._names[name]: value for name, value in self.values.items()}
        feeds |= {self._names[name]: array for name, array in batches.items()}
        feeds |= {self._names[name]: value.astype(self._dtype) for name, value in scalars}
        self._latest = number, sizes[-1], feeds
        self._watch.lap("batches")
        session = self._session(number, sizes[-1])
        self._watch.lap("sessions")
        *carried, losses = session.run(feeds)
        self._watch.lap("session.run")
        self._check_losses(losses, used)
        self.values = dict(zip(self._step.carried, carried, strict=True))
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
        last = np.concatenate([*self.losses.step, losses[:bad]])[-5:]
        raise self._diverged(f"loss {losses[bad]} at step {self._done + bad + 1}", last, float(used[bad]), bad)

    def _check_values(self) -> None:
        arrays, state = self._step.unpack(self.values)
        for name, value in {**arrays, **{f"{slot} of {name}": array for (slot, name), array in state.items()}}.items():
            if not np.isfinite(value).all():
                last = self.losses.step[-1][-5:]
                raise self._diverged(
                    f"{name} is not finite after step {self._done}", last, float(self.losses.rate[-1][-1])
                )

    def _check_validation(self, found: Mapping[str, float]) -> None:
        for name, value in found.items():
            if not np.isfinite(value):
                last, rate = self.losses.validation, float(self.losses.rate[-1][-1])
                finite = np.array([loss for loss in last if not np.isnan(loss)][-5:])
                raise self._diverged(f"validation {name} {value} after step {self._done}", finite, rate)

    def _diverged(self, what: str, last: np.ndarray, rate: float, at: int = -1) -> ConvergenceError:
        assert self._latest is not None
        norms = shown(self._diagnose(*self._latest, at))
        finite = ", ".join(f"{loss:.6g}" for loss in last) or "none"
        return ConvergenceError(
            "Training must keep losses and parameters finite; nothing was published.",
            got=f"{what}; learning rate {rate:g}; largest gradient norms {norms}; last finite losses {finite}",
            fix=self._way_out(),
        )

    def _way_out(self) -> str:
        """Return what can keep training finite and is not set yet."""
        rate = getattr(self._config.optimizer, "lr", math.nan)  # lbfgs has none, and a solver of its own
        ways = [f"Lower the rate (train.optimizer.lr={rate / 10:g})", "scale the inputs"]
        if self._config.clip == ClipConfig():
            ways.append("clip gradients (train.clip.norm=1)")
        if not self._per_row:
            ways.append("use add_loss.reduction=mean")
        return f"{', '.join(ways[:-1])}, or {ways[-1]}."
