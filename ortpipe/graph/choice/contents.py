"""Recognize masks, and tables that a formula generates, by an initializer's values."""

import numpy as np

LOW = -1e4  # the largest value of an additive mask; float16 ends at −65504
SURELY_LOW = -1e8  # lower than any bias
LEAST = 8  # entries of a sequence for a proof: two determine a recurrence, the others confirm it
FIRST, COLUMNS = 64, 256  # the rows and columns that are examined; float32 angles lose digits in later rows


def is_added_mask(array: np.ndarray) -> bool:
    """Return whether values are those of an additive mask: 0, and very low numbers or −∞.

    >>> is_added_mask(np.array([0, -1e9])), is_added_mask(np.array([-2e4, 3.0]))
    (True, False)
    """
    if np.isneginf(array).any():
        return not np.isnan(array).any()
    low = array <= LOW
    return bool(low.any() and not array[~low].any() and (not low.all() or (array <= SURELY_LOW).all()))


def is_zero_one(array: np.ndarray) -> bool:
    """Return whether values are 0 and 1, and both occur."""
    return array.size > 1 and bool(np.isin(array, (0, 1)).all()) and len(np.unique(array)) == 2


def is_switch(array: np.ndarray) -> bool:
    """Return whether values are 0 and one negative number, and both occur, as in a mask of −100."""
    values = np.unique(array)
    return len(values) == 2 and bool(values[0] < 0 == values[1])


def is_counted(array: np.ndarray) -> bool:
    """Return whether values are many whole numbers or halves, as the positions of a grid."""
    halves = 2 * array.astype(np.float64)
    return bool((halves == np.round(halves)).all()) and len(np.unique(halves)) >= LEAST


def is_formula(array: np.ndarray, *, lines: bool = False) -> bool:
    """Return whether values are exact sines and cosines along an axis; `lines` includes straight lines.

    s(t) = a·cos(ω·t + φ) satisfies s(t + 1) + s(t − 1) = 2·cos ω·s(t); lines do with ω = 0. Each column must, with its
    own ω: tables of positions do along the positions, a Fourier basis under any window along the frequencies (rows of
    cosines, then of sines). Trained or random values do not, for each further entry is one more equation.

    >>> t, k = np.arange(16)[:, None], np.arange(8)[None]
    >>> window = np.hanning(10)[1:-1]
    >>> is_formula(np.cos(t * k) * window), is_formula(np.random.default_rng(0).normal(size=(16, 8)))
    (True, False)
    """
    values = np.squeeze(array)
    if not np.isfinite(values).all():
        return False
    tolerance = 5e-3 if array.dtype.itemsize == 2 else 1e-4
    return any(
        _is_formula_along(values, axis, lines, tolerance) for axis, size in enumerate(values.shape) if size >= LEAST
    )


def _is_formula_along(values: np.ndarray, axis: int, lines: bool, tolerance: float) -> bool:
    columns = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    columns = columns[:, np.linspace(0, columns.shape[1] - 1, min(columns.shape[1], COLUMNS)).astype(int)].astype(
        np.float64
    )
    half = len(columns) // 2
    blocks = [[columns], [columns[:half], columns[half:]], [columns[::2], columns[1::2]]]
    return any(
        all(
            len(block) >= LEAST and _satisfies_recurrence(block[:FIRST].astype(np.float64), tolerance)
            for block in parts
        )
        and any(_varies(block[:FIRST].astype(np.float64), lines) for block in parts)
        for parts in blocks
    )


def _satisfies_recurrence(columns: np.ndarray, tolerance: float) -> bool:
    around, middle = columns[2:] + columns[:-2], columns[1:-1]
    error = np.abs(around - 2 * _cosines(columns) * middle)
    return bool((error <= tolerance * max(np.abs(columns).max(), 1e-30)).all())


def _varies(columns: np.ndarray, lines: bool) -> bool:
    """Return whether columns are not constant; constant ones, such as a new bias, satisfy the recurrence, too."""
    moving = np.ptp(columns, axis=0) > 1e-3 * np.abs(columns).max()
    return bool(moving.any()) if lines else int((moving & (_cosines(columns) < 0.999)).sum()) >= 2


def _cosines(columns: np.ndarray) -> np.ndarray:
    around, middle = columns[2:] + columns[:-2], columns[1:-1]
    norms = 2 * (middle**2).sum(axis=0)
    return np.clip(np.divide((around * middle).sum(axis=0), norms, out=np.ones(len(norms)), where=norms > 0), -1, 1)
