"""Measures of two samples: the stability index, and tests whether both have one distribution. Loads SciPy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import chi2, chi2_contingency, false_discovery_control, ks_2samp

CERTAIN = 0.999  # the probability with which equal distributions give a smaller stability index


def psi(old: Sequence[int], new: Sequence[int]) -> float:
    """Return the population stability index of the counts in bins: Σ (q − p) ln(q / p) over their shares p and q.

    Each bin counts half a row more, so that an empty one has a logarithm.

    >>> round(psi([100, 100], [100, 100]), 4), round(psi([100, 100], [50, 150]), 4)
    (0.0, 0.2716)
    """
    p, q = ((np.asarray(counts) + 0.5) / (np.asarray(counts).sum() + 0.5 * len(counts)) for counts in (old, new))
    return float(((q - p) * np.log(q / p)).sum())


def chance(old: Sequence[int], new: Sequence[int]) -> float:
    """Return the stability index that equal distributions exceed once in 1,000 times: χ² (1/N + 1/M).

    N and M are the numbers of rows, and χ² is that quantile with a degree of freedom less than there are bins.
    """
    rows = [max(1, int(np.asarray(counts).sum())) for counts in (old, new)]
    return float(chi2.ppf(CERTAIN, max(1, len(old) - 1)) * (1 / rows[0] + 1 / rows[1]))


def chi_squared(old: Sequence[int], new: Sequence[int]) -> float | None:
    """Return the p-value of Pearson's test that two rows of counts have one distribution; None for one bin."""
    table = np.array([old, new])
    table = table[:, table.sum(axis=0) > 0]
    return float(chi2_contingency(table, correction=False).pvalue) if table.shape[1] > 1 else None


def adjust(measured: Mapping[str, dict[str, Any]]) -> None:
    """Replace the p-values by those of Benjamini and Hochberg, which bound the share of false alarms."""
    tested = [measures for measures in measured.values() if measures["p_value"] is not None]
    for measures, p in (
        zip(tested, false_discovery_control([m["p_value"] for m in tested]), strict=True) if tested else ()
    ):
        measures["p_value"] = float(p)


def kolmogorov_smirnov(old: Sequence[float], new: np.ndarray) -> float:
    """Return the p-value of the test that two samples of numbers have one distribution."""
    return float(ks_2samp(old, new, method="asymp").pvalue)
