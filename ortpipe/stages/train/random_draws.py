"""Epoch graphs with random draws, such as dropout: draws depend only on the config's seed and the epoch's number."""

import functools
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph.core.protos import Weights
from ortpipe.graph.forms.modes import set_seeds
from ortpipe.runtime.session import Session

Sized = Callable[[int], tuple[onnx.ModelProto, Weights]]


def with_seeds(
    sized: Sized, seed: int, load: Callable[[onnx.ModelProto, Weights], Session]
) -> Callable[[int, int], Session]:
    """Return a function that loads the graph of a batch size with an epoch's seeds."""

    @functools.cache
    def parsed(size: int) -> tuple[ir.Model, Weights]:
        proto, weights = sized(size)
        return ir.from_proto(proto), weights

    @functools.lru_cache(maxsize=2)  # for full batches and the partial one
    def load_seeded(number: int, size: int) -> Session:
        [first] = np.random.default_rng([seed, number, size]).integers(1, 2**24, 1)
        model, weights = parsed(size)
        set_seeds(model, int(first))
        return load(ir.to_proto(model), weights)

    return load_seeded
