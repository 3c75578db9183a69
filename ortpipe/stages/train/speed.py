"""The one place where `ortpipe.fast` enters training. Training also works without that folder, only slower."""

import functools
from collections.abc import Iterable, Sequence
from importlib import import_module

import onnx

from ortpipe.artifact import Arrays
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.epoch_graph import EpochGraph

GUEST = "ortpipe.fast"


class Speed:
    """Ways to train faster. These methods change nothing; the guest overrides them."""

    def stacks(self, arrays: Arrays) -> Iterable[Sequence[str]]:
        """Return groups of parameters' names; a step carries each group as one array."""
        return [[name] for name in arrays]

    def rewrite(self, epoch: EpochGraph, runtime: RuntimeConfig | None) -> None:
        """Rewrite an epoch graph of a known batch size, in place, for the engine that runs it."""

    def prepare(self, model: onnx.ModelProto) -> bool:
        """Sort the nodes of a model for its session; return whether the session plans its memory."""
        return False


@functools.cache
def speed() -> Speed:
    """Return the guest's methods, or the plain ones if there is no guest."""
    try:
        guest: Speed = import_module(GUEST).Fast()
    except ModuleNotFoundError as error:
        if error.name != GUEST:
            raise
        return Speed()
    return guest
