"""onnx's own evaluator in float64: the second opinion on a graph and on its derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from acceptance.files import double
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_affine_grid, op_grid_sample
from scipy import special

from fuzz import loops


class Celu(OpRun):
    """max(0, x) + min(0, α (e^(x/α) − 1)): onnx's own in float32."""

    op_domain = ""

    def _run(self, x: np.ndarray, alpha: float = 1.0) -> tuple[np.ndarray]:
        return (np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha)),)


class Gelu(OpRun):
    """x Φ(x), or its approximation by tanh: onnx's own takes erf in float32."""

    op_domain = ""

    def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[np.ndarray]:
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),)
        return (0.5 * x * (1 + special.erf(x / np.sqrt(2))),)


class LRN(OpRun):
    """x / (bias + α/size Σ x²)^β over channels beside: onnx's own goes over rows, as if they were channels."""

    op_domain = ""

    def _run(self, x: np.ndarray, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1) -> Any:
        low, high = (size - 1) // 2, size // 2
        sums = [(x[:, max(0, c - low) : c + high + 1] ** 2).sum(1) for c in range(x.shape[1])]
        return (x / (bias + alpha / size * np.stack(sums, 1)) ** beta,)


class Unique(OpRun):
    """Different values: onnx's own takes rows of x whatever the axis is where it does not sort."""

    op_domain = ""

    def _run(self, x: np.ndarray, axis: int | None = None, sorted: int = 1) -> Any:
        y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
        if not sorted:
            order = np.argsort(first)
            y, first, counts = np.take(y, order, axis or 0), first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        return (y, first, inverse.reshape(-1), counts)[: len(self.onnx_node.output)]


class LpNormalization(OpRun):
    """x / ‖x‖: onnx's own takes Σx for ‖x‖₁."""

    op_domain = ""

    def _run(self, x: np.ndarray, axis: int = -1, p: int = 2) -> Any:
        norm = np.linalg.norm(x, p, axis, keepdims=True) if x.ndim else np.abs(x)
        return (x / norm,)


class BatchNormalization(OpRun):
    """With running means, or in training mode: onnx's own takes opset 9's for the latter."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, **given: Any) -> Any:
        def along(v: np.ndarray) -> np.ndarray:
            return v.reshape(1, -1, *[1] * (x.ndim - 2))

        axes, m = tuple(a for a in range(x.ndim) if a != 1), given.get("momentum") or 0.9
        training, epsilon = given.get("training_mode"), given.get("epsilon") or 1e-5
        of = (x.mean(axes), x.var(axes)) if training else (mean, variance)
        y = along(scale) * (x - along(of[0])) / np.sqrt(along(of[1]) + epsilon) + along(shift)
        if not training:
            return (y,)
        return (y, m * mean + (1 - m) * of[0], m * variance + (1 - m) * of[1])


class ConvTranspose(OpRun):
    """Each place of a kernel spreads what it reads over every stride-th output: onnx's own mixes groups up."""

    op_domain = ""

    def _run(self, x: Any, w: Any, b: Any = None, **given: Any) -> Any:
        spatial, groups = x.ndim - 2, given.get("group") or 1
        steps, spread = (given.get(k) or [1] * spatial for k in ("strides", "dilations"))
        extra, pads = given.get("output_padding") or [0] * spatial, given.get("pads") or [0] * 2 * spatial
        full = [
            s * (n - 1) + d * (k - 1) + 1 + e
            for s, n, d, k, e in zip(steps, x.shape[2:], spread, w.shape[2:], extra, strict=True)
        ]
        sizes = [f - a - z for f, a, z in zip(full, pads, pads[spatial:], strict=False)]
        if given.get("auto_pad", "NOTSET") not in (None, "NOTSET", "VALID"):
            sizes = [n * s for n, s in zip(x.shape[2:], steps, strict=True)]
            pads = [
                (f - n) // 2 if "UPPER" in given["auto_pad"] else -(-(f - n) // 2)
                for f, n in zip(full, sizes, strict=True)
            ]
        sizes = given.get("output_shape") or sizes
        if given.get("output_shape"):
            pads = [-(-(f - n) // 2) for f, n in zip(full, sizes, strict=True)]
        wide = np.zeros(
            [len(x), groups * w.shape[1], *(max(f, a + n) for f, a, n in zip(full, pads, sizes, strict=False))]
        )
        for place in np.ndindex(*w.shape[2:]):
            at = w[(..., *place)].reshape(groups, -1, w.shape[1])
            product = np.einsum("gco,ngc...->ngo...", at, x.reshape(len(x), groups, -1, *x.shape[2:]))
            cut = [
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(place, spread, x.shape[2:], steps, strict=True)
            ]
            wide[(..., *cut)] += product.reshape(len(x), -1, *x.shape[2:])
        y = wide[(..., *(slice(a, a + n) for a, n in zip(pads, sizes, strict=False)))]
        return ((y if b is None else y + b.reshape(-1, *[1] * spatial)).astype(x.dtype),)


class MaxPool(OpRun):
    """The largest of each window, and its place where that is asked for."""

    op_domain = ""

    def _run(self, x: Any, **given: Any) -> Any:
        kernel = given["kernel_shape"]
        values = np.stack([part for _, part in double._parts(x, kernel, -np.inf, given)])
        places = np.arange(x.size, dtype=np.float64).reshape(x.shape)
        if given.get("storage_order"):
            raise NotImplementedError
        found = np.stack([part for _, part in double._parts(places, kernel, -1.0, given)]).astype(np.int64)
        best = values.argmax(0)[None]
        result = [np.take_along_axis(v, best, 0)[0] for v in (values, found)]
        return tuple(result[: self.count])

    def __init__(self, node: Any, run_params: Any, schema: Any = None) -> None:
        super().__init__(node, run_params, schema)
        self.count = len(node.output)


class AveragePool(OpRun):
    """The mean of each window: with pads counted or not, but never what lies beyond them."""

    op_domain = ""

    def _run(self, x: Any, **given: Any) -> Any:
        kernel = given["kernel_shape"]
        total = sum(part for _, part in double._parts(x, kernel, 0.0, given))
        ones = np.ones(x.shape)
        if given.get("count_include_pad"):
            pads = given.get("pads") or [0] * 2 * len(kernel)
            if (given.get("auto_pad") or "NOTSET") in ("NOTSET", "VALID"):
                half = len(pads) // 2
                edges = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
                ones, given = np.pad(ones, edges, constant_values=1), {**given, "pads": [0] * len(pads)}
                counts = [sum(part for _, part in double._parts(ones, kernel, 0.0, given))]
                return (total / counts[0][tuple(slice(n) for n in total.shape)],)
            return (total / np.prod(kernel),)
        return (total / sum(part for _, part in double._parts(ones, kernel, 0.0, given)),)


class LpPool(OpRun):
    """(Σ |x|^p)^(1/p) of each window: onnx's own takes other windows where ceil_mode keeps one that goes beyond."""

    op_domain = ""

    def _run(self, x: Any, p: int = 2, **given: Any) -> Any:
        parts = double._parts(np.abs(x) ** (p or 2), given["kernel_shape"], 0.0, given)
        return (sum(part for _, part in parts) ** (1 / (p or 2)),)


class GlobalLpPool(OpRun):
    """(Σ |x|^p)^(1/p) of each channel: onnx has none."""

    op_domain = ""

    def _run(self, x: Any, p: int = 2) -> Any:
        return ((np.abs(x) ** p).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / p),)


class GroupNormalization(OpRun):
    """Channels in groups: a scale for each group before opset 21, for each channel since; onnx's own knows floats32."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, shift: Any, num_groups: int = 1, epsilon: float = 1e-5, **_: Any) -> Any:
        parts = x.reshape(len(x), num_groups, -1)
        normal = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + epsilon)
        scale, shift = (np.repeat(v, x.shape[1] // len(v)).reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, shift))
        return (normal.reshape(x.shape) * scale + shift,)


class MeanVarianceNormalization(OpRun):
    """(x − mean) / (deviation + 1e-9): onnx's own is of float32."""

    op_domain = ""

    def _run(self, x: Any, axes: Any = None) -> Any:
        axes = tuple(axes) if axes is not None else (0, 2, 3)
        return ((x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9),)


class GatherElements(double.GatherElements):
    """Where the indices are fewer than the values beside the axis, too."""

    def _run(self, x: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        shape = [n if a == axis % x.ndim else m for a, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True))]
        return super()._run(x[tuple(slice(n) for n in shape)], indices, axis)


class AffineGrid(OpRun):
    """In the type of its input: onnx's own rounds the grid to float32."""

    op_domain = ""

    def _run(self, theta: np.ndarray, size: np.ndarray, align_corners: int = 0) -> tuple[np.ndarray]:
        places = op_affine_grid.construct_original_grid(size[2:].tolist(), align_corners)  # […, axes + 1]
        found = places.reshape(-1, theta.shape[2]) @ theta.transpose(0, 2, 1)
        return (found.reshape(len(theta), *places.shape[:-1], theta.shape[1]).astype(theta.dtype),)


class GridSample(op_grid_sample.GridSample):
    """At coordinates of the grid's own type: onnx's own rounds them to float32."""

    op_domain = ""

    def _gs_denormalize_coordinates(self, n: Any, dims: Any, align_corners: bool) -> Any:
        pairs = zip(n, dims, strict=False)
        return np.array([self._gs_denormalize(v, size, align_corners) for v, size in pairs])


class Optional(OpRun):
    """What it is given: onnx's own puts it into a list, which OptionalGetElement does not take out."""

    op_domain = ""

    def _run(self, x: Any = None, type: Any = None) -> Any:
        return (x,)


OPERATORS: list[Any] = [
    *(double.Conv, double.Erf, double.GlobalMaxPool),
    *(AffineGrid, AveragePool, BatchNormalization, Celu, ConvTranspose, GatherElements, Gelu, GlobalLpPool),
    *(GroupNormalization, GridSample, LRN, LpNormalization, LpPool, MaxPool, MeanVarianceNormalization, Optional),
    *(Unique, *loops.OPERATORS),
]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return how far a is from b, relative to b's largest entry or to 1; nan where one has a nan."""
    if a.shape != b.shape:
        return np.inf
    return float(np.abs(a - b).max(initial=0) / max(1.0, np.abs(b).max(initial=0)))


def as_double(model: ModelProto) -> ModelProto:
    """Return a model in float64, but for the scales of a Resize, which are float32 whatever the data is."""
    own = double.as_double(model)
    scales = {node.input[2] for node in own.graph.node if node.op_type == "Resize" and len(node.input) > 2}
    for tensor in own.graph.initializer:
        if tensor.name in scales and tensor.data_type == TensorProto.DOUBLE:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    return own


class Reference:
    """A model that is run in float64."""

    def __init__(self, model: ModelProto) -> None:
        self._evaluator = ReferenceEvaluator(model, new_ops=OPERATORS)

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[Any]:
        """Return outputs by name; sequences stay lists."""
        with np.errstate(all="ignore"):
            found = self._evaluator.run(list(outputs), dict(feeds))
        return [y if isinstance(y, list) else np.asarray(y) for y in found]
