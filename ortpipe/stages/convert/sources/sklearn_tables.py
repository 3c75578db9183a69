"""Transformers that search a table for each column: bins, quantiles and splines; and powers."""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder

THRESHOLD = 1e-7  # sklearn.preprocessing._data.BOUNDS_THRESHOLD
EDGE = 5.199337582605575  # −Φ⁻¹(THRESHOLD − 2⁻⁵²), beyond which it clips


class Tables:
    """One sorted table per column of x [N, F], padded to one length."""

    def __init__(self, op: Builder, tables: Sequence[np.ndarray] | np.ndarray, x: ir.Value) -> None:
        self.op, self.x = op, x
        self.size = 1 << max(map(len, tables)).bit_length()  # a power of two above the count, for the binary search
        self.table = self.flat([np.pad(t, (0, self.size - len(t)), constant_values=np.inf) for t in tables])
        self.starts = op.const(np.arange(len(tables), dtype=np.int64) * self.size)

    def flat(self, tables: Any) -> ir.Value:
        """Return tables of the same layout, [F, size, …], for `at`."""
        return self.op.like(np.concatenate(np.asarray(tables)), self.x)

    def search(self, *, right: bool) -> ir.Value:
        """Return the number of entries < x, or with `right` ≤ x, int64 [N, F]."""
        op, step = self.op, self.size // 2
        place: Any = None
        while step:
            candidate = place + step if place is not None else op.const(np.array([[step]], np.int64))
            entry = self.at(candidate - 1)
            is_passed = op.GreaterOrEqual(self.x, entry) if right else op.Greater(self.x, entry)
            gain = op.Cast(is_passed, to=ir.DataType.INT64) * step
            place, step = gain if place is None else place + gain, step // 2
        return place

    def at(self, place: ir.Value, table: ir.Value | None = None) -> ir.Value:
        """Return the entries at places [N, F] of the tables, or of another table with the same layout."""
        return self.op.Gather(self.table if table is None else table, place + self.starts)


def kbins(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """The bin of each number, or one column per bin."""
    inner = [edges[1:-1] for edges in step.bin_edges_]
    bins = Tables(op, inner, x).search(right=True) if max(map(len, inner)) else op.Cast(x * 0.0, to=7)
    if step.encode == "ordinal":
        return op.cast(bins, x)
    counts = step.n_bins_
    owner, number = np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(n) for n in counts])
    return op.cast(op.Equal(op.Gather(bins, owner, axis=1), op.const(number.astype(np.int64))), x)


def quantile(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """The share of the training rows below x, interpolated between quantiles; `normal`: its normal quantile.

    For a repeated quantile, the mean of its first and last share. In float64, because of shares near 1.
    """
    original, x = x, op.Cast(x, to=ir.DataType.DOUBLE)
    quantiles = rounded(step.quantiles_, original)
    tables, shares, last = Tables(op, quantiles.T, x), step.references_, len(step.references_) - 1
    share = tables.flat(np.tile(np.pad(shares, (0, tables.size - len(shares))), (quantiles.shape[1], 1)))

    def interpolate(low: ir.Value) -> ir.Value:
        low = op.Min(op.Max(low, 0), max(0, last - 1))
        high = low + 1 if last else low
        below, above = tables.at(low), tables.at(high)
        share_below, share_above, gap = tables.at(low, share), tables.at(high, share), above - below
        slope = (share_above - share_below) / op.Where(op.Greater(gap, 0), gap, 1)
        return share_below + (x - below) * slope

    up, down = (interpolate(tables.search(right=right) - 1) for right in (True, False))
    y = op.Clip((up + down) * 0.5, 0.0, 1.0)
    lowest, highest = op.const(quantiles[:1]), op.const(quantiles[-1:])
    if is_normal := step.output_distribution == "normal":
        lower, upper = op.Less(x - THRESHOLD, lowest), op.Greater(x + THRESHOLD, highest)
    else:
        lower, upper = op.LessOrEqual(x, lowest), op.GreaterOrEqual(x, highest)
    y = op.Where(lower, 0, op.Where(upper, 1, y))
    y = op.Clip(normal_quantile(op, y), -EDGE, EDGE) if is_normal else y
    return op.cast(op.Where(op.IsNaN(x), x, y), original)


def rounded(array: np.ndarray, x: ir.Value) -> np.ndarray:
    """Return numbers in float64, rounded like the data: equal numbers stay equal."""
    assert x.dtype is not None
    return array.astype(x.dtype.numpy()).astype(np.float64)


# Wichura, Algorithm AS 241 (PPND16): numerators and denominators, highest power first
# fmt: off
CENTRAL = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)
MIDDLE = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)
FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)
# fmt: on


def normal_quantile(op: Builder, p: ir.Value) -> ir.Value:
    """Φ⁻¹(p) to about 16 digits, by Wichura's rational functions; for p of float64."""

    def ratio(terms: tuple[tuple[float, ...], tuple[float, ...]], r: ir.Value) -> ir.Value:
        return horner(terms[0], r) / horner(terms[1], r)

    q = p - 0.5
    inner = 0.425**2 - q * q
    tail = op.Max(op.Min(p, 1.0 - p), 1e-300)
    r = op.Sqrt(-op.Log(tail))
    outer = op.Where(op.LessOrEqual(r, 5.0), ratio(MIDDLE, r - 1.6), ratio(FAR, r - 5.0))
    return op.Where(op.LessOrEqual(op.Abs(q), 0.425), q * ratio(CENTRAL, inner), op.Sign(q) * outer)


def horner(coefficients: Sequence[Any], x: ir.Value) -> ir.Value:
    """Return the polynomial with these coefficients, those of the highest power first."""
    return functools.reduce(lambda y, c: y * x + c, coefficients)


def power(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """Box-Cox (x^λ − 1)/λ, or Yeo-Johnson: for x ≥ 0 that of 1 + x, for x < 0 −that of 1 − x with 2 − λ.

    In float64, because x^λ − 1 may cancel most digits of float32.
    """
    original, x, lambdas = x, op.Cast(x, to=ir.DataType.DOUBLE), step.lambdas_.astype(np.float64)
    if step.method == "box-cox":
        y = _box_cox(op, op.Log(x), lambdas)
    else:
        size = op.Log(op.Abs(x) + 1.0)
        y = op.Where(op.GreaterOrEqual(x, 0), _box_cox(op, size, lambdas), -_box_cox(op, size, 2 - lambdas))
    if step.standardize:
        scaler = vars(step)["_scaler"]  # fitted on the powers, without a public name
        y = (y - op.const(scaler.mean_)) / op.const(scaler.scale_)
    return op.cast(y, original)


def _box_cox(op: Builder, log: ir.Value, lambdas: np.ndarray) -> ir.Value:
    """(e^(λ·log) − 1)/λ; log where λ is 0."""
    is_zero = np.abs(lambdas) < np.spacing(1.0)
    curve = (op.Exp(log * op.const(lambdas)) - 1.0) / op.const(np.where(is_zero, 1, lambdas))
    return op.Where(op.const(is_zero), log, curve) if is_zero.any() else curve


def spline(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """B-splines of each column, as polynomials around the last knot t below x; in float64, as scikit-learn's.

    B(x) = Σₘ B⁽ᵐ⁾(t)/m! · (x − t)ᵐ, of the degree + 1 splines that are not 0 next to t; beyond the knots t is the first
    or the last one, and x too where `extrapolation` is constant.
    """
    _check_beyond_knots(step)
    original, x, degree = x, op.Cast(x, to=ir.DataType.DOUBLE), step.degree
    is_missing = op.Unsqueeze(op.IsNaN(x), [2])
    all_knots = [rounded(s.t, original) for s in step.bsplines_]
    splines = [type(s)(t, np.eye(len(t) - degree - 1), degree) for s, t in zip(step.bsplines_, all_knots, strict=True)]
    knots = np.stack([t[degree : len(t) - degree] for t in all_knots])  # [F, T]
    low, high = knots[:, 0], knots[:, -1]
    if step.extrapolation == "periodic":
        turns = op.Floor((x - op.const(low)) / op.const(np.where(high > low, high - low, 1)))
        x = x - turns * op.const(high - low)
    elif step.extrapolation in ("constant", "error"):
        x = op.Max(op.Min(x, op.const(high)), op.const(low))
    tables, count = Tables(op, knots, x), knots.shape[1]
    points = knots[:, np.clip(np.arange(tables.size) - 1, 0, count - 1)]  # t for each number of knots ≤ x
    first = np.stack([np.searchsorted(t[1:-1], p, side="right") for t, p in zip(knots, points, strict=True)])
    numbers = first[..., None] + np.arange(degree + 1)  # of the splines that are not 0, [F, size, degree + 1]
    place, coefficients = tables.search(right=True), list[ir.Value]()
    for m in reversed(range(degree + 1)):
        derivatives = [s(p, nu=m) for s, p in zip(splines, points, strict=True)]
        terms = np.stack([np.take_along_axis(d, n, 1) for d, n in zip(derivatives, numbers, strict=True)])
        if step.extrapolation == "linear" and m > 1:
            terms[:, [0, *range(count, tables.size)]] = 0
        coefficients.append(tables.at(place, tables.flat(terms / math.factorial(m))))
    y = horner(coefficients, op.Unsqueeze(x - tables.at(place, tables.flat(points)), [2]))
    total = step.bsplines_[0].c.shape[1]  # with `periodic`, the last splines are the first ones
    columns = op.const(np.arange(total if step.include_bias else total - 1, dtype=np.float64))
    number = tables.at(place, tables.flat(numbers % total))
    parts = [
        op.Where(op.Equal(op.Slice(number, [i], [i + 1], [2]), columns), op.Slice(y, [i], [i + 1], [2]), 0)
        for i in range(degree + 1)
    ]
    return op.cast(op.Flatten(op.Where(is_missing, 0, functools.reduce(operator.add, parts)), axis=1), original)


def _check_beyond_knots(step: Any) -> None:
    """Reject splines that scikit-learn 1.9 extends in its own way.

    Its linear extrapolation raises degrees 0 and 1 once for each column, and then takes the wrong knots as the ends of
    the next one. Between two equal knots at an end there is no polynomial to continue.
    """
    degree, beyond, columns = step.degree, step.extrapolation, len(step.bsplines_)
    knots = [s.t[degree : len(s.t) - degree] for s in step.bsplines_]
    repeats = any(t[0] == t[1] or t[-2] == t[-1] for t in knots)
    if beyond == "linear" and degree < 2 and columns > 1:
        got = f"degree={degree} and extrapolation='linear' for {columns} columns"
    elif repeats and (beyond == "continue" or (beyond in ("constant", "linear") and degree < 2)):
        got = f"degree={degree} and extrapolation={beyond!r} with two equal knots at an end"
    else:
        return
    rule = "SplineTransformer must have values beyond its knots that are those of its polynomials there."
    raise ConvertError(rule, got=got, fix="Set extrapolation to 'constant' and degree to 2 or more, and fit again.")
