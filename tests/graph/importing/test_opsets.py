"""Models of other opsets predict what they predicted there."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from ortpipe.autodiff import gradient
from ortpipe.errors import ModelError
from ortpipe.graph.core.check import checked
from ortpipe.graph.importing.lower import lowered
from ortpipe.runtime.session import Session

OLD = {  # what → (opset, inputs and outputs, nodes)
    "upsample7": (
        7,
        "(float[1,2,3,3] x) => (float[1,2,6,6] y)",
        'y = Upsample<mode="nearest", scales=[1.0,1.0,2.0,2.0]>(x)',
    ),
    "upsample7l": (
        7,
        "(float[1,2,3,3] x) => (float[1,2,6,6] y)",
        'y = Upsample<mode="linear", scales=[1.0,1.0,2.0,2.0]>(x)',
    ),
    "upsample9": (
        9,
        "(float[1,2,3,3] x) => (float[1,2,6,6] y)",
        's = Constant<value=float[4]{1.0,1.0,2.0,2.0}>() y = Upsample<mode="nearest">(x, s)',
    ),
    "upsample9l": (
        9,
        "(float[1,2,3,3] x) => (float[1,2,6,6] y)",
        's = Constant<value=float[4]{1.0,1.0,2.0,2.0}>() y = Upsample<mode="linear">(x, s)',
    ),
    "upsample9i": (
        9,
        "(float[1,2,3,3] x) => (float[1,2,6,6] y) <float[4] s = {1.0,1.0,2.0,2.0}>",
        'y = Upsample<mode="linear">(x, s)',
    ),
    "scan11": (  # the converter gives new values in a body the names of new values outside
        11,
        "(float[2,3] x, float[3] s) => (float[2,3] y)",
        """a = Unsqueeze<axes=[0]>(x) b = Squeeze<axes=[0]>(a)
        end, y = Scan<num_scan_inputs=1, body = step (float[3] sum, float[3] row) => (float[3] more, float[3] out) {
            more = Add(sum, row) c = Unsqueeze<axes=[0]>(more) d = Tanh(c) out = Squeeze<axes=[0]>(d)
        }>(s, b)""",
    ),
    "resize10": (
        10,
        "(float[1,2,3,3] x) => (float[1,2,6,6] y) <float[4] s = {1.0,1.0,2.0,2.0}>",
        'y = Resize<mode="linear">(x, s)',
    ),
    "resize10n": (
        10,
        "(float[1,2,3,4] x) => (float[1,2,5,6] y) <float[4] s = {1.0,1.0,1.67,1.5}>",
        'y = Resize<mode="nearest">(x, s)',
    ),
    "resize10down": (
        10,
        "(float[1,2,6,6] x) => (float[1,2,3,3] y) <float[4] s = {1.0,1.0,0.5,0.5}>",
        'y = Resize<mode="nearest">(x, s)',
    ),
    "resize11": (
        11,
        "(float[1,2,3,3] x) => (float[1,2,6,6] y) <float[4] s = {1.0,1.0,2.0,2.0}, float[0] r={}>",
        'y = Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, r, s)',
    ),
    "bn7": (
        7,
        "(float[1,2,3,3] x) => (float[1,2,3,3] y) <float[2] a={1,2}, float[2] b={1,3}, float[2] c={0.1,0.2}, "
        "float[2] d={1,2}>",
        "y = BatchNormalization<spatial=1, momentum=0.8>(x,a,b,c,d)",
    ),
    "bn7s": (
        7,
        "(float[1,2,2] x) => (float[1,2,2] y) <float[2,2] a={1,2,3,4}, float[2,2] b={1,3,4,5}, float[2,2] "
        "c={0.1,0.2,0.3,0.4}, float[2,2] d={1,2,3,4}>",
        "y = BatchNormalization<spatial=0>(x,a,b,c,d)",
    ),
    "bn9": (
        9,
        "(float[1,2,3,3] x) => (float[1,2,3,3] y) <float[2] a={1,2}, float[2] b={1,3}, float[2] c={0.1,0.2}, "
        "float[2] d={1,2}>",
        "y = BatchNormalization(x,a,b,c,d)",
    ),
    "dropout7": (7, "(float[1,6] x) => (float[1,6] y)", "y = Dropout<ratio=0.3>(x)"),
    "dropout7m": (7, "(float[1,6] x) => (float[1,6] y)", "y, m = Dropout<ratio=0.3>(x)"),
    "dropout10": (10, "(float[1,6] x) => (float[1,6] y)", "y, m = Dropout<ratio=0.3>(x)"),
    "pad7": (7, "(float[1,6] x) => (float[1,8] y)", "y = Pad<pads=[0,1,0,1], value=2.0>(x)"),
    "pad7r": (7, "(float[1,6] x) => (float[1,8] y)", 'y = Pad<pads=[0,1,0,1], mode="reflect">(x)'),
    "clip7": (7, "(float[1,6] x) => (float[1,6] y)", "y = Clip<min=-0.5, max=0.5>(x)"),
    "clip7n": (7, "(float[1,6] x) => (float[1,6] y)", "y = Clip<min=0.0>(x)"),
    "clip6": (6, "(float[1,6] x) => (float[1,6] y)", "y = Clip<max=0.0>(x)"),
    "slice7": (7, "(float[1,6] x) => (float[1,2] y)", "y = Slice<axes=[1], starts=[1], ends=[3]>(x)"),
    "slice7n": (7, "(float[1,6] x) => (float[1,3] y)", "y = Slice<starts=[0,1], ends=[1,-2]>(x)"),
    "squeeze7": (
        7,
        "(float[1,6] x) => (float[1,6] y)",
        "a = Unsqueeze<axes=[0,2]>(x) b = Squeeze<axes=[0]>(a) y = Squeeze<axes=[1]>(b)",
    ),
    "softmax7": (7, "(float[2,3,4] x) => (float[2,3,4] y)", "y = Softmax(x)"),
    "softmax7a": (7, "(float[2,3,4] x) => (float[2,3,4] y)", "y = Softmax<axis=2>(x)"),
    "softmax11u": (11, "(float[N,3,4] x) => (float[N,3,4] y)", "y = Softmax<axis=1>(x)"),
    "logsoftmax11": (11, "(float[2,3,4] x) => (float[2,3,4] y)", "y = LogSoftmax<axis=1>(x)"),
    "hardmax11": (11, "(float[2,3,4] x) => (float[2,3,4] y)", "y = Hardmax<axis=1>(x)"),
    "reduce7": (7, "(float[2,3,4] x) => (float[2,4] y)", "y = ReduceMean<axes=[1], keepdims=0>(x)"),
    "reducesum7": (7, "(float[2,3,4] x) => (float[2,4] y)", "y = ReduceSum<axes=[1], keepdims=0>(x)"),
    "reducel2": (11, "(float[2,3,4] x) => (float[2,4] y)", "y = ReduceL2<axes=[1], keepdims=0>(x)"),
    "reduceall": (9, "(float[2,3,4] x) => (float[1,1,1] y)", "y = ReduceMax(x)"),
    "lstm7": (
        7,
        "(float[4,1,2] x, float[1,12,2] w, float[1,12,3] r) => (float[4,1,1,3] y)",
        "y = LSTM<hidden_size=3>(x,w,r)",
    ),
    "gru7": (
        7,
        "(float[4,1,2] x, float[1,9,2] w, float[1,9,3] r) => (float[4,1,1,3] y)",
        "y = GRU<hidden_size=3, linear_before_reset=1>(x,w,r)",
    ),
    "split7": (7, "(float[2,6] x) => (float[2,3] y)", "y, z = Split<axis=1>(x)"),
    "split7s": (7, "(float[2,6] x) => (float[2,2] y)", "y, z = Split<axis=1, split=[2,4]>(x)"),
    "topk7": (7, "(float[2,6] x) => (float[2,2] y)", "y, i = TopK<axis=1, k=2>(x)"),
    "topk10": (10, "(float[2,6] x) => (float[2,2] y)", "k = Constant<value=int64[1]{2}>() y, i = TopK<axis=1>(x, k)"),
    "gemm7": (7, "(float[2,6] x, float[6,3] w, float[3] b) => (float[2,3] y)", "y = Gemm(x,w,b)"),
    "scatter9": (
        9,
        "(float[2,3] x) => (float[2,3] y)",
        "i = Constant<value=int64[1,1]{1}>() u = Constant<value=float[1,1]{5.0}>() y = Scatter<axis=1>(x,i,u)",
    ),
    "cast7": (7, "(float[2,3] x) => (float[2,3] y)", "y = Cast<to=1>(x)"),
    "maxpool7": (7, "(float[1,2,6,6] x) => (float[1,2,3,3] y)", "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "avgpool7": (
        7,
        "(float[1,2,6,6] x) => (float[1,2,3,3] y)",
        "y = AveragePool<kernel_shape=[2,2], strides=[2,2], count_include_pad=1>(x)",
    ),
    "flatten7": (7, "(float[1,2,6,6] x) => (float[1,72] y)", "y = Flatten(x)"),
    "prelu7": (7, "(float[1,2,3] x, float[2,1] s) => (float[1,2,3] y)", "y = PRelu(x,s)"),
    "tile7": (7, "(float[1,2] x) => (float[2,2] y)", "r = Constant<value=int64[2]{2,1}>() y = Tile(x,r)"),
    "depth11": (11, "(float[1,8,2,2] x) => (float[1,2,4,4] y)", "y = DepthToSpace<blocksize=2>(x)"),
    "instnorm": (
        7,
        "(float[1,2,3,3] x, float[2] s, float[2] b) => (float[1,2,3,3] y)",
        "y = InstanceNormalization(x,s,b)",
    ),
    "lrn": (7, "(float[1,4,3,3] x) => (float[1,4,3,3] y)", "y = LRN<size=3>(x)"),
    "where9": (
        9,
        "(float[2,3] x) => (float[2,3] y)",
        "z = Constant<value=float{0.0}>() c = Greater(x,z) y = Where(c,x,z)",
    ),
    "meanvar9": (9, "(float[1,4,3,3] x) => (float[1,4,3,3] y)", "y = MeanVarianceNormalization(x)"),
    "thresh": (10, "(float[1,4] x) => (float[1,4] y)", "y = ThresholdedRelu<alpha=0.5>(x)"),
    "shrink": (9, "(float[1,4] x) => (float[1,4] y)", "y = Shrink<lambd=0.5>(x)"),
    "sum7": (7, "(float[1,4] x) => (float[1,4] y)", "y = Sum(x,x,x)"),
    "expand8": (8, "(float[1,4] x) => (float[3,4] y)", "s = Constant<value=int64[2]{3,4}>() y = Expand(x,s)"),
    "constshape9": (
        9,
        "(float[1,4] x) => (float[1,4] y)",
        "s = Shape(x) c = ConstantOfShape<value=float[1]{2.0}>(s) y = Add(x,c)",
    ),
    "scan9": (
        9,
        "(float[3,2] x) => (float[2] y)",
        "z = Constant<value=float[2]{0.0,0.0}>() y, s = Scan<num_scan_inputs=1, body=b (float[2] a, float[2] e) "
        "=> (float[2] o, float[2] o2) { t = ReduceSum<axes=[0],keepdims=1>(e) o = Add(a, t) o2 = Identity(o) "
        "}>(z, x)",
    ),
    "if11": (
        11,
        "(float[3,2] x) => (float[3,2] y)",
        "c = Constant<value=bool{1}>() y = If<then_branch=t () => (float[3,2] o) { q = Unsqueeze<axes=[0]>(x) o "
        "= Squeeze<axes=[0]>(q) }, else_branch=e () => (float[3,2] o2) { o2 = Neg(x) }>(c)",
    ),
    "qdq10": (
        10,
        "(float[1,4] x) => (float[1,4] y) <float s={0.1}, uint8 z={128}>",
        "q = QuantizeLinear(x,s,z) y = DequantizeLinear(q,s,z)",
    ),
    "onehot": (
        9,
        "(int64[3] x) => (float[3,4] y)",
        "d = Constant<value=int64{4}>() v = Constant<value=float[2]{0.0,1.0}>() y = OneHot(x,d,v)",
    ),
    "nonmax": (11, "(float[2,3] x) => (float[2,3] y)", "i = ArgMax<axis=1>(x) c = Cast<to=1>(i) y = Add(x,c)"),
    "range11": (
        11,
        "(float[4] x) => (float[4] y)",
        "a = Constant<value=float{0.0}>() b = Constant<value=float{4.0}>() c=Constant<value=float{1.0}>() r = "
        "Range(a,b,c) y = Add(x,r)",
    ),
    "cumsum11": (11, "(float[4] x) => (float[4] y)", "a = Constant<value=int32{0}>() y = CumSum(x,a)"),
    "rnn": (
        7,
        "(float[4,1,2] x, float[1,3,2] w, float[1,3,3] r) => (float[4,1,1,3] y)",
        "y = RNN<hidden_size=3>(x,w,r)",
    ),
    "convt": (7, "(float[1,2,4,4] x, float[2,3,3,3] w) => (float[1,3,9,9] y)", "y = ConvTranspose<strides=[2,2]>(x,w)"),
    "lppool": (7, "(float[1,2,4,4] x) => (float[1,2,2,2] y)", "y = LpPool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "globallp": (7, "(float[1,2,4,4] x) => (float[1,2,1,1] y)", "y = GlobalLpPool(x)"),
    "gather7": (7, "(float[5,2] x) => (float[2,2] y)", "i = Constant<value=int64[2]{1,4}>() y = Gather(x,i)"),
    "maxunpool9": (
        9,
        "(float[1,1,4,4] x) => (float[1,1,4,4] y)",
        "a, i = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x) y = MaxUnpool<kernel_shape=[2,2],strides=[2,2]>(a,i)",
    ),
    "resize10 shrinking": (
        10,
        "(float[1,2,6,4] x) => (float[1,2,4,2] y) <float[4] s = {1.0,1.0,0.7,0.6}>",
        'y = Resize<mode="nearest">(x, s)',
    ),
    "resize10 shrinking smoothly": (
        10,
        "(float[1,2,6,4] x) => (float[1,2,4,2] y) <float[4] s = {1.0,1.0,0.7,0.6}>",
        'y = Resize<mode="linear">(x, s)',
    ),
}

NEW = {
    "rms": (23, "(float[N,3,8] x) => (float[N,3,8] y) <float[8] s = {1,2,3,4,5,6,7,8}>", "y = RMSNormalization(x, s)"),
    "swish": (24, "(float[N,3,8] x) => (float[N,3,8] y)", "y = Swish(x)"),
    "attention": (
        23,
        "(float[N,3,8] x) => (float[N,3,8] y)",
        "y = Attention<q_num_heads=2, kv_num_heads=2, is_causal=1>(x, x, x)",
    ),
    "attention24": (
        24,
        "(float[N,3,8] x) => (float[N,3,8] y) <int64[1] a = {0}, int64[1] b = {4}, int64[1] c = {2}>",
        "h = Slice(x, a, b, c) y = Attention<q_num_heads=4, kv_num_heads=2>(x, h, h)",
    ),
    "attention of free sizes": (
        23,
        "(float[1,2,4] q, float[1,2,4] k, float[1,S,D] v) => (float[D] y)",
        "h = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v) a = Constant<value_ints=[0,1]>()"
        "y = ReduceMean<keepdims=0>(h, a)",  # the mean has its numbers of entries
    ),
    "rotary": (
        23,
        "(float[N,3,8] x, float[5,2] c, float[5,2] s, int64[N,3] p) => (float[N,3,8] y)",
        "y = RotaryEmbedding<num_heads=2>(x, c, s, p)",
    ),
    "attention of a past, without a mask": (
        24,
        "(float[N,2,3,4] x, float[N,2,2,4] k, float[N,2,2,4] v) => (float[N,2,3,4] y)",
        "y, all_k, all_v = Attention(x, x, x, , k, v)",
    ),
    "tensor scatter": (
        24,
        "(float[2,3,4,5] x, float[2,3,2,5] u, int64[2] w) => (float[2,3,4,5] y)",
        "y = TensorScatter(x, u, w)",
    ),
    "tensor scatter around": (
        24,
        "(float[2,4,5] x, float[2,3,5] u, int64[2] w) => (float[2,4,5] y)",
        'y = TensorScatter<axis=1, mode="circular">(x, u, w)',
    ),
    "swish beside a cast": (24, "(float[N,3] x) => (float[N,3] y)", "s = Swish(x) y = CastLike(s, x)"),
    "rms behind a group normalization": (  # of which onnx infers no type
        24,
        "(float[2,4,8] x) => (float[2,4,8] y) <float[8] s = {1,2,3,4,5,6,7,8}, float[4] o = {1,1,1,1}>",
        "g = GroupNormalization<num_groups=2>(x, o, o) h = LogSoftmax(g) y = RMSNormalization(h, s)",
    ),
    "global max pool": (22, "(float[N,2,3,4] x) => (float[N,2,1,1] y)", "y = GlobalMaxPool(x)"),
}


def parsed(opset, graph, nodes):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {graph} {{ {nodes} }}')


def values(model):
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        shape = [d.dim_value or 2 for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        whole = np.issubdtype(dtype, np.integer)
        feeds[value.name] = (rng.integers(0, 3, shape) if whole else rng.normal(size=shape)).astype(dtype)
    return feeds


@pytest.mark.parametrize("name", OLD)
def test_a_model_of_an_old_opset_predicts_what_the_runtime_predicts_at_that_opset(name):
    model = parsed(*OLD[name])
    feeds = values(model)
    low = checked(lowered(model))
    assert low.opset_import[0].version == 18
    np.testing.assert_allclose(Session(low).run(feeds)[0], Session(model).run(feeds)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NEW)
def test_a_model_of_a_new_opset_predicts_what_onnx_says_of_that_opset(name):
    model = parsed(*NEW[name])
    feeds = values(model)
    low = checked(lowered(model))
    assert low.opset_import[0].version == 21
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    np.testing.assert_allclose(Session(low).run(feeds)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NEW)
def test_the_gradient_of_a_new_operator_is_the_slope_of_what_onnx_says_of_it(name):
    model = parsed(*NEW[name])
    floats = [x.name for x in model.graph.input if x.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    feeds = values(model)
    derived = gradient(model, "y", floats, ones=True)
    gradients = dict(zip(floats, Session(derived).run(feeds), strict=True))
    reference, rng, step = ReferenceEvaluator(model), np.random.default_rng(1), np.float32(0.02)
    way = {x: rng.normal(size=feeds[x].shape).astype(np.float32) for x in floats}
    up, down = (
        reference.run(None, feeds | {x: feeds[x] + sign * step * way[x] for x in floats})[0].astype(np.float64).sum()
        for sign in (1, -1)
    )
    slope = sum((gradients[x].astype(np.float64) * way[x]).sum() for x in floats)
    assert slope == pytest.approx((up - down) / (2 * step), rel=5e-3, abs=1e-3)


def test_a_resize_that_enlarges_one_axis_and_shrinks_another_by_the_old_rounding_is_refused():
    graph = "(float[1,2,3,4] x) => (float[1,2,6,2] y) <float[4] s = {1.0,1.0,2.0,0.5}>"
    with pytest.raises(ModelError, match="either shrink or enlarge"):
        lowered(parsed(10, graph, 'y = Resize<mode="nearest">(x, s)'))


def test_a_newer_operator_behind_a_value_of_unknown_rank_is_refused():
    inputs = "(float[N] x, int64[K] to, float[5,1] c, float[5,1] s, int64[2,1] p) => (float[A,B,C,D] y)"
    with pytest.raises(ModelError, match="number of dimensions") as caught:
        lowered(parsed(23, inputs, "h = Reshape(x, to) y = RotaryEmbedding(h, c, s, p)"))
    assert "'h', which RotaryEmbedding" in str(caught.value)
