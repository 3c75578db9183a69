"""Transformers that search a table for each column: bins, quantiles and splines; and powers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.builder import Builder

THRESHOLD = 1e-7  # sklearn.preprocessing._data.BOUNDS_THRESHOLD
EDGE = 5.199337582605575  # −Φ⁻¹(THRESHOLD − 2⁻⁵²), beyond which it clips


class Tables:
    """One sorted table per column of x [N, F], padded to one length."""

    def __init__(self, op: Builder, tables: Sequence[np.ndarray], dtype: Any) -> None:
        self.op, self.count, self.dtype = op, max(map(len, tables)), dtype
        self.size = 1 << self.count.bit_length()  # a power of two above the count, for the binary search
        ends = [np.concatenate([t, np.full(self.size - len(t), np.inf)]) for t in tables]
        self.table = op.const(np.concatenate(ends).astype(dtype))
        self.starts = op.const(np.arange(len(tables), dtype=np.int64) * self.size)

    def search(self, x: ir.Value, *, right: bool) -> ir.Value:
        """Return the number of entries < x, or with `right` ≤ x, int64 [N, F]."""
        op, step = self.op, self.size // 2
        place: Any = None
        while step:
            candidate = op.Add(place, step) if place is not None else op.const(np.array([[step]], np.int64))
            entry = self.at(op.Sub(candidate, 1))
            is_passed = op.GreaterOrEqual(x, entry) if right else op.Greater(x, entry)
            gain = op.Mul(op.Cast(is_passed, to=ir.DataType.INT64), op.const(np.array(step, np.int64)))
            place, step = gain if place is None else op.Add(place, gain), step // 2
        return place

    def at(self, place: ir.Value, table: ir.Value | None = None) -> ir.Value:
        """Return the entries at places [N, F] of the tables, or of another table with the same layout."""
        return self.op.Gather(self.table if table is None else table, self.op.Add(place, self.starts))


def kbins(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """The bin of each number, or one column per bin."""
    inner = [edges[1:-1] for edges in step.bin_edges_]
    bins = Tables(op, inner, dtype).search(x, right=True) if max(map(len, inner)) else op.Cast(op.Mul(x, 0.0), to=7)
    if step.encode == "ordinal":
        return op.cast(bins, x)
    counts = step.n_bins_
    owner, number = np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(n) for n in counts])
    return op.cast(op.Equal(op.Gather(bins, owner, axis=1), op.const(number.astype(np.int64))), x)


def quantile(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """The share of the training rows below x, interpolated between quantiles; `normal`: its normal quantile.

    For a repeated quantile, the mean of its first and last share. In float64, because of shares near 1.
    """
    dtype_out, x = x.dtype, op.Cast(x, to=ir.DataType.DOUBLE)
    quantiles = step.quantiles_.astype(dtype).astype(np.float64)  # rounded like the data: equal numbers stay equal
    columns, shares = quantiles.T, step.references_
    tables, last = Tables(op, columns, np.float64), len(shares) - 1
    share = op.const(np.tile(np.concatenate([shares, np.zeros(tables.size - len(shares))]), len(columns)))

    def interpolate(low: ir.Value) -> ir.Value:
        low = op.Min(op.Max(low, op.const(np.array(0, np.int64))), op.const(np.array(max(0, last - 1), np.int64)))
        high = op.Add(low, 1) if last else low
        below, above = tables.at(low), tables.at(high)
        share_below, share_above, gap = tables.at(low, share), tables.at(high, share), op.Sub(above, below)
        unit = op.const(np.array(1.0))
        slope = op.Div(op.Sub(share_above, share_below), op.Where(op.Greater(gap, op.const(np.array(0.0))), gap, unit))
        return op.Add(share_below, op.Mul(op.Sub(x, below), slope))

    up, down = (interpolate(op.Sub(tables.search(x, right=right), 1)) for right in (True, False))
    y = op.Clip(op.Mul(op.Add(up, down), 0.5), 0.0, 1.0)
    lowest, highest = op.const(quantiles[:1]), op.const(quantiles[-1:])
    if step.output_distribution == "normal":
        lower, upper = op.Less(op.Sub(x, THRESHOLD), lowest), op.Greater(op.Add(x, THRESHOLD), highest)
    else:
        lower, upper = op.LessOrEqual(x, lowest), op.GreaterOrEqual(x, highest)
    y = op.Where(upper, op.const(np.array(1.0)), y)
    y = op.Where(lower, op.const(np.array(0.0)), y)
    if step.output_distribution == "normal":
        y = op.Clip(normal_quantile(op, y), -EDGE, EDGE)
    return op.Cast(op.Where(op.IsNaN(x), x, y), to=dtype_out)


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
        top, bottom = (_horner(op, coefficients, r) for coefficients in terms)
        return op.Div(top, bottom)

    q = op.Sub(p, 0.5)
    inner = op.Sub(0.425**2, op.Mul(q, q))
    tail = op.Max(op.Min(p, op.Sub(1.0, p)), op.const(np.array(1e-300)))
    r = op.Sqrt(op.Neg(op.Log(tail)))
    outer = op.Where(
        op.LessOrEqual(r, op.const(np.array(5.0))), ratio(MIDDLE, op.Sub(r, 1.6)), ratio(FAR, op.Sub(r, 5.0))
    )
    central = op.LessOrEqual(op.Abs(q), op.const(np.array(0.425)))
    return op.Where(central, op.Mul(q, ratio(CENTRAL, inner)), op.Mul(op.Sign(q), outer))


def _horner(op: Builder, coefficients: Sequence[float], x: ir.Value) -> ir.Value:
    y = op.Mul(x, coefficients[0])
    for c in coefficients[1:-1]:
        y = op.Mul(op.Add(y, c), x)
    return op.Add(y, coefficients[-1])


def power(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """Box-Cox (x^λ − 1)/λ, or Yeo-Johnson: for x ≥ 0 that of 1 + x, for x < 0 −that of 1 − x with 2 − λ.

    In float64, because x^λ − 1 may cancel most digits of float32.
    """
    dtype_out, x, lambdas = x.dtype, op.Cast(x, to=ir.DataType.DOUBLE), step.lambdas_.astype(np.float64)
    if step.method == "box-cox":
        y = _box_cox(op, op.Log(x), lambdas)
    else:
        zero = op.const(np.array(0.0))
        size = op.Log(op.Add(op.Abs(x), 1.0))
        y = op.Where(op.GreaterOrEqual(x, zero), _box_cox(op, size, lambdas), op.Neg(_box_cox(op, size, 2 - lambdas)))
    if step.standardize:
        scaler = vars(step)["_scaler"]  # fitted on the powers, without a public name
        y = op.Div(op.Sub(y, op.const(scaler.mean_)), op.const(scaler.scale_))
    return op.Cast(y, to=dtype_out)


def _box_cox(op: Builder, log: ir.Value, lambdas: np.ndarray) -> ir.Value:
    """(e^(λ·log) − 1)/λ; log where λ is 0."""
    is_zero = np.abs(lambdas) < np.spacing(1.0)
    curve = op.Div(op.Sub(op.Exp(op.Mul(log, op.const(lambdas))), 1.0), op.const(np.where(is_zero, 1, lambdas)))
    return op.Where(op.const(is_zero), log, curve) if is_zero.any() else curve


def spline(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """B-splines of each column by the recursion of de Boor and Cox.

    Bᵢ,ₖ = (x − tᵢ)/(tᵢ₊ₖ − tᵢ) · Bᵢ,ₖ₋₁ + (tᵢ₊ₖ₊₁ − x)/(tᵢ₊ₖ₊₁ − tᵢ₊₁) · Bᵢ₊₁,ₖ₋₁. In float64, as scikit-learn's.
    """
    dtype_out, x = x.dtype, op.Unsqueeze(op.Cast(x, to=ir.DataType.DOUBLE), [2])  # [N, F, 1]
    degree, knots = step.degree, np.stack([s.t for s in step.bsplines_]).astype(dtype).astype(np.float64)  # [F, T]
    count = knots.shape[1] - degree - 1  # of splines
    low, high = knots[:, degree, None], knots[:, count, None]  # [F, 1]
    missing = op.IsNaN(x)
    if step.extrapolation == "periodic":
        period = np.where(high > low, high - low, 1)
        periods = op.Floor(op.Div(op.Sub(x, op.const(low)), op.const(period)))
        x = op.Sub(x, op.Mul(periods, op.const(period)))
    inside = op.Max(op.Min(x, op.const(high)), op.const(low))
    at = x if step.extrapolation in ("continue", "periodic") else inside
    starts, ends = knots[:, degree:count].copy(), knots[:, degree + 1 : count + 1].copy()
    starts[:, 0], ends[:, -1] = -np.inf, np.inf
    is_inside = op.And(op.GreaterOrEqual(inside, op.const(starts)), op.Less(inside, op.const(ends)))
    basis = op.Cast(is_inside, to=ir.DataType.DOUBLE)  # [N, F, pieces]
    basis = op.Pad(basis, [0, 0, degree, 0, 0, degree]) if degree else basis
    for k in range(1, degree + 1):
        basis = _of_degree(op, k, at, basis, knots)
    if step.extrapolation == "linear":
        ends_of = [(s.t[degree], s.t[-degree - 1]) for s in step.bsplines_]
        slopes = np.array([[s(e, nu=1) for e in pair] for s, pair in zip(step.bsplines_, ends_of, strict=True)])
        below, above = op.Min(op.Sub(x, op.const(low)), 0.0), op.Max(op.Sub(x, op.const(high)), 0.0)
        basis = op.Add(basis, op.Add(op.Mul(below, op.const(slopes[:, 0])), op.Mul(above, op.const(slopes[:, 1]))))
    if step.extrapolation == "periodic" and degree:
        head, tail = op.Slice(basis, [0], [degree], [2]), op.Slice(basis, [count - degree], [count], [2])
        middle = op.Slice(basis, [degree], [count - degree], [2])
        basis, count = op.Concat(op.Add(head, tail), middle, axis=2), count - degree
    basis = op.Where(missing, op.const(np.array(0.0)), basis)
    if not step.include_bias:
        count -= 1
        basis = op.Slice(basis, [0], [count], [2])
    return op.Cast(op.Reshape(basis, [-1, len(knots) * count]), to=dtype_out)


def _of_degree(op: Builder, k: int, at: ir.Value, basis: ir.Value, knots: np.ndarray) -> ir.Value:
    """Return the splines of degree k at points [N, F, 1] from those of degree k − 1."""
    m = knots.shape[1] - k - 1
    rising, falling = knots[:, k : k + m] - knots[:, :m], knots[:, k + 1 :] - knots[:, 1 : 1 + m]
    rise_factor, fall_factor = (np.where(gap > 0, 1 / np.where(gap > 0, gap, 1), 0) for gap in (rising, falling))
    current, following = op.Slice(basis, [0], [m], [2]), op.Slice(basis, [1], [m + 1], [2])
    rise = op.Mul(op.Sub(at, op.const(knots[:, :m])), op.const(rise_factor))
    fall = op.Mul(op.Sub(op.const(knots[:, k + 1 :]), at), op.const(fall_factor))
    return op.Add(op.Mul(rise, current), op.Mul(fall, following))
