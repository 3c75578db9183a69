"""The only place where `ortpipe.fast` enters training. Without that folder training works too, only slower."""

import functools
from collections.abc import Iterable, Sequence
from importlib import import_module

import onnx

from ortpipe.artifact import Arrays
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.epoch_graph import EpochGraph

GUEST = "ortpipe.fast"


class Speed:
    """Hooks that make training faster. The defaults do nothing; `ortpipe.fast` overrides them."""

    def stacks(self, arrays: Arrays) -> Iterable[Sequence[str]]:
        """Return groups of parameter names; a step carries each group as one array."""
        return [[name] for name in arrays]

    def rewrite(self, epoch: EpochGraph, runtime: RuntimeConfig | None) -> None:
        """Rewrite an epoch graph of a known batch size, in place, for the engine that runs it."""

    def prepare(self, model: onnx.ModelProto) -> bool:
        """Sort the nodes of a model for its session; return whether the session plans its memory."""
        return False


@functools.cache
def speed() -> Speed:
    """Return the hooks of `ortpipe.fast`, or the defaults if the folder is missing."""
    try:
        guest: Speed = import_module(GUEST).Fast()
    except ModuleNotFoundError as error:
        if error.name != GUEST:
            raise
        return Speed()
    return guest
