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

import ortpipe

# Worst seen: 2e-8 in float64, 2e-6 between the runtimes in float32, 4e-3 against float32 differences.
TOLERANCE, SINGLE, DIFFERENCES = 1e-6, 1e-5, 1e-2
C = (3,)
# (operator, attributes, shapes, opset)
VARIANTS = {
    **{
        f"batch, rank {len(x)}, training {t}": (
            *("BatchNormalization", f"training_mode={t}, epsilon=0.01"),
            *([x, C, C, C, C], 21),
        )
        for x in ((4, 3), (4, 3, 5), (4, 3, 2, 2), (2, 3, 2, 2, 2))
        for t in (0, 1)
    },
    "instance, 1-D": ("InstanceNormalization", "epsilon=0.1", [(2, 3, 5), C, C], 13),
    "instance, 3-D": ("InstanceNormalization", "", [(2, 3, 2, 2, 3), C, C], 21),
    "layer, opset 17": ("LayerNormalization", "", [(3, 4, 5), (5,), (5,)], 17),
    "layer, matrix": ("LayerNormalization", "epsilon=0.01", [(3, 5), (5,), (5,)], 21),
    "layer, no bias": ("LayerNormalization", "axis=1", [(3, 4, 5), (4, 5)], 21),
    "group, opset 18": ("GroupNormalization", "num_groups=2", [(3, 4, 5), (2,), (2,)], 18),
    "group, opset 21": ("GroupNormalization", "num_groups=2, stash_type=11", [(3, 4, 2, 3), (4,), (4,)], 21),
    "neighbours 3": ("LRN", "size=3, alpha=0.7, beta=0.6, bias=1.5", [(4, 4, 3, 2)], 21),
    "neighbours 5": ("LRN", "size=5, alpha=0.7", [(4, 4, 3, 2)], 13),
    "norm of columns": ("LpNormalization", "axis=0", [(3, 4)], 21),
    "norm of middles": ("LpNormalization", "axis=1", [(3, 4, 2)], 21),
}
# What onnxruntime has no kernel for
IN_REFERENCE = {
    **{f"neighbours {n}": ("LRN", f"size={n}, alpha=0.7", [(4, 4, 3, 2)], 21) for n in (2, 4)},
    "layer, broadcast scale": ("LayerNormalization", "axis=1", [(3, 4, 5), (1, 5), (4, 1)], 21),
    "layer, scalar scale": ("LayerNormalization", "axis=2", [(3, 4, 5), (1,), (1,)], 21),
}
# What onnx.reference computes otherwise, or only in float32
IN_RUNTIME = {
    "batch, opset 13": ("BatchNormalization", "", [(4, 3, 5), C, C, C, C], 13),
    "norm of power 1": ("LpNormalization", "p=1, axis=1", [(3, 4, 2)], 21),
    **{
        f"mean and variance, opset {v}{text}": ("MeanVarianceNormalization", axes, [(3, 3, 4, 2)], v)
        for v in (13, 17, 18, 21)
        for text, axes in (("", ""), (", axes", "axes=[1,-2]"))
    },
    "layer in float32": ("LayerNormalization", "", [(3, 4, 5), (5,), (5,)], 17),
    "group, opset 21": ("GroupNormalization", "num_groups=2", [(3, 4, 2, 3), (4,), (4,)], 21),
}


def case(op, attributes, shapes, opset, free="N"):
    inputs = [[free, *s[1:]] if i == 0 else s for i, s in enumerate(shapes)]
    declared = ", ".join(f"float[{','.join(map(str, s))}] {n}" for s, n in zip(inputs, "xsbmv", strict=False))
    outputs = "y, mean, variance" if "training_mode=1" in attributes else "y"
    text = f"""g ({declared}) => (float[{",".join("abcde"[: len(shapes[0])])}] y)
               {{ {outputs} = {op}<{attributes}>({", ".join("xsbmv"[: len(shapes)])}) }}"""
    rng = np.random.default_rng(2)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in zip("xsbmv", shapes, strict=False)}
    if "v" in feeds:
        feeds["v"] = np.abs(feeds["v"]) + np.float32(0.5)
    if "p=1" in attributes:  # |x| has a corner at 0: stay away from it
        feeds["x"] = np.sign(feeds["x"]) * (np.abs(feeds["x"]) + np.float32(0.2))
    return model_of(text.replace("<>", ""), opset), feeds


@pytest.mark.parametrize("free", ["N", None])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_agrees_with_central_differences_and_onnxruntime_with_the_reference(name, free):
    row = VARIANTS[name]
    model, feeds = case(*row, free=free or row[2][0][0])
    assert worst_error(model, feeds) < TOLERANCE
    if "stash_type" not in row[1]:
        assert disagreement(model, feeds) < SINGLE


@pytest.mark.parametrize("name", IN_REFERENCE)
def test_what_onnxruntime_lacks_agrees_with_central_differences(name):
    assert worst_error(*case(*IN_REFERENCE[name])) < TOLERANCE


@pytest.mark.parametrize("name", IN_RUNTIME)
def test_what_onnx_reference_lacks_agrees_with_differences_in_onnxruntime(name):
    assert worst_error_in_runtime(*case(*IN_RUNTIME[name]), step=0.01) < DIFFERENCES


def test_a_bias_per_row_is_summed_over_its_own_axes_if_the_scale_is_one_number_and_the_rows_are_unknown():
    text = (
        "g (float[2,N,1] x, float[1] s, float[4,1] b) => (float[a,c,d] y) { y = LayerNormalization<axis=1>(x, s, b) }"
    )
    rng = np.random.default_rng(2)
    feeds = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in {"x": (2, 4, 1), "s": (1,), "b": (4, 1)}.items()
    }
    assert worst_error(model_of(text), feeds) < TOLERANCE


def test_a_layer_normalization_hands_on_what_reaches_its_mean_and_deviation():
    model = model_of(
        """g (float[N,4] x, float[4] s) => (float[a,b] y, float[a,c] mean, float[a,c] inverse)
        { y, mean, inverse = LayerNormalization(x, s) }"""
    )
    x = np.array([[1, 2, 4, 3], [0, -1, 1, 2]], np.float32)
    assert worst_error_in_runtime(model, {"x": x, "s": np.ones(4, np.float32)}, step=0.01) < DIFFERENCES


def test_the_running_statistics_of_a_batch_normalization_have_no_gradient():
    model = model_of(
        """g (float[N,2] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[c] mean, float[c] variance)
        { y, mean, variance = BatchNormalization<training_mode=1>(x, s, b, m, v) }"""
    )
    ones = np.ones(2, np.float32)
    assert gradients(model, {"x": np.eye(2, dtype=np.float32), "s": ones, "b": ones, "m": ones, "v": ones}) == {}


def test_a_vector_of_zeros_has_no_norm_to_follow():
    model = model_of("g (float[N,2] x) => (float[a,b] y) { y = LpNormalization(x) }")
    assert gradients(model, {"x": np.array([[0, 0], [3, 4]], np.float32)})["x"][0].tolist() == [0, 0]


def test_no_pool_of_neighbouring_channels_counts_its_pads():
    """What stock onnxruntime 1.23.2 does wrongly from opset 19 on, and makes itself of a Pad right in front of one."""
    model, _ = case(*VARIANTS["neighbours 3"])
    nodes = list(ortpipe.gradient(model, ["y"], ["x"]).graph.node)
    pools, pads = ([n for n in nodes if n.op_type == kind] for kind in ("AveragePool", "Pad"))
    assert pools
    assert not any(a.name in ("pads", "count_include_pad") for n in pools for a in n.attribute)
    assert {n.input[0] for n in pools}.isdisjoint(o for n in pads for o in n.output)
