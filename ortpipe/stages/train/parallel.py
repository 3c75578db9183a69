"""Training that is split over workers: fixed slices of each batch, whose results are summed in a fixed order."""

import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from ortpipe.artifact import Arrays, Artifact
from ortpipe.errors import TrainError
from ortpipe.graph.core import query
from ortpipe.parallel import Pool, check_engine, named, tree_sum, wrong_answer
from ortpipe.stages.train.devices import DeviceLoop
from ortpipe.stages.train.diagnosis import diverged
from ortpipe.stages.train.mini_batch import EpochLoop
from ortpipe.stages.train.remark import Remark
from ortpipe.stages.train.slice_work import SliceSums, Span, gradient_work, local_work, planned
from ortpipe.stages.train.sliced import RECEIVED
from ortpipe.stages.train.step import TrainStep
from ortpipe.stages.train.training import Training

MEASURED, SKIPPED = 20, 5  # exchanges that are timed; those of them in which workers load their model
ENOUGH = 3  # epochs after which times are reported if they have fewer exchanges


class SlicedLoop(EpochLoop):
    """Runs epochs on workers, which compute slices of batches."""

    def __init__(self, training: Training, step: TrainStep, initial: Arrays, values: Arrays) -> None:
        super().__init__(training, step, initial, values)
        config = training.config.parallel
        assert config is not None
        by_step, of_epoch = config.every == "step", self._batches.count // self._batches.size
        self._most = 1 if by_step else of_epoch if config.every == "epoch" else int(config.every)  # per exchange
        self._slices = config.slices
        plan, wide = planned(training), step.dtype.str
        load = functools.partial(gradient_work, plan, wide) if by_step else functools.partial(local_work, plan)
        self._pool = Pool(load, config, lambda text: training.report(Remark(text)))
        self._times: list[tuple[float, float]] = []  # seconds of the first exchanges: computed, and in all
        self._reported = False

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _chunks(self, number: int) -> Iterator[Span]:
        """Yield the spans of batches between two exchanges."""
        self._pool.adapt()
        size = self._batches.size
        count, partial = divmod(self._batches.count, size)
        for first in range(0, count, self._most):
            yield Span(number, first, min(self._most, count - first), size, self._slices)
        if partial and not self.training.config.drop_last:
            yield Span(number, count, 1, partial, self._slices)
        if number in (ENOUGH, self.training.config.epochs) and not self._reported:
            self._report_times()

    def _exchange(
        self, span: Span, shared: Any, like: Sequence[np.ndarray], what: str
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the losses of a span's batches, and the sums over its slices of values like these."""
        count = len(span.bounds())
        while span.batches > 1 and not self._pool.has_pace:
            self._pool.run((span._replace(batches=1), *shared), count)
        begun = time.perf_counter()
        answers, kinds = self._pool.run((span, *shared), count, span.batches), [(x.shape, x.dtype) for x in like]
        seconds = max(answer.seconds for _, _, answer in answers)
        results = [self._checked(span, kinds, what, worker, part, answer.result) for worker, part, answer in answers]
        losses = {number: loss for result in results for number, loss in result.losses.items()}
        shares = enumerate(span.loss_shares(self.training.artifact.facts))
        loss = np.array([math.fsum(parts) for parts in zip(*(share * losses[n] for n, share in shares), strict=True)])
        sums = tree_sum({tree: values for result in results for tree, values in result.sums.items()}, count)
        if not self._reported and (span.batches == self._most or not self._times):  # the last of an epoch are fewer
            self._times.append((seconds, time.perf_counter() - begun))
            if len(self._times) == MEASURED:
                self._report_times()
        return loss, sums

    def _checked(
        self, span: Span, kinds: Any, what: str, worker: str, numbers: Sequence[int], result: Any
    ) -> SliceSums:
        """Return the result of slices; raise if it is another object or not finite."""
        if not isinstance(result, SliceSums) or not result.fits(span, numbers, kinds):
            raise wrong_answer(worker, numbers)
        for number, losses in result.losses.items():
            if not np.isfinite(losses).all():
                batch = span.first + int(np.argmin(np.isfinite(losses))) + 1
                self._fail(f"loss {losses[~np.isfinite(losses)][0]}", span, batch, [number], worker)
        for (first, end), values in result.sums.items():
            if not all(np.isfinite(array).all() for array in values):
                self._fail(f"{what} that is not finite,", span, span.first + 1, range(first, end), worker)
        return result

    def _fail(self, what: str, span: Span, batch: int, numbers: Sequence[int], worker: str) -> NoReturn:
        text = f"{what} of {named(numbers)} in epoch {span.epoch}, batch {batch}, from {worker}"
        raise diverged(self, text, np.concatenate([np.zeros(0), *self.losses.step]))

    def _report_times(self) -> None:
        """Report how long an exchange takes, and the workers' computation before it."""
        self._reported = True
        computed, whole = np.median(self._times[min(SKIPPED, len(self._times) - 1) :], axis=0) * 1000
        numbers = {"workers": self._pool.size, "slices": self._slices, "compute_ms": computed}
        numbers["exchange_ms"] = exchanged = whole - computed
        takes = "a batch takes" if self._most == 1 else f"{self._most} batches take"
        text = f"{self._pool.size} workers, {self._slices} slices: {takes} {computed:.2g} ms to compute"
        text += f", and {exchanged:.2g} ms to exchange"
        slow = "; train.parallel.every=epoch exchanges less often" if self._most == 1 and exchanged > computed else ""
        self.training.report(Remark(text + slow, {f"parallel/{name}": float(x) for name, x in numbers.items()}))


class SummedGradients(SlicedLoop):
    """Sums the gradients of a batch's slices, and updates the parameters in this process."""

    def _steps(self, number: int, chunk: Any) -> list[list[float]]:
        span: Span = chunk
        facts = self.training.artifact.facts
        values = self.step.weights(self.values) | {name: self.values[name] for name in self.step.statistics}
        like = [np.broadcast_to(self.step.dtype.type(0), values[name].shape) for name in facts.gradients]
        like += [values[name] for name in facts.statistics]
        loss, sums = self._exchange(span, (values,), like, "a gradient")
        names = [str(facts.loss), *facts.gradients.values(), *facts.statistics.values()]
        arrays = [loss.astype(self.step.dtype), *(array[np.newaxis] for array in sums)]
        feeds = {RECEIVED + name: array for name, array in zip(names, arrays, strict=True)}
        return [self._run(number, feeds, 1, (span.size,))]


class AveragedParameters(SlicedLoop):
    """Averages the parameters, and the optimizer's state, that slices trained by themselves for some batches."""

    def _steps(self, number: int, chunk: Any) -> list[list[float]]:
        self._span: Span = chunk
        return [self._run(number, {}, self._span.batches, (self._span.size,))]

    def _results(self, number: int, size: int, feeds: Arrays, count: int) -> Sequence[np.ndarray]:
        """Return the averages of the carried values, and the losses of the batches."""
        scalars = {name: feeds[name] for name in self.step.scalars}
        like = [self.values[name] for name in self.step.carried]
        loss, sums = self._exchange(self._span, (dict(self.values), scalars), like, "a parameter")
        return [*map(np.array, sums), loss.astype(self.step.dtype)]  # copies: the next exchange overwrites the sums


def parallel_loop(training: Training, step: TrainStep, initial: Arrays, values: Arrays) -> EpochLoop:
    """Return the loop of a training in parallel; reject a training that slices cannot split."""
    config = training.config.parallel
    assert config is not None
    by_step = config.every == "step"
    check_engine(config, "onnxruntime" if training.runtime is None else training.runtime.engine)
    if by_step and training.artifact.facts.reduction == "sum" and _is_penalized(training.whole):
        rule = "Training in parallel must split each batch into independent slices."
        raise TrainError(rule, got="a summed loss with a penalty", fix="Set {@add_loss.reduction}=mean.")
    kind = DeviceLoop if config.transport == "devices" else SummedGradients if by_step else AveragedParameters
    return kind(training, step, initial, values)


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
