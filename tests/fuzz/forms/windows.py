"""Convolutions, pooling, resizing, and normalizations over channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.sketch import Rejected, Sketch


def picture(s: Sketch, spatial: int, channels: int | None = None) -> str:
    """Return a value [N, C, …] of some spatial axes."""
    shape = [s.size(1, 2), channels or s.size(1, 4), *(s.size(3, 6 if spatial < 3 else 3) for _ in range(spatial))]
    fits = [v for v in s.pool if s.rank(v) == spatial + 2 and min(s.of(v)[2:]) > 2 and channels in (None, s.of(v)[1])]
    return s.choose(fits) if fits and s.flag(0.7) else s.x(spatial + 2, shape=shape)


def geometry(s: Sketch, spatial: int, kernel: list[int]) -> dict[str, Any]:
    """Return strides, dilations and pads, some of them."""
    given: dict[str, Any] = {}
    if s.flag(0.5):
        given["strides"] = [s.size(1, 3) for _ in range(spatial)]
    mode = s.choose(["", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if mode == "pads":
        given["pads"] = [s.size(0, k - 1) for k in kernel * 2]
    elif mode:
        given["auto_pad"] = mode
    return given


def conv(s: Sketch) -> str:
    """Of one to three axes, with groups, strides, dilations and pads."""
    spatial = s.choose([1, 2, 2, 2, 3])
    group = s.choose([1, 1, 2])
    x = picture(s, spatial, None if group == 1 else 2 * s.size(1, 2))
    kernel = [s.size(1, 3) for _ in range(spatial)]
    w = s.source([group * s.size(1, 2), s.of(x)[1] // group, *kernel])
    given = geometry(s, spatial, kernel) | ({"group": group} if group > 1 or s.flag() else {})
    if s.flag(0.3) and given.get("auto_pad", "VALID") == "VALID":
        given["dilations"] = [s.size(1, 2) for _ in range(spatial)]
    if s.flag():
        given["kernel_shape"] = kernel
    if any((k - 1) * 2 >= n for k, n in zip(kernel, s.of(x)[2:], strict=True)):
        given.pop("dilations", None)
    return s.op("Conv", [x, w, s.source([s.of(w)[0]]) if s.flag() else None], **given)


def conv_transpose(s: Sketch) -> str:
    """The same backwards, with output_padding or output_shape."""
    spatial, group = s.choose([1, 2, 2]), s.choose([1, 1, 2])
    x = picture(s, spatial, None if group == 1 else 2)
    kernel = [s.size(1, 3) for _ in range(spatial)]
    w = s.source([s.of(x)[1], s.size(1, 2), *kernel])
    given: dict[str, Any] = {"group": group} if group > 1 else {}
    if s.flag(0.6):
        given["strides"] = [s.size(1, 2) for _ in range(spatial)]
        if s.flag(0.4):
            given["output_padding"] = [s.size(0, n - 1) for n in given["strides"]]
    if s.flag(0.4):
        given["pads"] = [min(1, k - 1) for k in kernel * 2]
    if s.flag(0.2):
        given["dilations"] = [s.size(1, 2) for _ in range(spatial)]
    bias = s.source([s.of(w)[1] * group]) if s.flag() else None
    return s.op("ConvTranspose", [x, w, bias], **given)


def pool(kind: str) -> Callable[[Sketch], str]:
    """Return the form of pooling over windows."""

    def form(s: Sketch) -> str:
        spatial = s.choose([1, 2, 2, 3])
        x = picture(s, spatial)
        kernel = [s.size(1, 3) for _ in range(spatial)]
        given = geometry(s, spatial, kernel) | {"kernel_shape": kernel}
        if kind == "LpPool":
            given["p"] = s.choose([1, 2, 3])
        elif kind == "AveragePool" and s.flag(0.4):
            given["count_include_pad"] = 1
        since = {"LpPool": 18, "AveragePool": 10, "MaxPool": 10}[kind]
        if s.opset >= since and s.flag(0.3) and "auto_pad" not in given:
            given["ceil_mode"] = 1
        since = {"LpPool": 18, "AveragePool": 19, "MaxPool": 10}[kind]
        if s.opset >= since and s.flag(0.3) and given.get("auto_pad", "VALID") == "VALID":
            given["dilations"] = [s.size(1, 2) for _ in range(spatial)]
        spread = given.get("dilations", [1] * spatial)
        if any((k - 1) * d >= n for k, d, n in zip(kernel, spread, s.of(x)[2:], strict=True)):
            raise Rejected  # a window beyond the value
        return s.op(kind, [x], **given)

    return form


def max_unpool(s: Sketch) -> str:
    """Where a MaxPool found its values."""
    x = s.x(4, shape=[s.size(1, 2), s.size(1, 2), 4, 2 * s.size(1, 2)])
    windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
    pooled, places = s.op("MaxPool", [x], 2, **windows)
    return s.op("MaxUnpool", [s.unit(pooled), places], **windows)


def whole(kind: str) -> Callable[[Sketch], str]:
    """Return the form of pooling over all there is."""

    def form(s: Sketch) -> str:
        return s.op(kind, [picture(s, s.size(1, 2))], **({"p": s.choose([1, 2, 3])} if "Lp" in kind else {}))

    return form


def resize(s: Sketch) -> str:
    """By scales or to sizes, of all modes."""
    x = picture(s, s.choose([1, 2, 2]))
    mode = s.choose(["nearest", "linear", "linear", "cubic"])
    given: dict[str, Any] = {"mode": mode}
    how = s.choose(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
    if s.flag(0.7):
        given["coordinate_transformation_mode"] = how
    if mode == "nearest" and s.flag(0.7):
        given["nearest_mode"] = s.choose(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic" and s.flag():
        given["cubic_coeff_a"] = -0.5
        given["exclude_outside"] = int(s.flag())
    if s.opset >= 18 and mode != "nearest" and s.flag(0.3):
        given["antialias"] = 1
    spatial = s.of(x)[2:]
    axes = list(range(2, 2 + len(spatial)))
    some = s.opset >= 18 and s.flag(0.4)
    if some:
        given["axes"] = axes
    if s.flag():
        sizes = [s.size(1, 7) for _ in spatial]
        return s.op("Resize", [x, None, None, s.const(sizes if some else [*s.of(x)[:2], *sizes])], **given)
    scales = [s.choose([0.5, 1.0, 1.5, 2.0]) for _ in spatial]
    if given.get("coordinate_transformation_mode") == how == "align_corners":
        scales = [2.0 if scale % 1 else scale for scale in scales]  # onnxruntime rounds the size before, ONNX after
    return s.op("Resize", [x, None, s.const(scales if some else [1.0, 1.0, *scales], np.float32)], **given)


def channels(s: Sketch, x: str) -> tuple[str, str]:
    """Return a scale and a shift for each channel."""
    return s.source([s.of(x)[1]]), s.source([s.of(x)[1]])


def batch_normalization(s: Sketch) -> str:
    """With running means, or those of the batch."""
    x = s.x(least=2)
    if s.opset >= 14 and s.flag(0.4):
        if s.of(x)[0] * np.prod(s.of(x)[2:]) < 3:
            raise Rejected
        mean, variance = s.const(np.zeros(s.of(x)[1]), np.float64), s.const(np.ones(s.of(x)[1]), np.float64)
        return s.op("BatchNormalization", [x, *channels(s, x), mean, variance], 3, training_mode=1, momentum=0.8)[0]
    variance = s.const(s.rng.uniform(0.5, 1.5, s.of(x)[1]).astype(np.float32), np.float64)
    mean = s.const(s.numbers([s.of(x)[1]]), np.float64)
    given = {"epsilon": 1e-3} if s.flag() else {}
    return s.op("BatchNormalization", [x, *channels(s, x), mean, variance], **given)


def instance_normalization(s: Sketch) -> str:
    """Each channel of each picture on its own."""
    x = picture(s, s.size(1, 2))
    return s.op("InstanceNormalization", [x, *channels(s, x)], epsilon=1e-2)


def lrn(s: Sketch) -> str:
    """By the channels beside."""
    return s.op("LRN", [picture(s, 2)], size=s.choose([1, 2, 3, 5]), alpha=0.3, beta=0.6, bias=1.5)


def layer_normalization(s: Sketch) -> str | list[str]:
    """Over the last axes; the mean and the deviation may be read too."""
    x = s.x(least=1)
    axis = s.axis(x)
    normal = s.of(x)[axis:]
    if np.prod(normal) < 3:
        raise Rejected
    scale = s.source([1] if s.flag(0.1) else normal)
    inputs = [x, scale, s.source(normal) if s.flag(0.6) else None]
    given = {"axis": axis, "epsilon": 1e-2}
    return s.op("LayerNormalization", inputs, 3 if s.flag(0.2) else 1, **given)


def group_normalization(s: Sketch) -> str:
    """Channels in groups; a scale for each group before opset 21, for each channel since."""
    x = picture(s, s.size(1, 2), 4)
    count = 4 if s.opset >= 21 else 2
    return s.op("GroupNormalization", [x, s.source([count]), s.source([count])], num_groups=2, epsilon=1e-2)


FORMS: dict[str, Callable[[Sketch], Any]] = {
    **{kind: pool(kind) for kind in ("AveragePool", "LpPool", "MaxPool")},
    **{kind: whole(kind) for kind in ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")},
    "BatchNormalization": batch_normalization,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "MaxUnpool": max_unpool,
    "Resize": resize,
}
