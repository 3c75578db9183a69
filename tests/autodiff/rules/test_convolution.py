from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from autodiff.numeric import worst_error
from autodiff.rules.onnx_cases import (
    disagreement,
    gradients,
    model_of,
    worst_error_in_runtime,
)
from engines import native

# Worst seen: 2e-7 in float64, 2e-5 between the runtimes in float32.
TOLERANCE, SINGLE = 1e-6, 1e-4

# (operator, attributes, shape of x, shape of w, with bias)
VARIANTS = {
    "1-D, uneven pads": ("Conv", "strides=[2], pads=[2,1]", (2, 2, 9), (3, 2, 3), 3),
    "few places": ("Conv", "pads=[0,1,2,1], strides=[1,2], dilations=[1,2]", (2, 2, 5, 6), (3, 2, 3, 2), 3),
    "few places, groups": ("Conv", "group=2, pads=[1,1,1,1]", (2, 4, 3, 4), (4, 2, 3, 3), None),
    "groups": ("Conv", "group=2, pads=[0,1,2,1]", (2, 4, 7, 6), (6, 2, 3, 2), 6),
    "groups, strides": ("Conv", "group=2, pads=[0,1,2,1], strides=[2,3]", (2, 4, 7, 6), (6, 2, 3, 2), 6),
    "depthwise": ("Conv", "group=4, pads=[1,1,1,1]", (2, 4, 7, 6), (4, 1, 3, 3), 4),
    "depthwise, two kernels each, strides, dilations": (
        *("Conv", "group=4, pads=[1,1,1,1], strides=[2,2], dilations=[1,2]"),
        *((2, 4, 7, 6), (8, 1, 3, 3), 8),
    ),
    "groups, pads wider than the kernel": ("Conv", "group=4, pads=[2,3,2,3]", (2, 4, 7, 6), (8, 1, 2, 2), None),
    "groups, large kernel": (
        *("Conv", "group=4, pads=[1,1,1,1], strides=[2,2], dilations=[1,2]"),
        *((2, 4, 11, 10), (8, 1, 4, 4), None),
    ),
    "large kernel": ("Conv", "pads=[1,0,2,1], strides=[3,2], dilations=[1,2]", (2, 3, 11, 10), (4, 3, 4, 3), None),
    "one place, 3-D": ("Conv", "strides=[2,1,3]", (2, 3, 3, 4, 8), (4, 3, 1, 1, 1), 4),
    "one place, groups": ("Conv", "group=2, strides=[2,1]", (2, 4, 7, 5), (6, 2, 1, 1), None),
    "one place, depthwise": ("Conv", "group=4", (2, 4, 5, 4), (4, 1, 1, 1), None),
    "one place, pads": ("Conv", "pads=[1,0,2,1]", (2, 3, 5, 4), (4, 3, 1, 1), None),
    "shifts": ("Conv", "pads=[1,0,2,1], dilations=[1,2]", (2, 4, 5, 6), (2, 4, 3, 2), 2),
    "shifts, no pads": ("Conv", "dilations=[1,2]", (2, 3, 6, 5), (2, 3, 3, 3), None),
    "shifts, 1-D": ("Conv", "pads=[3,1], dilations=[2]", (2, 6, 7), (3, 6, 3), None),
    "shifts, 3-D": ("Conv", "pads=[1,0,2,1,1,0]", (2, 4, 4, 3, 5), (2, 4, 2, 2, 3), 2),
    "shifts, 5×5, large": ("Conv", "pads=[2,2,2,2]", (1, 3, 6, 18), (3, 3, 5, 5), 3),
    "shifts, pads wider than the kernel": ("Conv", "pads=[4,0,3,3]", (2, 3, 4, 5), (2, 3, 3, 2), None),
    "shifts beyond the image": ("Conv", "pads=[3,3,3,3], dilations=[3,3]", (2, 3, 2, 1), (2, 3, 3, 3), None),
    "large image": ("Conv", "pads=[1,0,2,1], dilations=[1,2]", (1, 3, 17, 18), (2, 3, 3, 2), 2),
    "one place": ("Conv", "strides=[2,2]", (2, 3, 6, 6), (4, 3, 1, 1), None),
    "3-D": ("Conv", "pads=[1,1,0,0,1,0], strides=[2,1,2]", (1, 2, 5, 4, 5), (2, 2, 2, 2, 2), 2),
    "3-D, groups, large kernel": (
        *("Conv", "group=2, pads=[1,1,0,0,1,0], strides=[2,1,2]"),
        *((1, 4, 5, 6, 5), (4, 2, 2, 3, 2), None),
    ),
    **{
        f"{mode}, stride {s}": ("Conv", f'auto_pad="{mode}", strides=[{s},{s}]', (2, 2, 7, 6), (3, 2, 4, 3), 3)
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for s in (1, 2)
    },
    "transpose, 1-D": ("ConvTranspose", "strides=[2], pads=[2,1], output_padding=[1]", (2, 2, 5), (2, 3, 4), 3),
    "transpose, dilations": (
        *("ConvTranspose", "strides=[2,3], pads=[0,1,1,0], dilations=[2,1]"),
        *((2, 2, 3, 4), (2, 3, 4, 3), 3),
    ),
    "transpose, shifts": ("ConvTranspose", "pads=[1,0,1,1]", (2, 4, 5, 4), (4, 4, 3, 3), 4),
    "transpose, 3-D": (
        *("ConvTranspose", "strides=[2,1,2], pads=[0,1,1,0,0,1]"),
        *((1, 2, 3, 2, 2), (2, 2, 2, 3, 2), 2),
    ),
    "transpose, depthwise": ("ConvTranspose", "group=3, strides=[2,1]", (2, 3, 5, 4), (3, 1, 3, 2), None),
    "transpose, output_shape": (
        *("ConvTranspose", "output_shape=[10,8], strides=[3,2]"),
        *((2, 2, 3, 3), (2, 2, 3, 3), 2),
    ),
    "transpose, SAME_LOWER": (
        *("ConvTranspose", 'auto_pad="SAME_LOWER", strides=[2,2]'),
        *((2, 2, 3, 3), (2, 2, 3, 3), 2),
    ),
}


def case(op, attributes, x, w, bias, free=("N",)):
    rng = np.random.default_rng(1)
    dims = [*free, *x[len(free) :]]
    last, argument = (f", float[{bias}] b", ", b") if bias else ("", "")
    kernel = ",".join(map(str, w))
    result = ",".join("abcde"[: len(x)])
    text = f"""g (float[{",".join(map(str, dims))}] x, float[{kernel}] w{last}) => (float[{result}] y)
               {{ y = {op}<{attributes}>(x, w{argument}) }}"""
    feeds = {"x": x, "w": w, **({"b": (bias,)} if bias else {})}
    return model_of(text), {k: rng.standard_normal(v).astype(np.float32) for k, v in feeds.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_agrees_with_central_differences_and_onnxruntime_with_the_reference(name):
    model, feeds = case(*VARIANTS[name])
    assert worst_error(model, feeds) < TOLERANCE
    assert disagreement(model, feeds) < SINGLE


@pytest.mark.parametrize(
    "row",
    [
        ("Conv", "strides=[2,3], pads=[1,0,0,1]", (2, 2, 9, 7), (3, 2, 3, 2), 3),
        ("Conv", "group=2, strides=[2,3], pads=[1,0,0,1], dilations=[2,1]", (2, 4, 9, 7), (6, 2, 3, 2), None),
        ("Conv", 'group=2, auto_pad="SAME_UPPER"', (2, 4, 9, 7), (6, 2, 3, 2), None),
        ("ConvTranspose", "strides=[2,3], output_padding=[1,2]", (2, 2, 5, 4), (2, 3, 3, 2), 3),
    ],
    ids=lambda row: f"{row[0]} {row[1]}",
)
def test_batch_height_and_width_may_all_be_free(row):
    free = ("N", row[2][1], "H", "W")
    model, feeds = case(*row, free=free)
    assert worst_error(model, feeds) < TOLERANCE
    assert disagreement(model, feeds) < SINGLE


@pytest.mark.parametrize(
    "row",
    [
        ("group=2, strides=[2,1], pads=[1,0,0,1]", (2, 4, 5, 4), (4, 3, 3, 2), 6),
        ("group=2, strides=[2,1], output_shape=[9,5]", (2, 4, 5, 4), (4, 3, 4, 4), None),
        ('strides=[2,3], auto_pad="SAME_UPPER"', (2, 2, 5, 4), (2, 3, 3, 2), 3),
    ],
    ids=lambda row: row[0],
)
def test_a_transpose_that_onnx_reference_gets_wrong_agrees_with_differences_in_onnxruntime(row):
    # linear in each input, so that a step of 1 has no error but rounding
    assert worst_error_in_runtime(*case("ConvTranspose", *row), step=1) < SINGLE


@pytest.mark.usefixtures("training_build")  # newer runtimes refuse the forward
def test_output_padding_beyond_the_stride_is_as_zeros_appended():
    # neither runtime computes this forward right (allowed where dilation is larger): compare with Pad
    model, feeds = case("ConvTranspose", "dilations=[3,2], output_padding=[2,1]", (2, 2, 5, 4), (2, 3, 3, 2), None)
    same = model_of(
        """g (float[N,2,5,4] x, float[2,3,3,2] w) => (float[a,b,c,d] y) <int64[8] p = {0,0,0,0,0,0,2,1}>
        { z = ConvTranspose<dilations=[3,2]>(x, w) y = Pad(z, p) }"""
    )
    got, wanted = gradients(model, feeds), gradients(same, feeds)
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attributes", ["strides=[2,2], pads=[1,1,0,1]", "group=2, strides=[1,2], pads=[1,1,1,1]"])
@pytest.mark.parametrize("kernel", [3, 4])
def test_conv_is_differentiable_twice(attributes, kernel):
    shape = (4, 2 if "group" in attributes else 4, kernel, 3)
    model = model_of(
        f"""g (double[N,4,6,6] x, double[{",".join(map(str, shape))}] w) => (double loss)
        {{ z = Conv<{attributes}>(x, w) y = Tanh(z) loss = ReduceSum<keepdims=0>(y) }}"""
    )
    first, found = native(model, "loss", [], ["x", "w"])
    kept = [o for o in first.graph.output if o.name in found.values()]
    del first.graph.output[:]
    first.graph.output.extend(kept)
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal((2, 4, 6, 6)), "w": rng.standard_normal(shape)}
    assert worst_error(first, feeds) < TOLERANCE


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_pads_that_auto_pad_takes_from_free_sizes_give_the_gradient_of_known_ones(mode):
    attributes = f'auto_pad="{mode}", strides=[2,3]'
    variant = ("Conv", attributes, (2, 2, 7, 6), (3, 2, 3, 4), 3)
    (model, feeds), (free, _) = case(*variant, ("N", 2, 7, 6)), case(*variant, ("N", 2, "H", "W"))
    for name, expected in gradients(model, feeds).items():
        np.testing.assert_allclose(gradients(free, feeds)[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("named", [False, True], ids=["sizes", "names"])
@pytest.mark.parametrize(
    ("attributes", "shape", "image", "block"),
    [
        ("", (2, 8, 12), [4, 5], [2, 2]),
        ("<strides=[2,1], pads=[1,0,0,2], dilations=[1,2]>", (1, 12, 6), [5, 3], [3, 2]),
        ("<strides=[2]>", (2, 6, 3), [7], [3]),
    ],
)
def test_the_gradient_of_col2im_is_its_columns(attributes, shape, image, block, named):
    dims = ",".join(f"N{i}" if named else str(d) for i, d in enumerate(shape))
    sizes, kernel = (",".join(map(str, v)) for v in (image, block))
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[{dims}] x) => (y)
      <int64[{len(image)}] image = {{{sizes}}}, int64[{len(block)}] block = {{{kernel}}}>
      {{ y = Col2Im{attributes}(x, image, block) }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    assert worst_error(model, {"x": np.random.default_rng(0).normal(size=shape)}) < TOLERANCE


@pytest.mark.parametrize("name", ["shifts", "few places", "one place, 3-D", "large image", "transpose, shifts"])
def test_channels_of_the_data_may_be_known_from_the_kernels_alone(name):
    model, feeds = case(*VARIANTS[name], free=("N", "C"))
    assert worst_error(model, feeds) < TOLERANCE
    assert disagreement(model, feeds) < SINGLE
