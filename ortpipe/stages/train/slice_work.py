"""The work of one slice of a batch, for `ortpipe.parallel`."""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays, Facts
from ortpipe.data.batches import Batches
from ortpipe.data.rows import Data
from ortpipe.graph.core import query
from ortpipe.graph.core.check import finish_apart
from ortpipe.parallel import SliceWork, slice_bounds, subtree_sums, subtrees
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.epoch_graph import load_session, loader
from ortpipe.stages.train.sliced import SEED, draw_by_seed, seeds
from ortpipe.stages.train.step import build_step, set_seed, types_of
from ortpipe.stages.train.training import Training, plan
from ortpipe.stages.train.validation import input_types

Plan = Callable[[], Training]


def planned(training: Training) -> Plan:
    """Return a function that plans a training anew, without its validation and its start; it can be pickled."""
    data = Data(training.data.train, class_weight=training.data.class_weight)
    return functools.partial(plan, training.whole, training.config, data, training.runtime, lambda event: None, None)


class Span(NamedTuple):
    """Some batches of an epoch that have the same number of rows."""

    epoch: int  # counted from 1
    first: int  # the number of the first batch in its epoch, counted from 0
    batches: int
    size: int  # rows per batch
    slices: int  # at most

    def bounds(self) -> list[tuple[int, int]]:
        """Return the rows of each slice of a batch."""
        return slice_bounds(self.size, self.slices)

    def shares(self) -> list[float]:
        """Return the share of a batch's rows that each slice has."""
        return [(end - first) / self.size for first, end in self.bounds()]

    def loss_shares(self, facts: Facts) -> list[float]:
        """Return the factor of each slice's loss in the loss of a batch."""
        return [1.0] * len(self.bounds()) if facts.reduction == "sum" else self.shares()


class _Batches:
    """The batches of epochs, read in order; going back begins the epoch again."""

    def __init__(self, training: Training, names: Collection[str]) -> None:
        config = training.config

        def feed(rows: Any) -> dict[str, np.ndarray]:
            return {name: array for name, array in training.feed(rows).items() if name in names}

        self._batches = Batches(training.data.train, feed, config.batch_size, seed=config.seed, shuffle=config.shuffle)
        self._epoch = self._begin = self._end = 0  # the batches of the chunk that was read last
        self._chunks, self._chunk = iter(list[dict[str, np.ndarray]]()), dict[str, np.ndarray]()

    def take(self, span: Span) -> Iterator[Arrays]:
        """Yield the batches of a span in chunks that fit in memory, name → array [batches, size, …]."""
        if span.epoch != self._epoch or span.first < self._begin:
            self._epoch, self._begin, self._end = span.epoch, 0, 0
            self._chunks = self._batches.epoch(span.epoch)
        first, end = span.first, span.first + span.batches
        while first < end:
            while self._end <= first:
                self._chunk = next(self._chunks)
                self._begin, self._end = self._end, self._end + len(next(iter(self._chunk.values())))
            yield {name: array[first - self._begin : end - self._begin] for name, array in self._chunk.items()}
            first = self._end


class SliceSums(NamedTuple):
    """The result of some slices."""

    losses: dict[int, np.ndarray]  # [batches] of each slice
    sums: dict[tuple[int, int], list[np.ndarray]]  # of the slices' values, each times its share, by subtree

    def fits(self, span: Span, numbers: Sequence[int], kinds: Sequence[tuple[tuple[int, ...], np.dtype]]) -> bool:
        """Return whether this is the result of these slices, with values of these shapes and types."""
        loss, trees = ((span.batches,), np.dtype(np.float64)), subtrees(numbers, (0, len(span.bounds())))
        by_slice, by_tree = dict.fromkeys(numbers, loss), dict.fromkeys(trees, kinds)
        try:
            losses = {number: (array.shape, array.dtype) for number, array in self.losses.items()}
            sums = {tree: [(array.shape, array.dtype) for array in arrays] for tree, arrays in self.sums.items()}
        except (AttributeError, TypeError):  # other objects than dicts, lists and arrays
            return False
        return losses == by_slice and sums == by_tree


def gradient_work(planned: Plan, wide: str) -> SliceWork:
    """Return the work that computes the losses, and sums of gradients and next statistics, of slices of a batch.

    Its shared value is the batch, a span of one, and the values of parameters and statistics by name.
    """
    training = planned()
    facts, count = training.artifact.facts, len(training.artifact.facts.gradients)
    names = [str(facts.loss), *facts.gradients.values(), *facts.statistics.values()]
    model = training.artifact.ir_model(names)
    draw_by_seed(model)
    _loss_seed(model, facts, training.config)
    types = input_types(model)
    batches = _Batches(training, {*types} - {*facts.gradients, *facts.statistics})
    run = load_session(training.runtime, *finish_apart(model, deep=True)).run

    def work(shared: tuple[Span, Arrays], slices: Sequence[int]) -> SliceSums:
        span, values = shared
        [chunk] = batches.take(span)
        bounds, losses = span.bounds(), dict[int, np.ndarray]()
        shares, loss_shares = span.shares(), span.loss_shares(facts)
        cast = {name: values[name].astype(types[name], copy=False) for name in values}

        def of_slice(number: int) -> list[np.ndarray]:
            rows = {name: array[0, slice(*bounds[number])] for name, array in chunk.items()}
            if SEED in types:
                rows[SEED] = seeds(training.config.seed, span.epoch, [span.first], number).reshape(())
            loss, *results = run({**cast, **rows}, names)
            losses[number] = np.array([loss], np.float64)
            gradients = [_times(array, loss_shares[number], wide) for array in results[:count]]
            return gradients + [_times(array, shares[number], array.dtype) for array in results[count:]]

        return SliceSums(losses, subtree_sums(of_slice, slices, len(bounds)))

    return work


def local_work(planned: Plan) -> SliceWork:
    """Return the work that trains on slices of some batches, each from the same values, and sums the results.

    Its shared value is the span of batches, the carried values by name, and the links' scalars [batches] by name.
    """
    training = planned()
    step = build_step(training.artifact, training.config)
    batches, load = _Batches(training, step.batch), loader(training, step)

    def work(shared: tuple[Span, Arrays, Arrays], slices: Sequence[int]) -> SliceSums:
        span, values, scalars = shared
        bounds, shares, done = span.bounds(), span.shares(), 0
        carried, losses = dict.fromkeys(slices, values), {number: list[np.ndarray]() for number in slices}
        for chunk in batches.take(span):
            count = len(next(iter(chunk.values())))
            steps = {name: array[done : done + count] for name, array in scalars.items()}
            for number in slices:
                first, end = bounds[number]
                rows = {name: np.ascontiguousarray(array[:, first:end]) for name, array in chunk.items()}
                if SEED in step.batch:
                    numbers = range(span.first + done, span.first + done + count)
                    rows[SEED] = seeds(training.config.seed, span.epoch, numbers, number)
                results = load(span.epoch, end - first).run({**carried[number], **rows, **steps})
                *arrays, loss = map(np.array, results)
                carried[number] = dict(zip(step.carried, arrays, strict=True))
                losses[number].append(loss)
            done += count

        def of_slice(number: int) -> list[np.ndarray]:
            return [_times(array, shares[number], array.dtype) for array in carried[number].values()]

        sums = subtree_sums(of_slice, slices, len(bounds))
        return SliceSums({number: np.concatenate(losses[number]).astype(np.float64) for number in slices}, sums)

    return work


def _times(array: np.ndarray, share: float, kind: Any) -> np.ndarray:
    """Return an array times a share, computed in a type; the array is reused if it can be."""
    reused = array if array.flags.writeable and array.dtype == kind else None
    return np.asarray(np.multiply(array, np.dtype(kind).type(share), out=reused, dtype=kind))


def _loss_seed(model: ir.Model, facts: Facts, config: TrainConfig) -> None:
    """Start the backward pass of a gradient model at the loss scale."""
    values = query.values(model.graph)
    narrow, _, _ = types_of(values[str(facts.loss)], {name: values[name] for name in facts.gradients})
    set_seed(values[str(facts.output_gradient)], config, narrow)
