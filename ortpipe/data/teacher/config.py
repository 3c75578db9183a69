"""The settings of a teacher."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from ortpipe.errors import ConfigError
from ortpipe.settings import Config, NotNegative, Seed

Arrays = Mapping[str, np.ndarray]
Remember = Callable[[Mapping[str, Any], Callable[[], Arrays]], Arrays]  # parts of a key, computation → result


@dataclass(frozen=True)
class TeacherConfig(Config):
    """A model whose predictions the model learns, besides the labels.

    Attributes:
        estimator: the import path of an estimator's class, or of a function that returns an estimator, such as
            `sklearn.ensemble.HistGradientBoostingRegressor` or `mymodule:teacher`. The endings Classifier and Regressor
            may be left out. Unless the estimator is fitted, it is fitted on the training rows.
        params: keyword arguments of the class or function.
        path: instead, a fitted estimator on disk, a pickle (`.pkl`, `.joblib`) with `trust: true`; with `estimator`,
            the file that it opens, as its argument `path`.
        trust: a pickle runs code when it is opened; say true only for files you made.
        folds: an estimator that is fitted here predicts a training row by a fit without that row's fold.
        alpha: the share of the teacher's prediction in a training row's target; the label has the rest.
        augment: new rows per training row, which only the teacher labels.
        mix: the chance of each of a new row's columns to come from a similar row instead of its own.
        neighbors: from how many of the most similar rows.
        seed: of the folds, of the new rows, and the random_state of an estimator that has none.
    """

    estimator: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
    trust: bool = False
    folds: Annotated[int, Ge(2), Le(100)] = 5
    alpha: Annotated[float, Ge(0), Le(1)] = 0.3
    augment: NotNegative = 0.0
    mix: Annotated[float, Ge(0), Le(1)] = 0.5
    neighbors: Annotated[int, Ge(1), Le(1000)] = 5
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.path is None:
            if self.estimator is None:
                rule, fix = "A teacher is an estimator or a file.", "Set {at}estimator or {at}path."
                raise ConfigError(rule, key="estimator", got="neither", fix=fix)
            return
        if not Path(self.path).is_file():
            raise ConfigError("{key} must be a file.", key="path", got=self.path, fix="Check the path.")
        if self.estimator is None and not self.trust:
            raise ConfigError(
                "A pickle runs code when it is opened, so it is opened only on request.",
                key="trust",
                got=self.path,
                fix="Set {key}=true if you made the file.",
            )
