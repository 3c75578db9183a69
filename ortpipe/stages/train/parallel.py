"""Training that is split over workers: fixed slices of each batch, whose results are summed in a fixed order."""

import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ortpipe.artifact import Arrays, Artifact
from ortpipe.errors import ConvergenceError, TrainError
from ortpipe.graph.core import query
from ortpipe.parallel import Check, Pool, SliceWork, check_engine, slice_bounds, tree_sum
from ortpipe.stages.train.devices import DeviceLoop
from ortpipe.stages.train.diagnosis import diverged
from ortpipe.stages.train.epoch_results import Epoch
from ortpipe.stages.train.exchanged import received
from ortpipe.stages.train.mini_batch import EpochLoop
from ortpipe.stages.train.slice_work import GradientWork, LocalWork, SliceGradient, Span, sent
from ortpipe.stages.train.step import TrainStep
from ortpipe.stages.train.training import Remark, Training

MEASURED, SKIPPED = 20, 5  # exchanges that are timed; those of them in which workers load their model
ENOUGH = 3  # epochs after which times are reported if they have fewer exchanges


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
        self._times: list[tuple[float, float]] = []  # seconds of the first exchanges: computed, and in all
        self._reported = False

    def epochs(self) -> Iterator[Epoch]:
        """Yield after each epoch; report times after some."""
        for epoch in super().epochs():
            if epoch.number in (ENOUGH, epoch.epochs) and not self._reported:
                self._report_times()
            yield epoch

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

    def _exchange(self, span: Span, shared: Any, check: Check) -> list[Any]:
        """Return the results of all slices of a span."""
        begun = time.perf_counter()
        parts = self._pool.run((span, *shared), len(self._shares(span)), check, span.batches)
        if not self._reported and (span.batches == self.most or not self._times):  # the last of an epoch are fewer
            self._times.append((self._pool.seconds, time.perf_counter() - begun))
            if len(self._times) == MEASURED:
                self._report_times()
        return parts

    def _report_times(self) -> None:
        """Report how long an exchange takes, and the workers' computation before it."""
        self._reported = True
        computed, whole = np.median(self._times[min(SKIPPED, len(self._times) - 1) :], axis=0) * 1000
        numbers = {"workers": self._pool.size, "slices": self._slices, "compute_ms": computed}
        numbers["exchange_ms"] = exchanged = whole - computed
        takes = "a batch takes" if self.most == 1 else f"{self.most} batches take"
        text = f"{self._pool.size} workers, {self._slices} slices: {takes} {computed:.2g} ms to compute"
        text += f", and {exchanged:.2g} ms to exchange"
        slow = "; train.parallel.every=epoch exchanges less often" if self.most == 1 and exchanged > computed else ""
        self.training.report(Remark(text + slow, {f"parallel/{name}": float(x) for name, x in numbers.items()}))

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

    def _steps(self, number: int, chunk: Any) -> list[float]:
        span: Span = chunk
        facts = self.training.artifact.facts
        values = self.step.weights(self.values) | {name: self.values[name] for name in self.step.statistics}
        shares, check = self._loss_shares(span), functools.partial(self._check, span, values)
        parts = self._exchange(span, (values,), check)
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
        parts = self._exchange(span, (dict(self.values), scalars), check)
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


def parallel_loop(training: Training, step: TrainStep, initial: Arrays, values: Arrays) -> EpochLoop:
    """Return the loop of a training in parallel."""
    config = training.config.parallel
    assert config is not None
    by_step = config.every == "step"
    check_engine(config, "onnxruntime" if training.runtime is None else training.runtime.engine)
    _check(training, by_step=by_step)
    kind = DeviceLoop if config.transport == "devices" else SummedGradients if by_step else AveragedParameters
    return kind(training, step, initial, values)


def _check(training: Training, *, by_step: bool) -> None:
    """Reject trainings that slices cannot split."""
    rule = "Training in parallel must split each batch into independent slices."
    if by_step and training.artifact.facts.reduction == "sum" and _is_penalized(training.whole):
        raise TrainError(rule, got="a summed loss with a penalty", fix="Set {@add_loss.reduction}=mean.")


def _is_penalized(artifact: Artifact) -> bool:
    """Return whether the loss has a term of no row: each slice would add it. `penalty.auto` divides it by the rows."""
    facts = artifact.facts
    by_name = query.values(artifact.ir_model([str(facts.loss)]).graph)
    rows = {by_name[name] for name in (*facts.inputs, *facts.labels) if name in by_name}
    total = by_name[str(facts.loss)] if f"{facts.loss}/data" in by_name else None
    while total is not None and total.name != f"{facts.loss}/data":
        node = total.producer()
        if node is None or node.op_type != "Add" or not rows & query.ancestors(filter(None, node.inputs[1:])):
            return True
        total = node.inputs[0]
    return False


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
