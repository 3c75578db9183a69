"""Choose the engine of a training with `runtime.engine=auto`, before it starts."""

import dataclasses
from importlib.util import find_spec

from ortpipe.errors import EngineError
from ortpipe.runtime import xla
from ortpipe.runtime.providers import check_provider
from ortpipe.stages.train.compiled import check_compiled
from ortpipe.stages.train.remark import Remark
from ortpipe.stages.train.speed import speed
from ortpipe.stages.train.training import Training, steps_per_epoch

PACKAGES = {"xla": "jax", "c": "scipy_openblas32"}  # of engines that need more than ortpipe


def with_engine(training: Training) -> tuple[Training, dict[str, str]]:
    """Return the training with the engine that the rule of `ortpipe.fast` chooses, and its name for the record."""
    assert training.runtime is not None
    check_provider(training.runtime)
    steps = training.config.epochs * steps_per_epoch(training.config, len(training.data.train))
    engine, reason = speed().engine(training, steps, lambda engine: _obstacle(_in(training, engine), engine))
    chosen = _in(training, engine)
    assert chosen.runtime is not None
    check_provider(chosen.runtime)
    training.report(Remark(f"engine: {engine} ({reason})"))
    return chosen, {"engine": engine}


def _in(training: Training, engine: str) -> Training:
    assert training.runtime is not None
    runtime = dataclasses.replace(training.runtime, engine=engine)  # type: ignore[arg-type]
    return dataclasses.replace(training, runtime=runtime)


def _obstacle(training: Training, engine: str) -> str | None:
    """Return why an engine cannot train: it is not installed, or lacks a compiler, threads or an operator's form."""
    assert training.runtime is not None
    if find_spec(PACKAGES[engine]) is None:
        return "not installed"
    try:
        check_provider(training.runtime)
        if engine == "c":
            check_compiled(training)
        else:
            xla.check_operators(training.artifact.signature)
    except EngineError as error:
        return str(error.got)
    return None
