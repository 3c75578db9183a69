"""Train in XLA: JAX compiles the epoch graph of each batch size."""

import functools
from collections.abc import Callable

import onnx

from ortpipe.graph.core.apart import Weights
from ortpipe.runtime import xla
from ortpipe.stages.train.devices import device_count, slice_places
from ortpipe.stages.train.epoch_graph import BATCHES, Runs
from ortpipe.stages.train.sliced import SLICES
from ortpipe.stages.train.training import Remark, Training


def load_in_xla(
    training: Training, sized: Callable[[int], tuple[onnx.ModelProto, Weights]], *, random: bool
) -> Callable[[int, int], Runs]:
    """Return a function that loads the epoch graph into XLA; its programs take seeds as an input."""
    runtime = training.runtime
    assert runtime is not None

    @functools.cache
    def load(size: int) -> xla.Program:
        def report(seconds: float) -> None:
            training.report(Remark(f"compiled for batches of {size} rows in {seconds:.2f} s"))

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
        return xla.SeededRuns(load(size), (training.config.seed, number, size))

    return load_seeded
