"""The mini-batch solver: run the epoch graph on each epoch's batches, monitor the losses, stop early."""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from ortpipe.artifact import Arrays, under
from ortpipe.data.batches import Batches
from ortpipe.data.spill import Place, SpillFile
from ortpipe.errors import ConvergenceError, TrainError
from ortpipe.graph.forms.modes import set_seeds
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import LOSS, ClipConfig
from ortpipe.stages.train.load import Runs, loader, runs_in_onnxruntime
from ortpipe.stages.train.losses import PHASES, EarlyStop, Epoch, Losses
from ortpipe.stages.train.rates import factor, rates, rows_per_epoch, steps_per_epoch
from ortpipe.stages.train.step import ITERATE, PARAMETER, TrainStep, build_step, gradients_of, input_types
from ortpipe.stages.train.training import FREE, Checkpoint, Training

CARRIED = 2**26  # carried bytes from which on a run computes one step: a Scan would hold two more copies of them
SHOWN = 3  # the largest gradients that a message names


def solve(training: Training) -> dict[str, np.ndarray]:
    """Return train's tensors.

    Raises:
        ConvergenceError: a loss or a parameter is not finite; `tensors` are those of the last complete epoch.
        DataError: the rows do not fit the model.
        TrainError: the start belongs to another training.
    """
    config, start, before = training.config, training.start, training.before
    if isinstance(start, Checkpoint) and start.key != training.key:
        raise TrainError(
            "A checkpoint must belong to the same model, data and train settings.",
            got="a checkpoint of another run",
            fix=f"Repeat the command of the stopped run, with resume added ({', '.join(FREE)} may change).",
        )
    step = build_step(training.artifact, training.config)
    initial = training.first_values()
    loop = _EpochLoop(training, step, step.pack(step.init(initial) if before is None else before))
    stop = EarlyStop(config.early_stop, loop.whole)
    stop(loop.losses.watched, loop.whole)
    if best := under("best", before or {}):
        stop.best_values = Snapshot(step.pack(best))

    def tensors(values: Arrays) -> dict[str, np.ndarray]:
        first = {f"initial/{name}": array for name, array in initial.items()}
        return {**first, **step.unpack(values), **loop.losses.tensors()}

    def checkpoint() -> Checkpoint:
        best = {f"best/{name}": array for name, array in step.unpack(stop.best_values.arrays).items()}
        return Checkpoint(len(loop.losses.train), training.key, {**tensors(loop.values), **best})

    PHASES.debug("graphs")
    last, every, minutes = time.monotonic(), config.checkpoint.epochs, config.checkpoint.minutes
    try:
        for result in () if stop.over else loop.run():
            training.report(result)
            stop(loop.losses.watched, loop.whole)
            if stop.over:
                break
            late = minutes is not None and time.monotonic() - last >= 60 * minutes
            if late or (every is not None and result.number % every == 0):
                training.report(checkpoint())
                last = time.monotonic()
    except ConvergenceError as error:  # a diverged state is useless for continuing: write no checkpoint
        loop.back_to_whole_epochs()
        error.tensors = tensors(loop.values)
        raise
    except BaseException as error:  # interrupted by the user or the system: save the complete epochs
        if not isinstance(error, Exception) and loop.back_to_whole_epochs():
            stop(loop.losses.watched, loop.whole)
            training.report(checkpoint())
        raise
    restored = config.early_stop.patience is not None and training.validate is not None
    return tensors(stop.best_values.arrays if restored else loop.values)


class _EpochLoop:
    """Runs the epochs of a step's epoch graph.

    `values` are carried at the moment, `whole` after the last complete epoch; `losses` are all so far.
    """

    def __init__(self, training: Training, step: TrainStep, values: Arrays) -> None:
        config, facts = training.config, training.artifact.facts
        self.values, self.losses = values, Losses.of(config.early_stop, training.before)
        self._training, self._config, self._step = training, config, step
        self._load = loader(training, step)
        large = sum(array.nbytes for array in values.values()) >= CARRIED
        self._single = large and runs_in_onnxruntime(training.runtime)
        self._batches = Batches(
            training.data.train,
            lambda rows: {name: a for name, a in training.feed(rows).items() if name in step.batch},
            config.batch_size * config.accumulate,
            seed=config.seed,
            shuffle=config.shuffle,
            single=self._single,
            reused=True,
        )
        self._rows = rows_per_epoch(config, self._batches.count)
        self._total = config.epochs * steps_per_epoch(config, self._batches.count)
        self._per_row = facts.reduction != "sum"
        self._latest: tuple[int, int, Arrays] | None = None  # the last run: epoch, rows per batch, feeds
        self._done = sum(len(run) for run in self.losses.step)
        self.whole, self._counts = Snapshot(self.values), (len(self.losses.train), len(self.losses.step))

    def run(self) -> Iterator[Epoch]:
        """Yield after each epoch; raise if a training or validation loss, or a parameter, is not finite."""
        config, losses, validate, behind = self._config, self.losses, self._training.validate, self._done
        first = len(losses.train) + 1
        for number in range(first, config.epochs + 1):
            if self._single and number > first:  # the initial values are in the caller's memory in any case
                self.whole.move_to_disk()
            sums = [self._run(number, part) for chunk in self._batches.epoch(number) for part in self._updates(chunk)]
            loss = math.fsum(loss for run in sums for loss in run) / self._rows  # exact, and independent of chunks
            if not all(np.isfinite(array).all() for array in self.values.values()):  # faster than for each parameter
                tensors = self._step.unpack(self.values).items()
                what = next(name for name, array in tensors if not np.isfinite(array).all())
                what = f"{what.removeprefix('parameter/')} is not finite after step {self._done}"
                raise self._diverged(what, losses.step[-1])
            PHASES.debug("batches")
            turn = number % config.validate_every == 0 or number == config.epochs
            metrics = None if validate is None else validate(self._step.parameters(self.values)) if turn else {}
            for name, value in (metrics or {}).items():
                if not np.isfinite(value):
                    last = np.array(losses.validation)
                    raise self._diverged(f"validation {name} {value} after step {self._done}", last[~np.isnan(last)])
            losses.add(loss, metrics)
            PHASES.debug("validation")
            self.whole, self._counts = Snapshot(self.values), (number, len(losses.step))
            rate, watched = float(losses.rate[-1][-1]), {**(metrics or {})}
            validation = watched.pop(LOSS, None)
            yield Epoch(number, config.epochs, loss, validation, rate, self._done, self._done - behind, watched)
            PHASES.debug("listeners, checkpoints")

    def _updates(self, chunk: Arrays) -> Iterator[Arrays]:
        """Yield a chunk unchanged or, with accumulation, as [updates, K, size, …]: K batches each."""
        config = self._config
        steps, rows = next(iter(chunk.values())).shape[:2]
        full_batches, partial_rows = divmod(rows, config.batch_size)
        if config.drop_last and partial_rows:
            chunk = {name: array[:, :-partial_rows] for name, array in chunk.items()}
            rows, partial_rows = rows - partial_rows, 0
        if config.accumulate == 1:
            yield from [chunk] if rows else []
            return
        for first, count, size in ((0, full_batches, config.batch_size), (rows - partial_rows, 1, partial_rows)):
            if count * size:
                cut = slice(first, first + count * size)
                yield {name: a[:, cut].reshape(steps, count, size, *a.shape[2:]) for name, a in chunk.items()}

    def _run(self, number: int, batches: Arrays) -> list[float]:
        """Run one step per batch; return each step's sum of its rows' losses."""
        step = self._step
        count, *sizes = next(iter(batches.values())).shape[: 3 if self._config.accumulate > 1 else 2]
        steps = np.arange(self._done + 1, self._done + count + 1)
        exact = rates(self._config, steps, number, self._total) * factor(self._config, self.losses.watched)
        scalars = {name: function(exact, steps).astype(step.dtype) for name, function in step.scalars.items()}
        feeds = {**self.values, **batches, **scalars}
        self._latest = number, sizes[-1], feeds
        PHASES.debug("batches")
        runs = self._load(number, sizes[-1])
        PHASES.debug("sessions")
        results = self._run_into(cast(Session, runs), feeds, count) if self._single else runs.run(feeds)
        losses = results[len(step.carried)]
        PHASES.debug("session.run")
        used, finite = exact.astype(step.dtype), np.isfinite(losses)
        if not finite.all():
            bad = int(np.argmin(finite))
            last = np.concatenate([*self.losses.step, losses[:bad]])
            raise self._diverged(f"loss {losses[bad]} at step {self._done + bad + 1}", last, float(used[bad]), bad)
        self.values = dict(zip(step.carried, results, strict=False))
        self.losses.step.append(losses.copy())  # onnxruntime's array would keep all of the session's memory
        self.losses.rate.append(used)
        self._done += count
        rows = math.prod(sizes if self._per_row else sizes[:-1])  # the sum covers the rows of each of K batches
        return (losses.astype(np.float64) * rows).tolist()

    def _run_into(self, session: Session, feeds: Arrays, count: int) -> list[np.ndarray]:
        """Return the carried values and the losses in arrays that are freed when they are no longer used."""
        before = [self.values[name] for name in self._step.carried]
        arrays = [np.empty(array.shape, array.dtype) for array in before]  # in C order, unlike perhaps the start's
        arrays.append(np.empty(count, self._step.dtype))
        session.run_into(feeds, dict(zip(session.outputs, arrays, strict=False)))
        for array in arrays:
            array.flags.writeable = False  # so that an artifact needs no copy
        return arrays

    def back_to_whole_epochs(self) -> int:
        """Discard the steps of an interrupted epoch; return the number of complete epochs."""
        self.values, (epochs, runs) = self.whole.arrays, self._counts
        self.losses = self.losses.first(epochs, runs)
        return epochs

    def _diverged(self, what: str, last: np.ndarray, rate: float | None = None, at: int = -1) -> ConvergenceError:
        """Return the error for a value that is not finite, with the gradients at that step of the latest run."""
        assert self._latest is not None
        config, (number, size, run) = self._config, self._latest
        step = build_step(self._training.artifact, self._training.config)
        load = functools.partial(loader(self._training, step), number, size)
        norms = largest_gradients(self._training, self._step, load, run, at)
        rate = float(self.losses.rate[-1][-1]) if rate is None else rate
        finite = ", ".join(f"{loss:.6g}" for loss in last[-5:]) or "none"
        ways = [f"Lower the rate ({{at}}optimizer.lr={config.optimizer.lr / 10:g})", "scale the inputs"]
        ways += ["clip gradients ({at}clip.norm=1)"] if config.clip == ClipConfig() else []
        ways += ["use {@add_loss.reduction}=mean"] if not self._per_row else []
        if self._training.artifact.facts.blank is not None:
            ways += ["ignore labels that are longer than the steps allow ({@add_loss.loss.zero_infinity}=true)"]
        return ConvergenceError(
            "Losses and parameters must stay finite; nothing was published.",
            got=f"{what}; learning rate {rate:g}; largest gradient norms {norms}; last finite losses {finite}",
            fix=f"{', '.join(ways[:-1])}, or {ways[-1]}.",
        )


def largest_gradients(training: Training, step: TrainStep, load: Callable[[], Runs], run: Arrays, at: int) -> str:
    """Return the largest ‖g‖₂ of the loss by parameter, as text, at a step (from 0, −1 is the last) of a run.

    Gradients that are not finite come first. `load` returns a new epoch graph; one with random draws restarts them. The
    gradients of a model with random draws belong to other draws than the run's.
    """
    begun = {name: array[:at] if name in step.scanned else array for name, array in run.items()}
    values = [run[name] for name in step.carried]
    if all(len(begun[name]) for name in step.scanned):  # repeat the run up to the step
        values = load().run(begun)[: len(values)]
    tensors = step.unpack(dict(zip(step.carried, values, strict=True)))
    arrays = {**{name: run[name][at] for name in step.batch}, **under(PARAMETER, tensors), **under(ITERATE, tensors)}
    model, names = gradients_of(training.artifact, training.config), training.artifact.facts.gradients
    set_seeds(model, 1)
    types = input_types(model)
    feeds = {name: array.astype(types[name], copy=False) for name, array in arrays.items()}
    gradients = Session(model, training.runtime).run(feeds, list(names.values()))
    with np.errstate(over="ignore", invalid="ignore"):
        norms = {n: np.linalg.norm(g.astype(np.float64)) for n, g in zip(names, gradients, strict=True)}
    largest = sorted(norms, key=lambda name: -np.nan_to_num(norms[name], nan=np.inf, posinf=np.inf))
    return ", ".join(f"{name} {norms[name]:.6g}" for name in largest[:SHOWN])


class Snapshot:
    """Arrays in memory or, after `move_to_disk`, in an unnamed temporary file, which is deleted with this object.

    >>> import numpy as np
    >>> snapshot = Snapshot({"w": np.array([1.0, 2.0])})
    >>> snapshot.move_to_disk()
    >>> snapshot.arrays["w"]
    array([1., 2.])
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays: Arrays | None = arrays
        self._file: SpillFile | None = None
        self._places = dict[str, Place]()

    @property
    def arrays(self) -> Arrays:
        """The arrays, read each time if they are in a file."""
        if self._arrays is not None:
            return self._arrays
        assert self._file is not None
        return {name: self._file.get(place) for name, place in self._places.items()}

    def move_to_disk(self) -> None:
        """Free the memory; if the disk is full, keep the arrays in memory."""
        if self._arrays is None:
            return
        with contextlib.suppress(OSError):
            file = SpillFile()
            self._places = {name: file.put(array) for name, array in self._arrays.items()}
            self._arrays, self._file = None, file
