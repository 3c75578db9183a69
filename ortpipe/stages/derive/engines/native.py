"""The engine that differentiates with `ortpipe.autodiff`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.doors import later
from ortpipe.graph.core.formulas import Model
from ortpipe.settings import Config

if TYPE_CHECKING:
    from ortpipe.autodiff import with_gradients
else:
    later(__name__)


@dataclass(frozen=True)
class Native(Config):
    """ortpipe's own engine: one vector-Jacobian rule per operator, in `autodiff/rules/`."""

    def __call__(
        self, model: Model, loss: str, parameters: Sequence[str], inputs: Sequence[str]
    ) -> tuple[Model, dict[str, str]]:
        """See `Engine`. An operator without a rule raises DeriveError, which names its node."""
        return with_gradients(model, loss, (*parameters, *inputs))
