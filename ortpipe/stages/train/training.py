"""What every solver is given: train's own arguments, once they are checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ortpipe.artifact import Artifact, under
from ortpipe.data.rows import Data
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.checkpoint import Checkpoint
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.initial import first_values
from ortpipe.stages.train.validation import Validation


@dataclass(frozen=True)
class Training:
    """One call of train; see there.

    Attributes:
        validate: evaluates the validation rows, where there are any.
    """

    artifact: Artifact
    config: TrainConfig
    data: Data
    runtime: RuntimeConfig | None
    report: Callable[[object], None]
    start: Checkpoint | Mapping[str, np.ndarray] | None
    validate: Validation | None

    @property
    def before(self) -> Mapping[str, np.ndarray] | None:
        """The tensors that training continues from."""
        return self.start.tensors if isinstance(self.start, Checkpoint) else self.start

    def first_values(self) -> dict[str, np.ndarray]:
        """Return the parameters and statistics that training began with, of which a continued one keeps the record."""
        return first_values(self.artifact, self.config) if self.before is None else under("initial", self.before)
