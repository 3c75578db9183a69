"""Checks of evaluate's settings by facts alone, before any stage runs."""

from typing import TYPE_CHECKING

from ortpipe.artifact import Facts
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.errors import EvaluateError
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.evaluate.config import EvaluateConfig

if TYPE_CHECKING:
    from ortpipe.data.slices import check_columns
    from ortpipe.metrics.named import check_fits
    from ortpipe.stages.evaluate.boosting import check_boosting
else:
    later(__name__)


def check(facts: Facts, config: EvaluateConfig, *, data: Data, runtime: RuntimeConfig | None = None) -> None:
    """Raise EvaluateError for a metric that does not fit the task, and for data without test rows."""
    if data.test is None:
        raise EvaluateError("evaluate needs test rows.", got="none", fix="Set {@data.split.test}=0.25.")
    if config.folds:
        raise EvaluateError("Folds belong to a run.", key="folds", got=config.folds, fix="Set {key}=0.")
    for name in config.metrics or ():
        check_fits(name, facts, "metrics")
    if config.baseline not in (None, "constant"):
        check_boosting(facts)
    if config.by:
        check_columns(data.test.head(1), config.by, "by")
