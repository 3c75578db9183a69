"""How a step carries parameters, and the one place where `ortpipe.fast` enters training, which also works without."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.doors import later, optional
from ortpipe.graph.core.builder import Builder, Names
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.training import Training

if TYPE_CHECKING:
    from ortpipe.stages.train.vector import Vector as vector_of
else:
    later(__name__)

Shapes = Mapping[str, tuple[int, ...]]
Values = Mapping[str, ir.Value]


@dataclass(frozen=True)
class Layout:
    """The variables that a step carries; products of the backward pass can accumulate directly into them."""

    shapes: Shapes  # of all parameters, in order

    def as_vector(self, dtype: ir.DataType) -> "Layout":
        """Return the layout that carries all parameters as one vector of this type."""
        vector: Layout = vector_of(self.shapes, dtype)
        return vector

    def pack(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Convert parameters' arrays to variables'."""
        return {name: arrays[name] for name in self.shapes}

    def unpack(self, variables: Arrays) -> dict[str, np.ndarray]:
        """Convert variables' arrays to parameters'."""
        return dict(variables)

    def write(
        self, op: Builder, names: Names, parameters: Values, gradients: Values
    ) -> dict[str, tuple[ir.Value, ir.Value]]:
        """Return each variable with its gradient in a step, whose nodes may be added by `op` or in front of all."""
        return {name: (parameters[name], gradients[name]) for name in self.shapes}


class Speed:
    """Hooks that make training faster. The defaults do nothing; `ortpipe.fast` overrides them."""

    def layout(self, layout: Layout, arrays: Arrays) -> Layout:
        """Return how a step carries these parameters."""
        return layout

    def rewrite(
        self, epoch: ir.Model, size: int, seed: str, gradients: Sequence[str], runtime: RuntimeConfig | None
    ) -> None:
        """Rewrite an epoch graph, in place, for batches of `size` rows and for the engine that runs it.

        `seed` and `gradients` name the initializer that starts the backward pass, and its results.
        """

    def engine(self, training: Training, steps: int, obstacle: Callable[[str], str | None]) -> tuple[str, str]:
        """Return the engine for `runtime.engine=auto`, and the reason; see `ortpipe/fast/engine_choice.py`."""
        return "onnxruntime", "without ortpipe.fast"

    def prepare(self, model: onnx.ModelProto) -> dict[str, bool]:
        """Sort the nodes of a model for its session; return further arguments of the session."""
        return {"planned": False}


@functools.cache
def speed() -> Speed:
    """Return the hooks of `ortpipe.fast`, or the defaults if the folder is missing."""
    fast: type[Speed] | None = optional("ortpipe.fast", "Fast")
    return Speed() if fast is None else fast()
