"""Train in XLA or C, which compile the epoch graph of each batch size."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from ortpipe.graph.core.protos import Weights
from ortpipe.runtime import c, xla
from ortpipe.stages.train.accumulate import updates
from ortpipe.stages.train.devices import device_count, slice_places
from ortpipe.stages.train.epoch_graph import BATCHES, Runs, loader
from ortpipe.stages.train.remark import Remark
from ortpipe.stages.train.sliced import SLICES
from ortpipe.stages.train.step import build_step
from ortpipe.stages.train.training import Training


def check_compiled(training: Training) -> None:
    """Raise EngineError if a form of an operator in the train step is not compiled to C."""
    step, config = build_step(training.artifact, training.config), training.config
    rows = training.feed(training.data.train.head(config.batch_size * config.accumulate))
    part = next(updates(config, {name: rows[name][np.newaxis] for name in step.batch}))
    values = step.pack(step.init(training.first_values()))
    shapes = {name: array.shape for name, array in values.items()} | dict.fromkeys(step.scalars, ())
    shapes |= {name: array.shape[1:] for name, array in part.items()}
    size = next(iter(part.values())).shape[1 + (config.accumulate > 1)]
    program: Any = loader(training, step)(1, size)
    program.check(shapes)


def load_compiled(
    training: Training, sized: Callable[[int], tuple[onnx.ModelProto, Weights]], *, random: bool
) -> Callable[[int, int], Runs]:
    """Return a function that loads the epoch graph into the engine; its programs take seeds as an input."""
    runtime = training.runtime
    assert runtime is not None
    in_c = runtime.engine == "c"

    @functools.cache
    def load(size: int) -> Any:
        def report(seconds: float) -> None:
            training.report(Remark(f"compiled for batches of {size} rows in {seconds:.2f} s"))

        if in_c:
            return c.CompiledEpoch(*sized(size), report=report)
        if (parallel := training.config.parallel) is None:
            return xla.Program(*sized(size), runtime, steps=BATCHES, report=report)
        sizes = [rows for _, _, rows in slice_places(size, parallel.slices)]
        workers = device_count(parallel, runtime)
        return xla.SlicedProgram(
            *sized(size), runtime, slices=SLICES, sizes=sizes, workers=workers, steps=BATCHES, report=report
        )

    if not random:
        return lambda number, size: load(size)

    @functools.lru_cache(maxsize=2)  # for full batches and the partial one
    def load_seeded(number: int, size: int) -> Runs:
        seeded = c.SeededEpochs if in_c else xla.SeededRuns
        return seeded(load(size), (training.config.seed, number, size))

    return load_seeded
