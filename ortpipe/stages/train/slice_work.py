"""The work of one slice of a batch, for `ortpipe.parallel`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

from ortpipe.artifact import Arrays, Artifact, Facts
from ortpipe.data.batches import Batches
from ortpipe.data.rows import Data, RowSet
from ortpipe.graph.core.check import finish_apart
from ortpipe.parallel import slice_bounds, subtree_sums, subtrees
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.engine import load_session, loader
from ortpipe.stages.train.plan import plan
from ortpipe.stages.train.slice_draws import SEED, draw_by_seed, seeds
from ortpipe.stages.train.step import build_step, loss_seed
from ortpipe.stages.train.training import Training
from ortpipe.stages.train.validation import input_types


class Sent(NamedTuple):
    """A training, in a form that can be pickled."""

    model: bytes
    weights: Arrays
    facts: Facts
    config: TrainConfig
    rows: RowSet
    class_weight: Mapping[int | str, float]
    runtime: RuntimeConfig | None

    def training(self) -> Training:
        """Return the training, without validation."""
        artifact = Artifact(onnx.ModelProto.FromString(self.model), self.facts, weights=self.weights)
        data = Data(self.rows, class_weight=self.class_weight)
        return plan(artifact, self.config, data, self.runtime, lambda event: None, None)


def sent(training: Training) -> Sent:
    """Return a training without its report, its validation and its start."""
    model, weights = training.whole.apart()
    rows, config = training.data.train, training.config
    content = model.SerializeToString()
    return Sent(content, weights, training.whole.facts, config, rows, training.data.class_weight, training.runtime)


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

    def __init__(self, training: Training, names: Sequence[str]) -> None:
        config = training.config

        def feed(rows: Any) -> dict[str, np.ndarray]:
            return {name: array for name, array in training.feed(rows).items() if name in names}

        self._batches = Batches(training.data.train, feed, config.batch_size, seed=config.seed, shuffle=config.shuffle)
        self._epoch, self._next, self._chunks = 0, 0, iter(list[Arrays]())
        self._rest: Arrays = {}  # of the last chunk: name → array [batches, size, …]

    def take(self, span: Span) -> Iterator[Arrays]:
        """Yield the batches of a span in chunks that fit in memory, name → array [batches, size, …]."""
        if span.epoch != self._epoch or span.first < self._next:
            self._epoch, self._next, self._chunks, self._rest = span.epoch, 0, self._batches.epoch(span.epoch), {}
        end = span.first + span.batches
        while self._next < end:
            self._rest = self._rest or next(self._chunks)
            is_before, left = self._next < span.first, len(next(iter(self._rest.values())))
            count = min(left, (span.first if is_before else end) - self._next)
            chunk = {name: array[:count] for name, array in self._rest.items()}
            self._rest = {name: array[count:] for name, array in self._rest.items()} if count < left else {}
            self._next += count
            if not is_before:
                yield chunk


class SliceSums(NamedTuple):
    """The result of some slices."""

    losses: dict[int, np.ndarray]  # [batches] of each slice
    sums: dict[tuple[int, int], list[np.ndarray]]  # of the slices' values, each times its share, by subtree

    def fits(self, span: Span, numbers: Sequence[int], kinds: Sequence[tuple[tuple[int, ...], np.dtype]]) -> bool:
        """Return whether this is the result of these slices, with values of these shapes and types."""
        loss, trees = ((span.batches,), np.dtype(np.float64)), subtrees(numbers, (0, len(span.bounds())))
        by_slice, by_tree = dict.fromkeys(numbers, loss), dict.fromkeys(trees, kinds)
        return bool(_kinds(self.losses) == by_slice and _kinds(self.sums) == by_tree)


def _kinds(value: Any) -> Any:
    """Return the value with the shape and type of each array in its place."""
    if isinstance(value, dict):
        return {key: _kinds(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_kinds(part) for part in value]
    return (value.shape, value.dtype) if isinstance(value, np.ndarray) else None


class GradientWork:
    """Computes the losses, and sums of gradients and next running statistics, of slices of one batch.

    `shared` is the batch, a span of one, and the values of parameters and statistics by name.
    """

    def __init__(self, sent: Sent, wide: str) -> None:
        self._sent, self._wide = sent, wide
        self._run: Any = None

    def __call__(self, shared: tuple[Span, Arrays], slices: Sequence[int]) -> SliceSums:
        """Return the result of some slices."""
        if self._run is None:
            self._load()
        span, values = shared
        [chunk] = self._batches.take(span)
        bounds, losses = span.bounds(), dict[int, np.ndarray]()
        shares, loss_shares = span.shares(), span.loss_shares(self._sent.facts)
        cast = {name: values[name].astype(self._types[name], copy=False) for name in values}

        def of_slice(number: int) -> list[np.ndarray]:
            rows = {name: array[0, slice(*bounds[number])] for name, array in chunk.items()}
            if self._seeded:
                rows[SEED] = np.array(seeds(self._sent.config.seed, span.epoch, [span.first], number)[0])
            loss, *results = self._run({**cast, **rows}, self._names)
            losses[number] = np.array([loss], np.float64)
            gradients = [_times(array, loss_shares[number], self._wide) for array in results[: self._count]]
            return gradients + [_times(array, shares[number], array.dtype) for array in results[self._count :]]

        return SliceSums(losses, subtree_sums(of_slice, slices, len(bounds)))

    def _load(self) -> None:
        training = self._sent.training()
        facts = training.artifact.facts
        self._names = [str(facts.loss), *facts.gradients.values(), *facts.statistics.values()]
        model = training.artifact.ir_model(self._names)
        carried = {*facts.gradients, *facts.statistics}
        self._seeded = draw_by_seed(model)
        self._types = input_types(model)
        read = [str(v.name) for v in model.graph.inputs if v.name not in carried and v.name != facts.output_gradient]
        loss_seed(model, facts, training.config)
        self._batches, self._count = _Batches(training, read), len(facts.gradients)
        proto, weights = finish_apart(model, deep=True)
        self._run = load_session(training.runtime, proto, weights).run

    def __getstate__(self) -> dict[str, Any]:
        return {"_sent": self._sent, "_wide": self._wide, "_run": None}


class LocalWork:
    """Trains on slices of some batches, each from the same values, and sums the results.

    `shared` is the span of batches, the carried values by name, and the links' scalars [batches] by name.
    """

    def __init__(self, sent: Sent) -> None:
        self._sent = sent
        self._step: Any = None

    def __call__(self, shared: tuple[Span, Arrays, Arrays], slices: Sequence[int]) -> SliceSums:
        """Return the result of some slices; their values are the carried ones."""
        if self._step is None:
            training = self._sent.training()
            self._step = step = build_step(training.artifact, training.config)
            self._batches, self._load = _Batches(training, step.batch), loader(training, step)
        span, values, scalars = shared
        bounds, shares, done = span.bounds(), span.shares(), 0
        carried, losses = dict.fromkeys(slices, values), {number: list[np.ndarray]() for number in slices}
        for chunk in self._batches.take(span):
            count = len(next(iter(chunk.values())))
            steps = {name: array[done : done + count] for name, array in scalars.items()}
            for number in slices:
                first, end = bounds[number]
                rows = {name: np.ascontiguousarray(array[:, first:end]) for name, array in chunk.items()}
                if SEED in self._step.batch:
                    numbers = range(span.first + done, span.first + done + count)
                    rows[SEED] = seeds(self._sent.config.seed, span.epoch, numbers, number)
                run = self._load(span.epoch, end - first).run
                *arrays, loss = map(np.array, run({**carried[number], **rows, **steps}))
                carried[number] = dict(zip(self._step.carried, arrays, strict=True))
                losses[number].append(loss)
            done += count

        def of_slice(number: int) -> list[np.ndarray]:
            return [_times(array, shares[number], array.dtype) for array in carried[number].values()]

        sums = subtree_sums(of_slice, slices, len(bounds))
        return SliceSums({number: np.concatenate(losses[number]).astype(np.float64) for number in slices}, sums)

    def __getstate__(self) -> dict[str, Any]:
        return {"_sent": self._sent, "_step": None}


def _times(array: np.ndarray, share: float, kind: Any) -> np.ndarray:
    """Return an array times a share, computed in a type; the array is reused if it can be."""
    reused = array if array.flags.writeable and array.dtype == kind else None
    return np.asarray(np.multiply(array, np.dtype(kind).type(share), out=reused, dtype=kind))
