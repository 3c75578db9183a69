"""The table of all operators that can be compiled: name → a function of the node and its inputs."""

from collections.abc import Callable, Mapping
from typing import Any

from ortpipe.runtime.xla.operators import (
    control_flow,
    elementwise,
    indexing,
    linear,
    losses,
    normalization,
    pooling,
    quantization,
    random,
    reductions,
    shapes,
    windows,
)

OPERATORS: Mapping[str, Callable[..., Any]] = {
    **elementwise.OPERATORS,
    **reductions.OPERATORS,
    **shapes.OPERATORS,
    **indexing.OPERATORS,
    **linear.OPERATORS,
    **windows.OPERATORS,
    **pooling.OPERATORS,
    **normalization.OPERATORS,
    **losses.OPERATORS,
    **quantization.OPERATORS,
    **random.OPERATORS,
    **control_flow.OPERATORS,
}
