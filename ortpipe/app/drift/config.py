"""The limits of `ortpipe retrain` for new rows."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from ortpipe.data import DataConfig
from ortpipe.settings import Config, NotNegative

Part = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class CheckConfig(Config):
    """Limits of new rows, per column and label; null: only report. Other runs ignore them.

    Attributes:
        missing: by how much the share of missing values may grow.
        new_words: the share of values that may be words or classes of no training row.
        outside: the share of numbers that may be outside the range of the training rows.
        psi: the population stability index.
        p_value: the least p-value of the two-sample test, adjusted for the number of columns.
        exclude: columns that are not checked, by name or glob, such as a year.
    """

    missing: Part | None = 0.2
    new_words: Part | None = 0.5
    outside: Part | None = 0.5
    psi: NotNegative | None = None
    p_value: Part | None = None
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckedDataConfig(DataConfig):
    """The rows of a run, and the limits for rows that retrain it.

    Attributes:
        check: the limits of `ortpipe retrain` for new rows.
    """

    check: CheckConfig = CheckConfig()
