"""The engine that differentiates with `ortpipe.autodiff`."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.autodiff import with_gradients
from ortpipe.settings import Config


@dataclass(frozen=True)
class Native(Config):
    """ortpipe's own engine: one vector-Jacobian rule per operator, in `autodiff/rules/`."""

    def __call__(
        self, model: ir.Model, loss: str, parameters: Sequence[str], inputs: Sequence[str]
    ) -> tuple[ir.Model, dict[str, str]]:
        """See `Engine`. An operator without a rule raises DeriveError, which names its node."""
        return with_gradients(model, loss, (*parameters, *inputs))
