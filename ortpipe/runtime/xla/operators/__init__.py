"""The table of all operators that can be compiled: name → a function of the node and its inputs."""

from collections.abc import Callable, Mapping
from typing import Any

from ortpipe.runtime.xla.operators import (
    control_flow,
    elementwise,
    indexing,
    normalization,
    pooling,
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
    **windows.OPERATORS,
    **pooling.OPERATORS,
    **normalization.OPERATORS,
    **random.OPERATORS,
    **control_flow.OPERATORS,
}
