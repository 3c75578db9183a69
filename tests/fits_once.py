"""Fitting scikit-learn's network takes most of a short run: what one command fitted, the other processes take."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

from once import once

VARIABLE = "ORTPIPE_TESTS_FITS"  # the folder that the tests of one session share
MODULE = "ortpipe.stages.convert.sources.sklearn_estimator"


def patch() -> None:
    """Make that module, where it is imported, take the estimator that was fitted before on the same rows."""
    source = sys.modules.get(MODULE)
    if source is None or VARIABLE not in os.environ or hasattr(source._fit, "by_sklearn"):
        return
    by_sklearn, shared = source._fit, Path(os.environ[VARIABLE])

    def fit(estimator: Any, data: Any) -> Any:
        if "MLP" not in (text := repr(estimator)) or "random_state=" not in text:  # the others take milliseconds
            return by_sklearn(estimator, data)
        rows = data.train.sample()
        return once(shared, pickle.dumps((estimator, rows)), lambda: by_sklearn(estimator, data))

    fit.by_sklearn = by_sklearn  # type: ignore[attr-defined]
    source._fit = fit
