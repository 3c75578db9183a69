"""Operators of newer opsets, of signals, and of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.forms.windows import picture
from fuzz.sketch import Rejected, Sketch


def rms_normalization(s: Sketch) -> str:
    """x / √mean x² over the last axes."""
    x = s.x(least=1)
    axis = s.axis(x)
    return s.op("RMSNormalization", [x, s.source(s.of(x)[axis:])], axis=axis, epsilon=1e-2)


def attention(s: Sketch) -> str:
    """softmax(Q Kᵀ) V, of four axes or of three, with groups of heads and a mask."""
    heads, size, length, other = s.size(1, 2), s.size(1, 3), s.size(1, 3), s.size(1, 3)
    group = s.size(1, 2)
    n = s.size(1, 2)
    given: dict[str, Any] = {"is_causal": 1} if s.flag(0.3) else {}
    if s.flag(0.3):
        given["softcap"] = 2.0
    if s.flag(0.3):
        given["scale"] = 0.4
    mask = s.source([length, other]) if s.flag(0.4) and "is_causal" not in given else None
    if s.flag():
        shapes = [[n, heads * group, length, size], *[[n, heads, other, size]] * 2]
    else:
        shapes = [[n, length, heads * group * size], *[[n, other, heads * size]] * 2]
        given |= {"q_num_heads": heads * group, "kv_num_heads": heads}
    q = s.x(len(shapes[0]), shape=shapes[0])
    return s.op("Attention", [q, *(s.source(shape) for shape in shapes[1:]), mask], **given)


def rotary_embedding(s: Sketch) -> str:
    """Pairs turned by the angles of their positions."""
    n, heads, length, size = s.size(1, 2), s.size(1, 2), s.size(1, 3), 2 * s.size(1, 2)
    x = s.x(4, shape=[n, heads, length, size])
    angles = s.numbers([5, size // 2])
    tables = [s.const(f(angles).astype(np.float32), np.float64) for f in (np.cos, np.sin)]
    positions = s.const(s.rng.integers(0, 5, [n, length]))
    return s.op("RotaryEmbedding", [x, *tables, positions], interleaved=int(s.flag()))


def tensor_scatter(s: Sketch) -> str:
    """A cache with rows written into it."""
    x = s.x(4, shape=[s.size(1, 2), s.size(1, 2), s.size(3, 5), s.size(1, 3)])
    n, heads, length, size = s.of(x)
    places = s.const(s.rng.integers(0, length - 1, n))
    return s.op("TensorScatter", [x, s.source([n, heads, 2, size]), places], axis=-2)


def affine_grid(s: Sketch) -> str:
    """Places of pixels under an affine map."""
    x = s.x(3, shape=[1, 2, 3])
    return s.op("AffineGrid", [x, s.const([1, 1, s.size(2, 3), s.size(2, 3)])], align_corners=int(s.flag()))


def grid_sample(s: Sketch) -> str:
    """Values between pixels, at places that are computed."""
    x = picture(s, 2)
    grid = s.unit(s.x(4, shape=[s.of(x)[0], s.size(1, 3), s.size(1, 3), 2]))
    new = s.opset >= 20
    modes = ["linear", "nearest", "cubic"] if new else ["bilinear", "nearest", "bicubic"]
    given = {"mode": s.choose(modes), "padding_mode": s.choose(["zeros", "border", "reflection"])}
    return s.op("GridSample", [x, grid], align_corners=int(s.flag()), **given)


def roi_align(s: Sketch) -> str:
    """Regions of pictures, cut to one size."""
    x = picture(s, 2)
    corners = s.rng.uniform(0, 1.5, [2, 2])
    regions = np.concatenate([corners, corners + s.rng.uniform(1, 2, [2, 2])], 1).astype(np.float32)
    given: dict[str, Any] = {"output_height": 2, "output_width": 2, "sampling_ratio": s.size(1, 2)}
    if s.opset < 16:  # onnx's evaluator shifts by half a pixel there, too, which ONNX and onnxruntime do not
        raise Rejected
    given["coordinate_transformation_mode"] = s.choose(["half_pixel", "output_half_pixel"])
    if s.flag(0.3):
        given["mode"] = "max"
    batch = s.const(s.rng.integers(0, s.of(x)[0], 2))
    return s.op("RoiAlign", [x, s.const(regions, np.float64), batch], **given)


def det(s: Sketch) -> str:
    """The determinant of each matrix."""
    n = s.size(1, 3)
    return s.op("Det", [s.x(3, shape=[s.size(1, 3), n, n]) if s.flag() else s.x(2, shape=[n, n])])


def dft(s: Sketch) -> str:
    """The discrete Fourier transform, and its inverse."""
    x = s.x(3, shape=[s.size(1, 2), s.size(3, 5), s.size(1, 2)])
    given: dict[str, Any] = {"inverse": 1} if s.flag(0.3) else {}
    if s.of(x)[-1] == 1 and s.flag(0.4) and not given:
        given["onesided"] = 1
    if s.opset < 20:
        return s.op("DFT", [x], axis=1, **given)
    return s.op("DFT", [x, None, s.const(1)], **given)


def stft(s: Sketch) -> str:
    """Fourier transforms of windows."""
    x = s.x(3, shape=[s.size(1, 2), s.size(6, 8), 1])
    window = s.source([4]) if s.flag() else None
    return s.op("STFT", [x, s.const(2), window, s.const(4)], onesided=int(s.flag()))


def col2im(s: Sketch) -> str:
    """Columns put back into a picture, where they overlap added."""
    spatial = s.size(1, 2)
    kernel, image = [s.size(1, 3) for _ in range(spatial)], [s.size(3, 5) for _ in range(spatial)]
    strides, dilations = [s.size(1, 2) for _ in range(spatial)], [1] * spatial
    pads = [min(1, k - 1) for k in kernel] * 2 if s.flag(0.4) else [0] * 2 * spatial
    if max(kernel) < 3 and s.flag(0.3):
        dilations = [2] * spatial
    windows = [
        (size + 2 * pad - (k - 1) * d - 1) // step + 1
        for size, k, d, step, pad in zip(image, kernel, dilations, strides, pads, strict=False)
    ]
    x = s.x(3, shape=[s.size(1, 2), s.size(1, 2) * int(np.prod(kernel)), int(np.prod(windows))])
    settings = {"strides": (strides, 1), "dilations": (dilations, 1), "pads": (pads, 0)}
    given = {name: values for name, (values, usual) in settings.items() if set(values) != {usual} or s.flag()}
    return s.op("Col2Im", [x, s.const(image), s.const(kernel)], **given)


def parts(s: Sketch) -> str:
    """A sequence of parts, put together again or read at one place."""
    x = s.x(least=1)
    axis = s.axis(x)
    sequence = s.op("SplitToSequence", [x, s.const(1)], axis=axis, **({"keepdims": 1} if s.flag() else {}))
    if s.flag():
        return s.op("SequenceAt", [sequence, s.const(0)])
    return s.op("ConcatFromSequence", [sequence], axis=axis)


def built(s: Sketch) -> str:
    """A sequence of given values."""
    x = s.x(least=1)
    sequence = s.op("SequenceConstruct", [x, s.like(x), s.op("Tanh", [x])])
    if s.flag():
        return s.op("SequenceAt", [sequence, s.const(s.choose([0, 2, -1]))])
    return s.op(
        "ConcatFromSequence", [s.op("SequenceConstruct", [x, s.op("Neg", [x])])], axis=0, new_axis=int(s.flag())
    )


def unpool(s: Sketch) -> str:
    """The largest of each window, put back where it was."""
    x = s.x(4, shape=[s.size(1, 2), s.size(1, 2), 2 * s.size(1, 2), 2 * s.size(1, 2)])
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return s.op("MaxUnpool", [*s.op("MaxPool", [x], 2, **window)], **window)


def optional(s: Sketch) -> str:
    """A value that might not be there, and is; or any value (opset 18)."""
    x = s.x()
    held = s.op("Optional", [x]) if s.flag() or s.opset < 18 else x
    return s.op("OptionalGetElement", [held])


FORMS: dict[str, Callable[[Sketch], Any]] = {
    "AffineGrid": affine_grid,
    "Attention": attention,
    "Col2Im": col2im,
    "ConcatFromSequence": built,
    "DFT": dft,
    "Det": det,
    "GridSample": grid_sample,
    "MaxUnpool": unpool,
    "OptionalGetElement": optional,
    "RMSNormalization": rms_normalization,
    "RoiAlign": roi_align,
    "RotaryEmbedding": rotary_embedding,
    "STFT": stft,
    "SequenceAt": built,
    "SplitToSequence": parts,
    "TensorScatter": tensor_scatter,
}
