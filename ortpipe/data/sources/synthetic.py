"""Rows that scikit-learn generates: a linear function with noise, or clusters of classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.sources.bundled import call_sklearn
from ortpipe.settings import Config, Count, Seed, one_of

MAKERS = {"classification": "make_classification", "regression": "make_regression"}


@dataclass(frozen=True)
class Synthetic(Config):
    """`rows` × `features` of `make_regression` or `make_classification`; the same seed gives the same rows.

    Attributes:
        task: `regression` (y = X·w + bias + noise) or `classification` (clusters of normal points).
        rows: number of rows.
        features: number of features; scikit-learn's default decides how many are informative.
        seed: seed of the features, the function or clusters, the noise and the weights.
        sample_weight: give each row a random weight, uniform in [0.5, 1.5).
        params: more keyword arguments of that function, such as `bias` and `noise`, or `n_classes`.
    """

    task: Annotated[str, one_of("task", MAKERS)] = "regression"
    rows: Count = 100
    features: Count = 2
    seed: Seed = 0
    sample_weight: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, split: SplitConfig | None = None) -> Rows:
        """Generate the rows.

        >>> rows = Synthetic(rows=3, features=2)()
        >>> rows.inputs["X"].shape, rows.label.shape, rows.digest() == Synthetic(rows=3, features=2)().digest()
        ((3, 2), (3,), True)
        """
        settings = {"n_samples": self.rows, "n_features": self.features, "random_state": self.seed}
        fix = "Correct {key}; set rows, features and seed by their own keys."
        features, label = call_sklearn(MAKERS[self.task], {**self.params, **settings}, fix)
        weights = np.random.default_rng(self.seed).uniform(0.5, 1.5, self.rows) if self.sample_weight else None
        return Rows(inputs={"X": features}, label=label, sample_weight=weights)
