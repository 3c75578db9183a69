"""The one place where `ortpipe.fast` enters training, which also works without it."""

import functools
from collections.abc import Callable, Sequence

import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.doors import optional
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.layout import Layout
from ortpipe.stages.train.training import Training


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
