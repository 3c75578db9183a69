"""onnxruntime's fused operators, written in ONNX's: against its own kernels, and derivable."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from autodiff.numeric import worst_error

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError, DeriveError
from ortpipe.graph.core.check import finish, inferred
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.dialects import write_standard
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive

# What no CPU has a kernel for, or 1.19.2 computes otherwise than newer ones (with which all cases agree, 1.32.0).
ELSEWHERE = {
    "attention_added": "a bias that broadcasts over the rows",
    "dropout": "no kernel",
    "group_window": "one more than the window",
    "heads_mask": "a mask of keys",
    "heads_packed": "no kernel",
    "heads_packed_pairs": "no kernel",
    "skip_rms": "a bias",
}
HEAD = '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g '
IDS = (
    "int32[2,3] ids, int32[2,3] segments, float[9,8] words, float[5,8] places, float[2,8] kinds, float[8] g, float[8] h"
)
QKV = "float[2,3,8] q, float[2,4,8] k, float[2,4,8] v"


CASES = {  # operator → (inputs, outputs, call)
    "gelu": ("(float[2,8] x) => (float[2,8] y)", "y = com.microsoft.Gelu(x)"),
    "bias_gelu": ("(float[2,8] x, float[8] b) => (float[2,8] y)", "y = com.microsoft.BiasGelu(x, b)"),
    "fast_gelu": ("(float[2,8] x) => (float[2,8] y)", "y = com.microsoft.FastGelu(x)"),
    "fast_gelu_bias": ("(float[2,8] x, float[8] b) => (float[2,8] y)", "y = com.microsoft.FastGelu(x, b)"),
    "quick_gelu": ("(float[2,8] x) => (float[2,8] y)", "y = com.microsoft.QuickGelu<alpha=1.3>(x)"),
    "mat_mul": (
        "(float[2,4,3] a, float[2,5,4] b) => (float[2,3,5] y)",
        "y = com.microsoft.FusedMatMul<transA=1, transB=1, alpha=0.5>(a, b)",
    ),
    "mat_mul_batch": (
        "(float[3,2,4] a, float[5,2,4] b) => (float[2,3,5] y)",
        "y = com.microsoft.FusedMatMul<transBatchA=1, transBatchB=1, transB=1>(a, b)",
    ),
    "mat_mul_vector": (
        "(float[2,4,3] a, float[4] b) => (float[2,3] y)",
        "y = com.microsoft.FusedMatMul<transA=1, transB=1>(a, b)",
    ),
    "transpose_mat_mul": (
        "(float[4,3] a, float[4,5] b) => (float[3,5] y)",
        "y = com.microsoft.TransposeMatMul<transA=1>(a, b)",
    ),
    "gemm": (
        "(float[4,3] a, float[5,4] b, float[5] c) => (float[3,5] y)",
        'y = com.microsoft.FusedGemm<transA=1, transB=1, alpha=0.5, beta=2.0, activation="LeakyRelu", '
        "activation_alpha=0.3>(a, b, c)",
    ),
    "conv": (
        "(float[2,3,6] x, float[4,3,3] w, float[4] b) => (float[2,4,6] y)",
        'y = com.microsoft.FusedConv<pads=[1,1], activation="Clip", activation_params=[-0.5, 0.7]>(x, w, b)',
    ),
    "conv_sum": (
        "(float[2,3,6,6] x, float[4,3,3,3] w, float[4] b, float[2,4,4,4] z) => (float[2,4,4,4] y)",
        'y = com.microsoft.FusedConv<activation="HardSigmoid", activation_params=[0.3, 0.4]>(x, w, b, z)',
    ),
    "conv_tanh": (
        "(float[2,3,6,6] x, float[3,1,3,3] w) => (float[2,3,2,2] y)",
        'y = com.microsoft.FusedConv<group=3, strides=[2,2], activation="Tanh">(x, w)',
    ),
    "skip": (
        "(float[2,3,8] x, float[2,3,8] s, float[8] g, float[8] h, float[8] b) => (float[2,3,8] y, float[2,3,8] t)",
        "y, mean, scale, t = com.microsoft.SkipLayerNormalization<epsilon=0.01>(x, s, g, h, b)",
    ),
    "skip_broadcast": (
        "(float[2,3,8] x, float[3,8] s, float[8] g) => (float[2,3,8] y)",
        "y = com.microsoft.SkipLayerNormalization(x, s, g)",
    ),
    "skip_rms": (
        "(float[2,3,8] x, float[2,3,8] s, float[8] g, float[8] b) => (float[2,3,8] y, float[2,3,8] t)",
        "y, mean, scale, t = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=0.01>(x, s, g, b)",
    ),
    "embed": (
        f"({IDS}, int32[2,3] mask) => (float[2,3,8] y, int32[2] m, float[2,3,8] t)",
        "y, m, t = com.microsoft.EmbedLayerNormalization(ids, segments, words, places, kinds, g, h, mask)",
    ),
    "embed_places": (
        f"({IDS}, int32[2,3] at) => (float[2,3,8] y, int32[2] m)",
        'y, m = com.microsoft.EmbedLayerNormalization<epsilon=0.1>(ids, "", words, places, "", g, h, "", at)',
    ),
    "dropout": (
        "(float[2,8] x, float[8] b, float[2,8] r) => (float[2,8] y)",
        "y, m = com.microsoft.BiasDropout(x, b, r)",
    ),
    "group": (
        "(float[2,3,64] x, int32[2] last, int32[1] total, float[5,8] cos, float[5,8] sin) => (float[2,3,32] y)",
        "y, k, v = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1, do_rotary=1>"
        '(x, "", "", "", "", last, total, cos, sin)',
    ),
    "group_window": (
        "(float[2,3,32] q, float[2,3,16] k, float[2,3,16] v, int32[2] last, int32[1] total) => (float[2,3,32] y)",
        "y, a, b = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2, softcap=2.0, local_window_size=2>"
        '(q, k, v, "", "", last, total)',
    ),
    "trilu": ("(float[4,4] x) => (float[4,4] y)", "y = com.microsoft.Trilu<upper=0>(x)"),
    "rotary": (
        "(float[2,3,8] x, int64[2,3] at, float[5,2] cos, float[5,2] sin) => (float[2,3,8] y)",
        "y = com.microsoft.RotaryEmbedding(x, at, cos, sin)",
    ),
    "rotary_from": (
        "(float[2,2,3,4] x, int64[1] from, float[5,2] cos, float[5,2] sin) => (float[2,2,3,4] y)",
        "y = com.microsoft.RotaryEmbedding<interleaved=1>(x, from, cos, sin)",
    ),
    "rotary_partly": (
        "(float[2,3,16] x, int64[2,3] at, float[5,2] cos, float[5,2] sin) => (float[2,3,16] y)",
        "y = com.microsoft.RotaryEmbedding<num_heads=2, rotary_embedding_dim=4>(x, at, cos, sin)",
    ),
}
SELF = "float[2,3,8] x, float[8,24] w, float[24] b"
OTHERS = {
    "attention": (f"({SELF})", "<num_heads=2>(x, w, b)"),
    "attention_causal": (f"({SELF})", "<num_heads=2, unidirectional=1, scale=0.3>(x, w, b)"),
    "attention_ends": (f"({SELF}, int32[2] ends)", "<num_heads=2>(x, w, b, ends)"),
    "attention_starts": (f"({SELF}, int32[4] starts)", "<num_heads=2>(x, w, b, starts)"),
    "attention_mask": (f"({SELF}, int32[2,3] mask)", "<num_heads=2, mask_filter_value=-3.0>(x, w, b, mask)"),
    "attention_mask_3": (f"({SELF}, int32[2,3,3] mask)", "<num_heads=2, unidirectional=1>(x, w, b, mask)"),
    "attention_added": (f"({SELF}, float[1,2,3,3] a)", '<num_heads=2>(x, w, b, "", "", a)'),
    "attention_sizes": (
        "(float[2,3,8] x, float[8,20] w, float[20] b)",
        "<num_heads=2, qkv_hidden_sizes=[8, 8, 4]>(x, w, b)",
    ),
    "attention_past": (
        f"({SELF}, float[2,2,2,2,4] past)",
        '<num_heads=2, unidirectional=1>(x, w, b, "", past)',
    ),
}
for name, (inputs, call) in OTHERS.items():
    width = 4 if "sizes" in name else 8
    more = ", float[2,2,2,5,4] p" if "past" in name else ""
    CASES[name] = (
        f"{inputs} => (float[2,3,{width}] y{more})",
        f"y{', p' if more else ''} = com.microsoft.Attention{call}",
    )
for name, (inputs, call) in {
    "heads": (QKV, "(q, k, v)"),
    "heads_free": ("float[2,3,8] q, float[2,T,8] k, float[2,T,8] v", "(q, k, v)"),
    "heads_bias": (f"{QKV}, float[24] b", "(q, k, v, b)"),
    "heads_wide": ("float[2,3,8] q, float[2,4,8] k, float[2,4,12] v, float[28] b", "(q, k, v, b)"),
    "heads_mask": (f"{QKV}, int32[2,4] mask", '(q, k, v, "", mask)'),
    "heads_added": (f"{QKV}, float[2,2,3,4] a", '(q, k, v, "", "", a)'),
    "heads_causal": (
        "float[2,3,8] q, float[2,3,8] k, float[2,3,8] v",
        "(q, k, v)",
    ),
    "heads_packed": ("float[2,3,2,3,4] q", "(q)"),
    "heads_packed_pairs": ("float[2,3,8] q, float[2,4,2,2,4] k", "(q, k)"),
    "heads_cross": ("float[2,3,8] q, float[2,2,4,4] k, float[2,2,4,4] v", "(q, k, v)"),
    "heads_past": (
        "float[2,3,8] q, float[2,3,8] k, float[2,3,8] v, float[2,2,2,4] pk, float[2,2,2,4] pv",
        '(q, k, v, "", "", "", pk, pv)',
    ),
}.items():
    width = 12 if "wide" in name else 8
    outputs = ("y, pk2, pv2", f"float[2,3,{width}] y, float[2,2,5,4] pk2, float[2,2,5,4] pv2")
    written, typed = outputs if "past" in name else ("y", f"float[2,3,{width}] y")
    said = "num_heads=2, unidirectional=1" if "causal" in name else "num_heads=2"
    CASES[name] = (f"({inputs}) => ({typed})", f"{written} = com.microsoft.MultiHeadAttention<{said}>{call}")


def parsed(name):
    return onnx.parser.parse_model(f"{HEAD}{CASES[name][0]} {{ {CASES[name][1]} }}")


def values(model):
    rng, feeds = np.random.default_rng(0), {}
    limits = {"segments": 2, "at": 5, "ends": 4, "mask": 2, "from": 3}
    for value in model.graph.input:
        shape = [d.dim_value or 4 for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if np.issubdtype(dtype, np.floating):
            feeds[value.name] = rng.normal(size=shape).astype(dtype)
        elif value.name == "starts":  # the ends, then the starts
            feeds[value.name] = np.array([3, 2, 1, 0], dtype)
        elif value.name in ("last", "total"):  # of whole rows
            feeds[value.name] = np.full(shape, 2 if value.name == "last" else 3, dtype)
        else:
            feeds[value.name] = rng.integers(1 if value.name == "ends" else 0, limits.get(value.name, 5), shape, dtype)
    return feeds


def standard(model):
    own = ir.from_proto(inferred(model))
    write_standard(own)
    return finish(own)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
def test_a_fused_operator_gives_what_the_runtimes_own_kernel_gives(name):
    model = parsed(name)
    written = standard(model)
    assert {node.domain for node in written.graph.node} == {""}
    feeds = values(model)
    for got, want in zip(Session(written).run(feeds), Session(model).run(feeds), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


def test_packed_queries_keys_and_values_are_those_of_three_inputs():
    for name in ("heads_packed", "heads_packed_pairs"):
        model = parsed(name)
        feeds = values(model)
        *front, packed = feeds.values()
        parts = [np.ascontiguousarray(packed[:, :, :, i]).reshape(2, -1, 8) for i in range(packed.shape[3])]
        three = dict(zip("qkv", [*front, *parts], strict=True))
        expected = Session(standard(parsed("heads_free"))).run(three)
        np.testing.assert_allclose(Session(standard(model)).run(feeds), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_what_is_written_is_the_slope_of_it(name):
    model = parsed(name)
    step, allowed = (1e-3, 1e-3) if "Gelu(" in CASES[name][1] else (1e-6, 1e-6)  # onnx.reference's Erf is float32
    assert worst_error(standard(model), values(model), step=step) < allowed


UNKNOWN = """(float[N,3] x) => (float[N,2] y) <float[3,3] w = {1,2,3,4,5,6,7,8,9}, float[2,3] c = {1,2,3,4,5,6}>
    { h = MatMul(x, w) d = com.microsoft.CDist<metric="sqeuclidean">(h, c) y = Neg(d) }"""


def test_an_operator_without_a_rule_is_refused_where_nothing_is_known_of_it():
    with pytest.raises(ConvertError, match=r"com.microsoft.CDist(.|\n)*value_info"):
        standard(onnx.parser.parse_model(HEAD + UNKNOWN))


def test_an_operator_without_a_rule_stays_where_its_type_is_known_and_what_it_cuts_off_is_not_trained():
    model = onnx.parser.parse_model(HEAD + UNKNOWN)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, ["N", 2]))
    assert "CDist" in {node.op_type for node in standard(model).graph.node}
    artifact = convert(model, data=Data(Rows({"x": np.ones((4, 3), np.float32)}, np.zeros((4, 2)))))
    with pytest.raises(DeriveError, match=r"CDist(.|\n)*Take no gradients"):
        derive(add_loss(artifact, AddLossConfig(LOSSES["l2"]())))


def test_weights_in_one_processors_layout_are_refused():
    text = """(float[N,8,4,4] x) => (float[N,8,4,4] y) {
        h = com.microsoft.nchwc.Conv(x, w) y = com.microsoft.nchwc.ReorderOutput<channels=8>(h) }"""
    head = HEAD.replace('"com.microsoft": 1', '"com.microsoft.nchwc": 1')
    model = onnx.parser.parse_model(head + text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), "w"))
    with pytest.raises(ConvertError, match="one processor's layout"):
        standard(model)


def test_layer_normalization_of_an_old_opset_and_the_simplified_one_are_read():
    text = """<ir_version: 7, opset_import: ["": 12]> g (float[N,8] x) => (float[N,8] y)
        <float[8] g = {1,2,3,4,5,6,7,8}, float[8] b = {8,7,6,5,4,3,2,1}>
        { h = LayerNormalization(x, g, b) y = SimplifiedLayerNormalization<epsilon=0.1>(h, g) }"""
    model = onnx.parser.parse_model(text)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    artifact = convert(model, data=Data(Rows({"x": x}, np.zeros((4, 8)))))
    assert artifact.facts.parameters == ("g", "b")
    assert artifact.model.opset_import[0].version == 18
    assert artifact.facts.lineage[0]["notes"][:2] == [
        "converts the file from opset 12 to 18",
        "writes onnxruntime's SimplifiedLayerNormalization in standard operators",
    ]
    np.testing.assert_allclose(Session(artifact.model).run({"x": x})[0], Session(model).run({"x": x})[0], atol=1e-5)
