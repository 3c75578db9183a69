from __future__ import annotations

import numpy as np
import pytest
from autodiff.numeric import worst_error
from autodiff.rules.onnx_cases import (
    disagreement,
    gradients,
    model_of,
    worst_error_in_runtime,
)

from ortpipe.autodiff.rules import pooling

# Worst seen: 4e-7 in float64 (|x|³ of large sums), 2e-3 in float32 differences, 5e-7 between the runtimes.
# Central differences of a loss of 10⁴ in float64 round at 10⁻⁶.
TOLERANCE, DIFFERENCES, SINGLE = 5e-6, 5e-3, 1e-5

# (operator, attributes, shape of x, opset)
VARIANTS = {
    "max, 1-D": ("MaxPool", "kernel_shape=[3], strides=[2], pads=[1,1]", (2, 2, 9), 21),
    "max, 1-D, opset 13": ("MaxPool", "kernel_shape=[3], strides=[2], pads=[1,1]", (2, 2, 9), 13),
    "max, 1-D, stride 1": ("MaxPool", "kernel_shape=[3]", (2, 2, 9), 21),
    "max, stride 1, uneven pads": ("MaxPool", "kernel_shape=[2,3], pads=[0,1,1,1]", (2, 2, 7, 6), 21),
    "max, stride 1, SAME_LOWER": ("MaxPool", 'kernel_shape=[3,2], auto_pad="SAME_LOWER"', (2, 2, 7, 6), 21),
    "max, overlapping, opset 13": ("MaxPool", "kernel_shape=[3,3], strides=[1,2], pads=[0,1,1,1]", (2, 2, 7, 6), 13),
    "max, ceil, opset 13": ("MaxPool", "kernel_shape=[2,2], strides=[2,2], ceil_mode=1", (2, 2, 7, 6), 13),
    "max, side by side": ("MaxPool", "kernel_shape=[2,3], strides=[2,3]", (2, 2, 6, 6), 21),
    "max, side by side, opset 13": ("MaxPool", "kernel_shape=[2], strides=[2]", (2, 2, 6), 13),
    "max, side by side, begun in the pads": (
        *("MaxPool", "kernel_shape=[2,2], strides=[2,2], pads=[1,0,0,0]"),
        *((2, 2, 6, 6), 21),
    ),
    "max, side by side, 3-D": ("MaxPool", "kernel_shape=[2,1,3], strides=[2,1,3]", (2, 2, 4, 2, 6), 21),
    "max, column-major": ("MaxPool", "kernel_shape=[2,2], strides=[2,2], storage_order=1", (2, 2, 7, 6), 21),
    "max, dilations, ceil": (
        *("MaxPool", "kernel_shape=[3,2], strides=[2,1], dilations=[2,1], ceil_mode=1"),
        *((2, 2, 7, 6), 21),
    ),
    "max, 3-D": ("MaxPool", "kernel_shape=[3,2,2], strides=[2,1,2], pads=[1,0,0,1,1,1]", (2, 2, 5, 6, 4), 21),
    **{
        f"average, {text}, count_include_pad {c}": (
            *("AveragePool", f"{attributes}, count_include_pad={c}"),
            *(shape, 21),
        )
        for c in (0, 1)
        for text, attributes, shape in (
            ("1-D", "kernel_shape=[3], strides=[2], pads=[1,1]", (2, 2, 9)),
            ("uneven pads", "kernel_shape=[2,3], pads=[0,1,1,1]", (2, 2, 7, 6)),
            ("VALID", 'kernel_shape=[3,2], strides=[2,3], auto_pad="VALID"', (2, 2, 7, 6)),
            ("SAME_UPPER", 'kernel_shape=[3,2], strides=[2,2], auto_pad="SAME_UPPER"', (2, 2, 7, 6)),
            ("dilations", "kernel_shape=[3,2], strides=[2,1], dilations=[2,3], pads=[1,0,1,1]", (2, 2, 7, 6)),
            ("3-D", "kernel_shape=[3,2,2], strides=[2,1,2], pads=[1,0,0,1,1,1]", (2, 2, 5, 6, 4)),
        )
    },
    **{
        f"norm of power {p}": ("LpPool", f"kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1], p={p}", (2, 2, 7, 6), 21)
        for p in (1, 2, 3, 4)
    },
    "norm, dilations": ("LpPool", "kernel_shape=[3], strides=[2], dilations=[2], p=3", (2, 2, 7), 21),
    "norm, 3-D": ("LpPool", "kernel_shape=[3,2,2], strides=[2,1,2], pads=[1,0,0,1,1,1]", (2, 2, 5, 6, 4), 21),
    "mean of a line": ("GlobalAveragePool", "", (2, 3, 5), 21),
    "mean of a box": ("GlobalAveragePool", "", (2, 2, 2, 3, 4), 21),
    "maximum of an image": ("GlobalMaxPool", "", (2, 3, 4, 5), 21),
}
# What onnx.reference computes otherwise than onnxruntime, or not at all
IN_RUNTIME = {
    "max, SAME_LOWER, strides": (
        "MaxPool",
        'kernel_shape=[3,2], strides=[2,3], auto_pad="SAME_LOWER"',
        (2, 2, 8, 6),
        21,
    ),
    "max, 3-D, stride 1": ("MaxPool", "kernel_shape=[2,2,2]", (1, 2, 3, 3, 4), 21),
    "average, ceil beyond the pads": (
        "AveragePool",
        "kernel_shape=[3,3], strides=[3,3], ceil_mode=1",
        (2, 2, 7, 6),
        21,
    ),
    "average, strides wider than the kernel": (
        *("AveragePool", 'kernel_shape=[3,2], strides=[2,3], auto_pad="SAME_LOWER", count_include_pad=1'),
        *((2, 2, 7, 6), 21),
    ),
    **{f"norm of an image, power {p}": ("GlobalLpPool", f"p={p}", (2, 2, 4, 3), 21) for p in (1, 2, 3)},
    "maximum of a line": ("GlobalMaxPool", "", (2, 3, 5), 21),
    "maximum of a box": ("GlobalMaxPool", "", (1, 2, 2, 3, 4), 21),
}


def case(op, attributes, shape, opset, free=("N",)):
    dims = ",".join(map(str, [*free, *shape[len(free) :]]))
    text = f"g (float[{dims}] x) => (float[{','.join('abcde'[: len(shape)])}] y) {{ y = {op}<{attributes}>(x) }}"
    rng = np.random.default_rng(1)
    # all values lie a quarter apart, and off zero: nothing ties within the steps of a difference
    values = (rng.permutation(int(np.prod(shape))).reshape(shape) / 4 - 3.1).astype(np.float32)
    return model_of(text.replace("<>", ""), opset), {"x": values if "Max" in op else values / 8}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_agrees_with_central_differences_and_onnxruntime_with_the_reference(name):
    model, feeds = case(*VARIANTS[name])
    assert worst_error(model, feeds) < TOLERANCE
    assert disagreement(model, feeds) < SINGLE


@pytest.mark.parametrize("name", IN_RUNTIME)
def test_what_onnx_reference_lacks_agrees_with_differences_in_onnxruntime(name, request):
    if name == "max, SAME_LOWER, strides":
        request.getfixturevalue("training_build")  # newer runtimes refuse the forward
    assert worst_error_in_runtime(*case(*IN_RUNTIME[name]), step=0.02) < DIFFERENCES


@pytest.mark.parametrize("asked", ["y", "y, i"])
@pytest.mark.parametrize("order", [0, 1])
def test_max_pool_sends_everything_to_the_first_of_equal_values_in_row_major_order(asked, order):
    model = model_of(
        f"""g (float[N,1,4,4] x) => (float[a,b,c,d] y)
        {{ {asked} = MaxPool<kernel_shape=[2,2], strides=[2,2], storage_order={order}>(x) }}"""
    )
    x = np.array([[0, 1, 2, 2], [1, 1, 2, 2], [0, 0, 5, 5], [3, 3, 4, 5]], np.float32).reshape(1, 1, 4, 4)
    hit = gradients(model, {"x": x})["x"][0, 0] != 0
    np.testing.assert_array_equal(hit, np.array([[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]], bool))


@pytest.mark.parametrize("strip", [0, 128], ids=["MaxUnpool", "strips"])
@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (2, 3, 2, 4, 8)])
def test_windows_side_by_side_send_everything_to_the_first_maximum(shape, strip, monkeypatch):
    monkeypatch.setattr(pooling, "STRIP", strip)
    n = len(shape) - 2
    kernel, dims = ([1, 2, 4][-n:], ",".join(map(str, shape[1:])))
    model = model_of(
        f"g (float[N,{dims}] x) => (float[{','.join('abcde'[: n + 2])}] y)"
        f"{{ y = MaxPool<kernel_shape={kernel}, strides={kernel}>(x) }}"
    )
    x = np.random.default_rng(0).integers(0, 4, shape).astype(np.float32)  # with ties
    expected = np.zeros(shape, bool)
    for window in np.ndindex(*shape[:2], *(size // k for size, k in zip(shape[2:], kernel, strict=True))):
        spans = [slice(i * k, (i + 1) * k) for i, k in zip(window[2:], kernel, strict=True)]
        values, hit = (array[(*window[:2], *spans)] for array in (x, expected))
        hit[np.unravel_index(values.argmax(), values.shape)] = True
    np.testing.assert_array_equal(gradients(model, {"x": x})["x"] != 0, expected)


def test_strips_give_the_bytes_of_max_unpool(monkeypatch):
    model = model_of(
        "g (float[N,3,8,16] x) => (float[a,b,c,d] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"
    )
    x = np.maximum(0, np.random.default_rng(0).standard_normal((2, 3, 8, 16))).astype(np.float32)
    x *= 10.0 ** np.random.default_rng(1).integers(-30, 30, (2, 3, 8, 1)).astype(np.float32)
    strips = gradients(model, {"x": x})["x"]
    monkeypatch.setattr(pooling, "STRIP", 0)
    np.testing.assert_array_equal(strips, gradients(model, {"x": x})["x"])


def test_global_max_pool_sends_everything_to_the_first_of_equal_values():
    model = model_of("g (float[N,1,2,3] x) => (float[a,b,c,d] y) { y = GlobalMaxPool(x) }")
    x = np.array([0, 2, 1, 2, 2, 0], np.float32).reshape(1, 1, 2, 3)
    assert np.flatnonzero(gradients(model, {"x": x})["x"]).tolist() == [1]


def test_a_window_of_zeros_has_no_norm_to_follow():
    model = model_of("g (float[N,1,4] x) => (float[a,b,c] y) { y = LpPool<kernel_shape=[2], strides=[2]>(x) }")
    got = gradients(model, {"x": np.array([[[0, 0, 3, 4]]], np.float32)})["x"]
    assert got[0, 0, :2].tolist() == [0, 0]
    assert got[0, 0, 2] / got[0, 0, 3] == pytest.approx(3 / 4)


@pytest.mark.parametrize("op", ["MaxPool", "GlobalAveragePool", "GlobalMaxPool"])
def test_batch_height_and_width_may_all_be_free(op):
    attributes = "kernel_shape=[3,2], strides=[2,1]" if op == "MaxPool" else ""
    model, feeds = case(op, attributes, (2, 2, 7, 6), 21, free=("N", 2, "H", "W"))
    assert worst_error(model, feeds) < TOLERANCE
    assert disagreement(model, feeds) < SINGLE


FREE = {name: VARIANTS[name] for name in VARIANTS if name.endswith("count_include_pad 1") or name.startswith("norm, ")}


@pytest.mark.parametrize("name", FREE)
def test_windows_over_axes_of_free_sizes_have_the_gradient_of_known_ones(name):
    (model, feeds), (free, _) = case(*FREE[name]), case(*FREE[name], free=tuple("NCDHW"[: len(FREE[name][2])]))
    np.testing.assert_allclose(gradients(free, feeds)["x"], gradients(model, feeds)["x"], rtol=1e-5, atol=1e-6)


def test_a_maximum_of_windows_that_auto_pad_places_over_free_sizes():
    variant = ("MaxPool", 'kernel_shape=[3,2], strides=[2,2], auto_pad="SAME_UPPER"', (2, 2, 7, 6), 21)
    (model, feeds), (free, _) = case(*variant), case(*variant, free="NCHW")
    np.testing.assert_array_equal(gradients(free, feeds)["x"], gradients(model, feeds)["x"])


@pytest.mark.parametrize("strip", [0, 128], ids=["MaxUnpool", "strips"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_windows_without_a_maximum_leave_the_gradients_of_others_alone(value, strip, monkeypatch):
    """The runtime gives such a window a place below 0: training goes on until its loss is reported not to be finite."""
    monkeypatch.setattr(pooling, "STRIP", strip)
    model = model_of("g (float[1,1,4,4] x) => (float[a,b,c,d] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }")
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    expected = (gradients(model, {"x": x})["x"] != 0)[..., 2:, :]
    x[0, 0, :2, :2] = value
    assert ((gradients(model, {"x": x})["x"] != 0)[..., 2:, :] == expected).all()


def test_infinities_do_not_spread_over_their_strip():
    model = model_of("g (float[1,1,2,6] x) => (float[a,b,c,d] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }")
    x = np.full((1, 1, 2, 6), -np.inf, np.float32)  # all of the first window, as PyTorch its first place
    x[0, 0, :, 2:] = [[1, np.inf, 3, 3], [np.inf, 2, -np.inf, 0]]
    assert np.flatnonzero(gradients(model, {"x": x})["x"]).tolist() == [0, 3, 4]
