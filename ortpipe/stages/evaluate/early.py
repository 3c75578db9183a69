"""Checks of evaluate's settings by facts alone, before any stage runs."""

from typing import TYPE_CHECKING

from ortpipe.artifact import Facts
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.errors import EvaluateError
from ortpipe.stages.evaluate.config import EvaluateConfig

if TYPE_CHECKING:
    from ortpipe.stages.evaluate.checks import check_settings
else:
    later(__name__)


def check(facts: Facts, config: EvaluateConfig, *, data: Data, **others: object) -> None:
    """Raise EvaluateError for settings that do not fit the task or the rows, and for data without test rows."""
    if data.test is None:
        raise EvaluateError("evaluate needs test rows.", got="none", fix="Set {@data.split.test}=0.25.")
    more = (config.folds, config.metrics, config.by, config.calibration, config.threshold)
    if any(more) or config.baseline not in (None, "constant"):
        check_settings(facts, config, data)
