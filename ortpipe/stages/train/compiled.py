"""Train in XLA or C, which compile the epoch graph of each batch size; choose the engine for `runtime.engine=auto`."""

import dataclasses
import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx

from ortpipe.errors import EngineError
from ortpipe.graph.core.protos import Weights
from ortpipe.runtime import c, xla
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.providers import check_provider
from ortpipe.stages.train.accumulate import updates
from ortpipe.stages.train.devices import device_count, slice_places
from ortpipe.stages.train.epoch_graph import BATCHES, Runs, loader
from ortpipe.stages.train.remark import Remark
from ortpipe.stages.train.sliced import SLICES
from ortpipe.stages.train.speed import speed
from ortpipe.stages.train.step import build_step
from ortpipe.stages.train.training import Training, steps_per_epoch

PACKAGES = {"xla": "jax", "c": "scipy_openblas32"}  # of engines that need more than ortpipe


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


def with_engine(training: Training) -> tuple[Training, dict[str, str]]:
    """Return the training with the engine that the rule of `ortpipe.fast` chooses, and its name for the record."""
    steps = training.config.epochs * steps_per_epoch(training.config, len(training.data.train))
    engine, reason = speed().engine(_in(training, "auto"), steps, functools.partial(_obstacle, training))
    training.report(Remark(f"engine: {engine} ({reason})"))
    return _in(training, engine), {"engine": engine}


def _in(training: Training, engine: Any) -> Training:
    """Return the training in an engine; raise EngineError if its provider or its compiler is missing."""
    runtime = dataclasses.replace(training.runtime or RuntimeConfig(), engine=engine)
    check_provider(runtime)
    return dataclasses.replace(training, runtime=runtime)


def _obstacle(training: Training, engine: str) -> str | None:
    """Return why an engine cannot train: it is not installed, or lacks a compiler, threads or an operator's form."""
    if find_spec(PACKAGES[engine]) is None:
        return "not installed"
    try:
        chosen = _in(training, engine)
        if engine == "c":
            check_compiled(chosen)
        else:
            xla.check_operators(training.artifact.signature)
    except EngineError as error:
        return str(error.got)
    return None
