"""Checks of train's settings by facts alone, before any stage runs."""

import dataclasses
from typing import TYPE_CHECKING

from ortpipe.artifact import Facts
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.training import check_settings, rows_per_epoch

if TYPE_CHECKING:
    from ortpipe.data.labels import check_labels
    from ortpipe.stages.train.continued import check_states
    from ortpipe.stages.train.full_batch import in_memory
else:
    later(__name__)


def check(facts: Facts, config: TrainConfig, *, data: Data, **others: object) -> None:
    """Reject labels that are no class, and settings that do not fit the model or the rows."""
    candidates = (*facts.parameters, *facts.constants)  # derive.parameters may select constants
    check_settings(config, dataclasses.replace(facts, parameters=candidates), data)
    for part in filter(None, (data.train, data.validation, data.test)):
        check_labels(facts, part)
    if config.states is not None:
        check_states(config, data)
    if config.optimizer.solver == "lbfgs":
        in_memory(data)
    else:
        rows_per_epoch(config, len(data.train))
