"""Choose the engine of a training with `runtime.engine=auto`, before it starts."""

import dataclasses
from importlib.util import find_spec

from ortpipe.runtime.providers import check_provider
from ortpipe.stages.train.rates import steps_per_epoch
from ortpipe.stages.train.remark import Remark
from ortpipe.stages.train.speed import speed
from ortpipe.stages.train.training import Training

PACKAGES = {"xla": "jax", "c": "scipy_openblas32"}  # of engines that need more than ortpipe


def with_engine(training: Training) -> tuple[Training, dict[str, str]]:
    """Return the training with the engine that the rule of `ortpipe.fast` chooses, and its name for the record."""
    assert training.runtime is not None
    check_provider(training.runtime)
    steps = training.config.epochs * steps_per_epoch(training.config, len(training.data.train))
    installed = [engine for engine, package in PACKAGES.items() if find_spec(package) is not None]
    engine, reason = speed().engine(training, steps, installed)
    runtime = dataclasses.replace(training.runtime, engine=engine)  # type: ignore[arg-type]
    check_provider(runtime)
    training.report(Remark(f"engine: {engine} ({reason})"))
    return dataclasses.replace(training, runtime=runtime), {"engine": engine}
