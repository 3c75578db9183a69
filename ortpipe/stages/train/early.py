"""Checks of train's settings by facts alone, before any stage runs."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ortpipe.artifact import Facts
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.errors import TrainError
from ortpipe.graph.core import globs
from ortpipe.stages.train.config import LOSS, TrainConfig
from ortpipe.stages.train.rates import rows_per_epoch

if TYPE_CHECKING:
    from ortpipe.data.labels import check_labels
    from ortpipe.stages.train.checks import check_rare
    from ortpipe.stages.train.continued import check_states
    from ortpipe.stages.train.full_batch import in_memory
    from ortpipe.stages.train.validation import check_monitor
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


def check_settings(config: TrainConfig, facts: Facts, data: Data, fixed_names: Collection[str] = ()) -> None:
    """Reject a pattern of no trained parameter, metrics that cannot be monitored, and settings of `checks.py`."""
    if facts.adapters or config.parallel or config.accumulate > 1:
        check_rare(config, facts)
    for key, values in (("weight_decay", config.weight_decay), ("factors", config.factors)):
        if isinstance(values, Mapping):
            globs.select(list(values), facts.parameters, TrainError, key, fixed_names)
    if config.early_stop.monitor != LOSS:
        check_monitor(config.early_stop.monitor, facts, data)
