"""The catalogue of derive engines; every one keeps the same contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ortpipe.settings import Catalogue

if TYPE_CHECKING:
    import onnx


class Engine(Protocol):
    """A config that differentiates when called."""

    def __call__(
        self, model: onnx.ModelProto, loss: str, parameters: Sequence[str], inputs: Sequence[str]
    ) -> tuple[onnx.ModelProto, dict[str, str]]:
        """Return a model that computes the loss and its gradients, and the gradient output of each name.

        `model` has the loss as its only output; values of the result that carry one of its names hold the same.
        """


ENGINES: Catalogue[type] = Catalogue(
    "engine",
    {
        "native": "ortpipe.stages.derive.engines.native:Native",
        "ort": "ortpipe.stages.derive.engines.ort:Ort",
    },
)
