"""Training that is split over workers: fixed slices of each batch, whose results are summed in a fixed order."""

import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ortpipe.artifact import Arrays
from ortpipe.errors import ConvergenceError, TrainError
from ortpipe.parallel import Pool, SliceWork, slice_bounds, tree_sum
from ortpipe.stages.train.diagnosis import diverged
from ortpipe.stages.train.engine import runs_in_onnxruntime
from ortpipe.stages.train.exchanged import received
from ortpipe.stages.train.mini_batch import EpochLoop
from ortpipe.stages.train.slice_work import GradientWork, LocalWork, SliceGradient, Span, sent
from ortpipe.stages.train.step import TrainStep
from ortpipe.stages.train.training import Remark, Training

MEASURED, SKIPPED = 20, 5  # steps that are timed; those of them in which workers load their model


class SlicedLoop(EpochLoop):
    """Runs epochs on workers, which compute slices of batches."""

    most = 1  # batches between two exchanges

    def __init__(self, training: Training, step: TrainStep, initial: Arrays, values: Arrays, work: SliceWork) -> None:
        super().__init__(training, step, initial, values)
        config = training.config.parallel
        assert config is not None
        self._slices = config.slices
        self._pool = Pool(work, config, lambda text: training.report(Remark(text)))
        self._sums = training.artifact.facts.reduction == "sum"

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _chunks(self, number: int) -> Iterator[Span]:
        """Yield the spans of batches between two exchanges."""
        self._pool.adapt()
        size = self._batches.size
        count, partial = divmod(self._batches.count, size)
        for first in range(0, count, self.most):
            yield Span(number, first, min(self.most, count - first), size)
        if partial and not self.training.config.drop_last:
            yield Span(number, count, 1, partial)

    def _shares(self, span: Span) -> list[float]:
        """Return the share of a batch's rows that each slice has."""
        return [(end - first) / span.size for first, end in slice_bounds(span.size, self._slices)]

    def _loss_shares(self, span: Span) -> list[float]:
        """Return the factor of each slice's loss in the loss of a batch."""
        shares = self._shares(span)
        return [1.0] * len(shares) if self._sums else shares

    def _diverged(self, span: Span, worker: str, number: int, losses: np.ndarray, other: str) -> ConvergenceError:
        """Return the error for a loss of a slice that is not finite, or else for another value."""
        finite = np.isfinite(losses)
        batch = span.first + int(np.argmin(finite)) + 1
        value = f"{other} that is not finite," if finite.all() else f"loss {losses[~finite][0]}"
        what = f"{value} of slice {number + 1} in epoch {span.epoch}, batch {batch}, from {worker}"
        return diverged(self, what, np.concatenate([np.zeros(0), *self.losses.step]))


class SummedGradients(SlicedLoop):
    """Sums the gradients of a batch's slices, and updates the parameters in this process."""

    def __init__(self, training: Training, step: TrainStep, initial: Arrays, values: Arrays) -> None:
        work = GradientWork(sent(training), step.dtype.str)
        super().__init__(training, step, initial, values, work)
        self._times: list[tuple[float, float]] = []  # of the first steps: seconds in all, and those of the slices

    def _measure(self, whole: float, computed: float) -> None:
        """Report how long the first steps take, and whether exchanging gradients takes longer than computing them."""
        if len(self._times) == MEASURED:
            return
        self._times.append((whole, computed / self._pool.size))
        if len(self._times) == MEASURED:
            whole, computed = np.median(self._times[SKIPPED:], axis=0) * 1000
            exchanged = max(0.0, whole - computed)
            text = f"{self._pool.size} workers, {self._slices} slices: a batch takes {computed:.2g} ms to compute"
            text += f", and {exchanged:.2g} ms to exchange"
            slow = "; train.parallel.every=epoch exchanges less often" if whole > 2 * computed else ""
            self.training.report(Remark(text + slow))

    def _steps(self, number: int, chunk: Any) -> list[float]:
        span: Span = chunk
        facts = self.training.artifact.facts
        values = self.step.weights(self.values) | {name: self.values[name] for name in self.step.statistics}
        shares, check = self._loss_shares(span), functools.partial(self._check, span, values)
        begun = time.perf_counter()
        parts = self._pool.run((span, values), len(shares), check)
        self._measure(time.perf_counter() - begun, sum(part.seconds for part in parts))
        loss = math.fsum(share * part.loss for share, part in zip(shares, parts, strict=True))
        gradient = _mean(shares, [part.gradient for part in parts])
        statistics = _mean(self._shares(span), [part.statistics for part in parts])
        received_values = {
            str(facts.loss): np.array([loss], self.step.dtype),
            **_by_name(gradient, {new: values[name].shape for name, new in facts.gradients.items()}),
            **_by_name(statistics, {new: values[name].shape for name, new in facts.statistics.items()}),
        }
        return self._run(number, {received(name): a for name, a in received_values.items()}, 1, (span.size,))

    def _check(self, span: Span, values: Arrays, worker: str, number: int, answer: Any) -> None:
        """Reject other objects than a slice's result, and results that are not finite."""
        size = sum(values[name].size for name in self.training.artifact.facts.gradients)
        if not isinstance(answer, SliceGradient) or np.shape(answer.gradient) != (size,):
            raise _wrong(worker, number, f"no gradient of {size} values")
        if not math.isfinite(answer.loss) or not np.isfinite(answer.gradient).all():
            raise self._diverged(span, worker, number, np.array([answer.loss]), "a gradient")


class AveragedParameters(SlicedLoop):
    """Averages the parameters, and the optimizer's state, that slices trained by themselves for some batches."""

    def __init__(self, training: Training, step: TrainStep, initial: Arrays, values: Arrays) -> None:
        super().__init__(training, step, initial, values, LocalWork(sent(training)))
        assert training.config.parallel is not None
        every = training.config.parallel.every
        self.most = max(1, self._batches.count // self._batches.size) if every == "epoch" else int(every)

    def _steps(self, number: int, chunk: Any) -> list[float]:
        self._span: Span = chunk
        return self._run(number, {}, self._span.batches, (self._span.size,))

    def _results(self, number: int, size: int, feeds: Arrays, count: int) -> Sequence[np.ndarray]:
        """Return the averages of the carried values, and the losses of the batches."""
        span, scalars = self._span, {name: feeds[name] for name in self.step.scalars}
        shares, check = self._shares(span), functools.partial(self._check, span)
        parts = self._pool.run((span, dict(self.values), scalars), len(shares), check)
        *carried, losses = zip(*parts, strict=True)
        loss = _mean(self._loss_shares(span), [array.astype(np.float64) for array in losses])
        return [*(_mean(shares, arrays) for arrays in carried), loss.astype(self.step.dtype)]

    def _check(self, span: Span, worker: str, number: int, answer: Any) -> None:
        """Reject other objects than a slice's result, and results that are not finite."""
        shapes = [*(self.values[name].shape for name in self.step.carried), (span.batches,)]
        if not isinstance(answer, list) or [np.shape(array) for array in answer] != shapes:
            raise _wrong(worker, number, "no values of the carried shapes")
        if not all(np.isfinite(array).all() for array in answer):
            raise self._diverged(span, worker, number, answer[-1], "a parameter")


def parallel_loop(training: Training, step: TrainStep, initial: Arrays, values: Arrays) -> SlicedLoop:
    """Return the loop of a training in parallel."""
    assert training.config.parallel is not None
    by_step = training.config.parallel.every == "step"
    _check(training, by_step=by_step)
    return (SummedGradients if by_step else AveragedParameters)(training, step, initial, values)


def _check(training: Training, *, by_step: bool) -> None:
    """Reject trainings that slices cannot split."""
    graph, loss = training.artifact.signature.graph, training.artifact.facts.loss
    penalized = any(f"{loss}/data" in node.output for node in graph.node)
    rule = "Training in parallel must split each batch into independent slices."
    if not runs_in_onnxruntime(training.runtime):
        raise TrainError(rule, got="runtime.engine=xla", fix="Set {@runtime.engine}=onnxruntime.")
    if by_step and penalized and training.artifact.facts.reduction == "sum":
        raise TrainError(rule, got="a summed loss with a penalty", fix="Set {@add_loss.reduction}=mean.")


def _mean(shares: Sequence[float], parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return Σ share · part, added in the fixed order of `tree_sum`."""
    return tree_sum([part.dtype.type(share) * part for share, part in zip(shares, parts, strict=True)])


def _by_name(vector: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Cut a vector into arrays of these shapes, each for a batch of one step."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(vector, ends[:-1]) if shapes else []
    return {name: part.reshape(1, *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _wrong(worker: str, number: int, actual: str) -> TrainError:
    rule, fix = "A worker must return the result of its slice.", "Run the same version of ortpipe on every machine."
    return TrainError(rule, got=f"{actual} from {worker} for slice {number + 1}", fix=fix)
