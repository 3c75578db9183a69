"""The mini-batch solver: run the epoch graph on each epoch's batches, validate, stop early, report."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe.artifact import Arrays, in_folder
from ortpipe.data.batches import Batches
from ortpipe.doors import later
from ortpipe.stages.train.config import LOSS
from ortpipe.stages.train.epoch_graph import loader, runs_in_onnxruntime
from ortpipe.stages.train.step import TrainStep, build_step
from ortpipe.stages.train.training import (
    EarlyStop,
    Epoch,
    Losses,
    Training,
    factor,
    rates,
    rows_per_epoch,
    steps_per_epoch,
)

if TYPE_CHECKING:  # for starts, settings and values beyond a plain training
    from ortpipe.stages.train.accumulate import updates
    from ortpipe.stages.train.checkpoints import check_start, losses_so_far, save, save_whole_epochs
    from ortpipe.stages.train.diagnosis import diverged_epoch, diverged_step
    from ortpipe.stages.train.large_model import LargeLoop as large_loop
    from ortpipe.stages.train.parallel import parallel_loop
else:
    later(__name__)

AHEAD = 1024  # steps whose rates are computed at once: in a short epoch, calls take longer than numbers
LARGE_STATE = 2**26  # carried bytes from which on a run computes one step: a Scan would hold two more copies of them


def solve(training: Training) -> dict[str, np.ndarray]:
    """Return train's tensors.

    Raises:
        ConvergenceError: a loss or a parameter is not finite; `tensors` are those of the last complete epoch.
        DataError: the rows do not fit the model.
        TrainError: the start belongs to another training.
    """
    config, before = training.config, training.before
    step, initial = build_step(training.artifact, config), training.first_values()
    if before is not None:
        check_start(training, step)
    values = step.pack(step.init(initial) if before is None else before)
    large = sum(array.nbytes for array in values.values()) >= LARGE_STATE and runs_in_onnxruntime(training.runtime)
    kind = parallel_loop if config.parallel is not None else large_loop if large else EpochLoop
    loop: EpochLoop = kind(training, step, initial, values)
    stop = EarlyStop(config.early_stop, loop.whole)
    stop(loop.losses.watched, loop.whole)
    if best := in_folder("best", before or {}):
        stop.best_values = step.pack(best)
    saved, every, minutes = time.monotonic(), config.checkpoint.epochs, config.checkpoint.minutes
    try:
        for result in () if stop.over else loop.epochs():
            training.report(result)
            stop(loop.losses.watched, loop.whole)
            if stop.over:
                break
            late = minutes is not None and time.monotonic() - saved >= 60 * minutes
            if late or (every is not None and result.number % every == 0):
                save(loop, stop)
                saved = time.monotonic()
    except BaseException as error:
        save_whole_epochs(error, loop, stop)
        raise
    finally:
        loop.close()
    restored = config.early_stop.patience is not None and training.validate is not None
    return loop.tensors(stop.best_values if restored else loop.values)


class EpochLoop:
    """Runs the epochs of a step's epoch graph.

    `values` are carried at the moment, `whole` after the last complete epoch, `counts` are the epochs and runs until
    then; `losses` are all so far.
    """

    single = False  # whether each run computes one step

    def __init__(self, training: Training, step: TrainStep, initial: Arrays, values: Arrays) -> None:
        config, before = training.config, training.before
        self.training, self.step, self.values, self._initial = training, step, values, initial
        self.losses = Losses(config.early_stop) if before is None else losses_so_far(config.early_stop, before)
        self.load = loader(training, step)
        self._batches = Batches(
            training.data.train,
            lambda rows: {name: a for name, a in training.feed(rows).items() if name in step.batch},
            config.batch_size * config.accumulate,
            seed=config.seed,
            shuffle=config.shuffle,
            single=self.single,
            reused=True,
        )
        self._rows = rows_per_epoch(config, self._batches.count)
        self._total = config.epochs * steps_per_epoch(config, self._batches.count)
        self.latest: tuple[int, int, Arrays] = (0, 0, {})  # the last run: epoch, rows per batch, feeds
        self.done = self._begun = sum(len(run) for run in self.losses.step)
        self.whole, self.counts = self.values, (len(self.losses.train), len(self.losses.step))
        self._ahead: tuple[Any, int, list[np.ndarray]] = (None, 0, [])  # see `_rates`

    def epochs(self) -> Iterator[Epoch]:
        """Yield after each epoch; raise if a training or validation loss, or a parameter, is not finite."""
        for number in range(len(self.losses.train) + 1, self.training.config.epochs + 1):
            runs = (run for chunk in self._chunks(number) for run in self._steps(number, chunk))
            loss = math.fsum(chain.from_iterable(runs)) / self._rows  # exact, and independent of chunks
            metrics = self._validated(number)
            self.losses.add(loss, metrics)
            self.whole, self.counts = self.values, (number, len(self.losses.step))
            watched, rate = {**(metrics or {})}, float(self.losses.rate[-1][-1])
            validation, steps = watched.pop(LOSS, None), self.done - self._begun
            yield Epoch(number, self.training.config.epochs, loss, validation, rate, self.done, steps, watched)

    def close(self) -> None:
        """Free what the loop holds."""

    def _chunks(self, number: int) -> Iterator[Any]:
        return self._batches.epoch(number)

    def tensors(self, values: Arrays) -> dict[str, np.ndarray]:
        """Return train's tensors with these carried values."""
        first = {f"initial/{name}": array for name, array in self._initial.items()}
        return {**first, **self.step.unpack(values), **self.losses.tensors()}

    def _validated(self, number: int) -> dict[str, float] | None:
        """Return the results on the validation rows: {} if the epoch is not validated, None without rows."""
        config, validate = self.training.config, self.training.validate
        finite = all(np.count_nonzero(np.isfinite(a)) == a.size for a in self.values.values())  # `all()` is slow
        metrics: dict[str, float] | None = None if validate is None else {}
        if finite and validate is not None and (number % config.validate_every == 0 or number == config.epochs):
            metrics = validate(self.step.parameters(self.values))
        if not finite or not all(map(np.isfinite, (metrics or {}).values())):
            raise diverged_epoch(self, metrics)
        return metrics

    def _steps(self, number: int, chunk: Any) -> Iterable[list[float]]:
        """Run one step per batch of a chunk; yield the sums of their rows' losses, run by run."""
        config = self.training.config
        for part in updates(config, chunk) if config.accumulate > 1 or config.drop_last else [chunk]:
            count, *sizes = next(iter(part.values())).shape[: 2 + (config.accumulate > 1)]  # K batches per step
            yield self._run(number, part, count, sizes)

    def _run(self, number: int, batches: Arrays, count: int, sizes: Sequence[int]) -> list[float]:
        """Run `count` steps on batches of the given size, or of K batches of a size."""
        step, (used, *scalars) = self.step, self._rates(number, count)
        feeds = {**self.values, **batches, **dict(zip(step.scalars, scalars, strict=True))}
        self.latest = number, sizes[-1], feeds
        results = self._results(number, sizes[-1], feeds, count)
        losses = results[len(step.carried)]
        if not np.isfinite(losses).all():
            raise diverged_step(self, losses, used)
        self.values = dict(zip(step.carried, results, strict=False))
        self.losses.step.append(losses.copy())  # onnxruntime's array would keep all of the session's memory
        self.losses.rate.append(used)
        self.done += count
        # the sum covers the rows of each of K batches
        rows = math.prod(sizes[:-1] if self.training.artifact.facts.reduction == "sum" else sizes)
        return (losses.astype(np.float64) * rows).tolist()

    def _rates(self, number: int, count: int) -> list[np.ndarray]:
        """Return the rates of the next steps, and their scalars; those of AHEAD steps are computed at once."""
        config, (key, begun, arrays) = self.training.config, self._ahead
        now = factor(config, self.losses.watched), number if config.schedule_per == "epoch" else 0
        if now != key or self.done + count > begun + len(arrays[0]):
            begun, most = self.done, max(count, 0 if now[1] else min(AHEAD, self._total - self.done))
            steps = np.arange(begun + 1, begun + most + 1)
            exact = rates(config, steps, number, self._total) * now[0]
            arrays = [exact, *(function(exact, steps) for function in self.step.scalars.values())]
            self._ahead = now, begun, [array.astype(self.step.dtype) for array in arrays]
        first = self.done - begun
        return [array[first : first + count] for array in self._ahead[2]]

    def _results(self, number: int, size: int, feeds: Arrays, count: int) -> Sequence[np.ndarray]:
        """Return the carried values and the losses after `count` steps of an epoch, on batches of `size` rows."""
        return self.load(number, size).run(feeds)
