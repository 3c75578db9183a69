"""The engines of derive, which differentiate a loss model: ortpipe's own, and that of onnxruntime's training build.

Names: `ENGINES` is the catalogue; each member is an `Engine`, a config that differentiates when called.

Read first: `native.py` (the default, which calls `ortpipe.autodiff`), `ort.py` (the operators that the training build
differentiates right) and `ortpipe/runtime/gradient_builder.py` (the call of the training build).
"""

from collections.abc import Sequence
from typing import Protocol

from ortpipe.graph.core.formulas import Model
from ortpipe.settings import Catalogue


class Engine(Protocol):
    """A config that differentiates when called."""

    def __call__(
        self, model: Model, loss: str, parameters: Sequence[str], inputs: Sequence[str]
    ) -> tuple[Model, dict[str, str]]:
        """Return a model that computes the given one's outputs and the loss's gradients, and each name's gradient.

        The loss is an output of `model`, which may be used up; values that keep their names hold the same.
        """


ENGINES: Catalogue[type] = Catalogue(
    "engine", {"native": "ortpipe.stages.derive.engines.native:Native", "ort": "ortpipe.stages.derive.engines.ort:Ort"}
)
