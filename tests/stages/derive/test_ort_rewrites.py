"""Every operator that is rewritten for the training build, through the real engine, against central differences."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from autodiff.numeric import in_double, in_single, scalar_loss, weights_of
from engines import native, ort
from onnx.reference import ReferenceEvaluator

from ortpipe.errors import DeriveError
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines.native import Native
from ortpipe.stages.derive.engines.ort import Ort
from ortpipe.stages.derive.engines.ort_operators import BODIES, REWRITES
from ortpipe.stages.derive.stage import derive

pytestmark = pytest.mark.usefixtures("training_build")

IMAGE = (2, 4, 5, 4)
CHANNELS = "s = Constant<value_floats=[0.4,0.8,1.3,-0.6]>() t = Constant<value_floats=[0.1,-0.2,0.3,0.7]>() "
RUNNING = CHANNELS + "m = Constant<value_floats=[0.2,0.1,-0.3,0.4]>() v = Constant<value_floats=[0.4,0.8,1.3,0.6]>() "
FEW = "s = Constant<value_floats=[0.4,0.8]>() t = Constant<value_floats=[0.1,-0.2]>() "
ON = "half = Constant<value_float=0.5>() on = Constant<value=bool {0}>() "
ZERO = "zero = Constant<value_float=0.0>() q = CastLike(zero, x) "
OVER = "over = Constant<value_ints=[1, 2]>() "

LABELS = "label = Constant<value_ints=[0, 3, 1]>() "

REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")
# operator, what makes y of x, shape of x, opset
CASES = [
    ("AveragePool", "y = AveragePool<kernel_shape=[2,3], pads=[1,1,0,1], strides=[2,1]>(x)", IMAGE, 21),
    ("AveragePool", "y = AveragePool<kernel_shape=[2,2], pads=[1,1,1,1], count_include_pad=1>(x)", IMAGE, 21),
    ("AveragePool", "y = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)", IMAGE, 21),
    ("AveragePool", 'y = AveragePool<kernel_shape=[3], auto_pad="SAME_UPPER">(x)', (2, 3, 7), 13),
    ("BatchNormalization", f"{RUNNING} y = BatchNormalization(x, s, t, m, v)", IMAGE, 21),
    ("BatchNormalization", f"{RUNNING} y = BatchNormalization<epsilon=0.1>(x, s, t, m, v)", (5, 4), 14),
    (
        "BatchNormalization",
        f"{RUNNING} y, a, b = BatchNormalization<training_mode=1>(x, s, t, m, v)",
        IMAGE,
        21,
    ),
    ("CastLike", "a = Exp(x) y = CastLike(x, a)", (3, 4), 21),
    ("Celu", "y = Celu<alpha=1.5>(x)", (3, 4), 21),
    ("Conv", f"{FEW} k = Constant<value_floats=[0.1,0.2,0.3,-0.4,0.5,0.6,0.7,-0.8]>() to = Constant"
     '<value_ints=[1,4,1,2]>() w = Reshape(k, to) y = Conv<auto_pad="SAME_UPPER", strides=[2,1]>(x, w)', IMAGE, 21),
    ("Conv", f"{FEW} k = Constant<value_floats=[0.1,0.2,0.3,-0.4,0.5,0.6,0.7,-0.8]>() to = Constant"
     '<value_ints=[1,4,1,2]>() w = Reshape(k, to) y = Conv<auto_pad="SAME_LOWER">(x, w)', IMAGE, 21),
    ("Conv", f"{FEW} k = Constant<value_floats=[0.1,0.2,0.3,-0.4,0.5,0.6,0.7,-0.8]>() to = Constant"
     '<value_ints=[1,4,1,2]>() w = Reshape(k, to) y = Conv<auto_pad="VALID">(x, w)', IMAGE, 21),
    ("Dropout", "y = Dropout(x)", (3, 4), 21),
    ("Dropout", "a, mask = Dropout(x) seen = CastLike(mask, x) y = Mul(a, seen)", (3, 4), 21),
    ("Dropout", f"{ON} a, mask = Dropout(x, half, on) seen = CastLike(mask, x) y = Mul(a, seen)", (3, 4), 21),
    ("NegativeLogLikelihoodLoss", f"{LABELS} y = NegativeLogLikelihoodLoss(x, label)", (3, 4), 21),
    ("SoftmaxCrossEntropyLoss", f"{LABELS} y = SoftmaxCrossEntropyLoss(x, label)", (3, 4), 21),
    ("SoftmaxCrossEntropyLoss", f"{CHANNELS}{LABELS} y = SoftmaxCrossEntropyLoss<ignore_index=3>(x, label, s)",
     (3, 4), 13),
    ("Elu", "y = Elu<alpha=1.5>(x)", (3, 4), 21),
    ("Gelu", 'y = Gelu<approximate="tanh">(x)', (3, 4), 21),
    ("GroupNormalization", f"{CHANNELS} y = GroupNormalization<num_groups=2>(x, s, t)", IMAGE, 21),
    ("GroupNormalization", f"{FEW} y = GroupNormalization<num_groups=2>(x, s, t)", IMAGE, 18),
    ("HardSigmoid", "y = HardSigmoid<alpha=0.4>(x)", (3, 4), 21),
    ("HardSwish", "y = HardSwish(x)", (3, 4), 21),
    ("LayerNormalization", f"{CHANNELS} y = LayerNormalization(x, s, t)", IMAGE, 21),
    ("LayerNormalization", f"{CHANNELS} y, mean = LayerNormalization<epsilon=0.1>(x, s)", (3, 4), 17),
    ("MatMul", "y = MatMul(x, c)", (2, 3, 4), 20),
    ("MatMul", "y = MatMul(c, x)", (4, 4), 21),
    ("MatMul", "y = MatMul(c, c)", (1, 4), 21),
    ("MaxPool", "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)", (2, 2, 4, 4), 21),
    ("MaxPool", "y = MaxPool<kernel_shape=[2], strides=[2]>(x)", (2, 3, 6), 13),
    ("Mean", "a = Exp(x) b = Mul(a, c) y = Mean(x, a, b)", (3, 4), 21),
    ("Mean", "y = Mean(x)", (3, 4), 21),
    ("MeanVarianceNormalization", "y = MeanVarianceNormalization(x)", IMAGE, 21),
    ("MeanVarianceNormalization", "y = MeanVarianceNormalization<axes=[1]>(x)", (3, 4), 13),
    ("Mish", "y = Mish(x)", (3, 4), 21),
    ("PRelu", "y = PRelu(x, c)", (3, 4), 21),
    ("Reciprocal", "a = Exp(x) y = Reciprocal(a)", (3, 4), 21),
    ("ReduceLogSumExp", f"{OVER} a = Exp(x) y = ReduceLogSumExp<keepdims=0>(a, over)", (3, 4, 2), 18),
    ("ReduceLogSumExp", "a = Exp(x) y = ReduceLogSumExp<axes=[-1]>(a)", (3, 4, 2), 13),
    *((op, f"a = Exp(x) y = {op}(a)", (3, 4, 2), 21) for op in REDUCTIONS),
    *((op, f"{OVER} a = Exp(x) y = {op}<keepdims=0>(a, over)", (3, 4, 2), 18) for op in REDUCTIONS),
    ("Shrink", "y = Shrink<lambd=0.3>(x)", (3, 4), 21),
    ("Selu", "y = Selu(x)", (3, 4), 21),
    ("Softplus", "y = Softplus(x)", (3, 4), 21),
    ("Softsign", "y = Softsign(x)", (3, 4), 21),
    ("Sum", "a = Exp(x) y = Sum(a, c, x)", (3, 4), 21),
    ("Sum", "y = Sum(x)", (3, 4), 21),
    ("ThresholdedRelu", "y = ThresholdedRelu<alpha=0.3>(x)", (3, 4), 21),
    ("Transpose", "a = Transpose(x) y = Tanh(a)", (3, 4), 21),
    ("Where", f"{ZERO} t = Greater(x, q) y = Where(t, x, c)", (3, 4), 21),
    ("Where", f"{ZERO} t = Greater(c, q) y = Where(t, x, q)", (3, 4), 21),
    ("Where", "t = Constant<value = bool[3,1] {1,0,1}>() y = Where(t, c, x)", (1, 4), 21),
]  # fmt: skip
# The same of what the engine refuses
REFUSED = [
    ("Acosh", "a = Exp(x) one = Constant<value_float=1.1>() b = Add(a, one) y = Acosh(b)", (3, 4), 21),
    ("Asinh", "y = Asinh(x)", (3, 4), 21),
    ("Atanh", "a = Tanh(x) y = Atanh(a)", (3, 4), 21),
    ("Cosh", "y = Cosh(x)", (3, 4), 21),
    ("CumSum", "a = Constant<value_int=1>() y = CumSum(x, a)", (3, 4), 21),
    ("CumSum", "a = Constant<value_int=-3>() y = CumSum<reverse=1, exclusive=1>(x, a)", (2, 3, 2), 21),
    ("DepthToSpace", "y = DepthToSpace<blocksize=2>(x)", (2, 8, 2, 3), 21),
    ("DepthToSpace", 'y = DepthToSpace<blocksize=2, mode="CRD">(x)', (2, 8, 2, 3), 21),
    ("Einsum", 'y = Einsum<equation="ij,j->i">(x, c)', (3, 4), 21),
    ("Einsum", 'y = Einsum<equation="bij, bij">(x, x)', (2, 3, 2), 21),
    ("Einsum", 'y = Einsum<equation="bij,bik->bjk">(x, x)', (2, 3, 2), 21),
    ("GlobalMaxPool", "y = GlobalMaxPool(x)", IMAGE, 21),
    ("InstanceNormalization", f"{CHANNELS} y = InstanceNormalization(x, s, t)", IMAGE, 21),
    ("InstanceNormalization", f"{CHANNELS} y = InstanceNormalization(x, s, t)", IMAGE, 13),
    ("LpNormalization", "y = LpNormalization<axis=0>(x)", (3, 4), 21),
    ("LpNormalization", "a = Exp(x) y = LpNormalization<p=1>(a)", (3, 4), 21),
    ("Sinh", "y = Sinh(x)", (3, 4), 21),
    ("SpaceToDepth", "y = SpaceToDepth<blocksize=2>(x)", (2, 3, 4, 2), 21),
    ("Tan", "y = Tan(x)", (3, 4), 21),
    ("Split", "z = Constant<value_ints=[1,3]>() y, b = Split<axis=1>(x, z)", (3, 4), 21),
    ("ReduceLogSumExp", "y = ReduceLogSumExp(x)", (3, 4, 2), 21),
    *((op, f"{OVER} y = {op}<keepdims=0>(x, over)", (3, 4, 2), 18) for op in ("ReduceMax", "ReduceMin")),
]  # fmt: skip
# No float64: onnxruntime has no kernel for it or on the way back, or onnx.reference computes it in float32
SINGLE = {
    ("Celu", 21),
    ("Conv", 21),
    ("GroupNormalization", 18),
    ("GroupNormalization", 21),
    ("MatMul", 20),
}
SINGLE |= {("MeanVarianceNormalization", opset) for opset in (13, 21)}


def loss_of(body, shape, opset, double):
    """Return the model of Σ weight · y(x), with another weight for each entry of y, and what to feed."""
    sides = ",".join(map(str, shape))
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g (float[{sides}] x, float[{shape[-1]}] c) => (float y) {{ {body} }}"""
    forward = onnx.parser.parse_model(text)
    forward.graph.output[0].type.tensor_type.ClearField("shape")
    read = {name for node in forward.graph.node for name in node.input}
    rng = np.random.default_rng(5)
    feeds = {"x": rng.normal(size=shape), "c": rng.normal(size=shape[-1])}
    feeds = {name: array if double else array.astype(np.float32) for name, array in feeds.items() if name in read}
    if "c" not in feeds:
        del forward.graph.input[1]
    for node in forward.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name.startswith("value_float"):
            given = np.asarray(onnx.helper.get_attribute_value(node.attribute[0]), np.float32)
            node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(given)))
    forward = in_double(forward) if double else forward
    loss = scalar_loss(forward, weights_of(forward, feeds))
    loss = loss if double else in_single(loss)
    return onnx.shape_inference.infer_shapes(loss, data_prop=True), feeds


def differences(model, feeds, name, step):
    forward, found = ReferenceEvaluator(model), np.zeros(feeds[name].shape)
    for place in np.ndindex(found.shape):
        ends = []
        for sign in (1, -1):
            moved = feeds[name].copy()
            moved[place] += sign * step
            ends.append(float(forward.run(None, {**feeds, name: moved})[0]))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def test_the_cases_hold_every_rule():
    assert {row[0] for row in CASES} == {*REWRITES, *BODIES, "ReduceLogSumExp"}


@pytest.mark.parametrize(("op", "body", "shape", "opset"), REFUSED, ids=[f"{c[0]}-{i}" for i, c in enumerate(REFUSED)])
def test_an_operator_that_no_body_mends_is_refused_with_the_way_out(op, body, shape, opset):
    model, feeds = loss_of(body, shape, opset, double=False)
    with pytest.raises(DeriveError, match="The ort engine differentiates only what the training build does") as error:
        ort(model, "check/loss", [], list(feeds))
    assert f"{op} at node 'y'" in str(error.value)
    assert "Choose derive=native" in str(error.value)
    _, gradients = native(model, "check/loss", [], list(feeds))
    assert set(gradients) == set(feeds)


@pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize(("op", "body", "shape", "opset"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_a_rewritten_operator_has_the_gradient_of_its_formula(op, body, shape, opset, double):
    """float32 differences are off by 1e-7 of the loss by the step, and by the step squared."""
    if double and (op, opset) in SINGLE:
        pytest.skip(f"nothing computes {op}, its gradient or its difference in float64")
    model, feeds = loss_of(body, shape, opset, double)
    sources = [name for name in feeds if name == "x" or op != "Where" or "Greater(c" not in body]
    built, gradients = ort(model, "check/loss", [], sources)
    session = Session(built)
    values = dict(zip(session.outputs, session.run({i.name: feeds[i.name] for i in built.graph.input}), strict=True))
    [loss] = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_allclose(values["check/loss"], loss, rtol=1e-7 if double else 1e-4)
    step, close = (1e-6, {"rtol": 1e-6, "atol": 1e-7}) if double else (2e-3, {"rtol": 2e-2, "atol": 1e-2})
    for name in sources:
        np.testing.assert_allclose(values[gradients[name]], differences(model, feeds, name, step), **close)


@pytest.mark.parametrize(
    "form",
    [
        'auto_pad="SAME_LOWER"',
        "dilations=[2,1], strides=[1,2], pads=[1,0,0,1]",
        "strides=[2,3], ceil_mode=1",
        "strides=[2,1], pads=[1,1,0,1]",
    ],
)
def test_a_pool_that_the_reference_cannot_compute_has_the_gradient_of_the_native_engine(form):
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[{",".join(map(str, IMAGE))}] x) => (float loss)
        {{ y = MaxPool<kernel_shape=[2,2], {form}>(x) a = Mul(y, y)
           loss = ReduceSum<keepdims=0>(a) }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    x = np.random.default_rng(1).normal(size=IMAGE).astype(np.float32)
    found = []
    for engine in (ort, native):
        built, gradients = engine(model, "loss", [], ["x"])
        found += Session(built).run({"x": x}, [gradients["x"]])
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_a_node_that_reads_one_parameter_twice_has_its_whole_gradient():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float loss) <float[2] w = {3.0, -4.0}>
        { y = Mul(w, w) a = Mul(y, x) loss = ReduceSum<keepdims=0>(a) }"""
    built, gradients = ort(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)), "loss", ["w"], [])
    w, x = np.array([3, -4], np.float32), np.array([1, 2], np.float32)
    [gradient] = Session(built).run({i.name: {"w": w, "x": x}[i.name] for i in built.graph.input}, [gradients["w"]])
    np.testing.assert_allclose(gradient, 2 * w * x)


def test_a_network_in_training_mode_moves_its_statistics(from_text, run):
    """PyTorch 2: running = 0.9 · running + 0.1 · batch, with the variance of N as ONNX has it."""
    text = """g (float[N,3] X) => (float[N,3] y) <float[3] s = {1.0, 2.0, 0.5}, float[3] t = {0.1, 0.2, 0.3},
        float[3] m = {0.0, 0.0, 0.0}, float[3] v = {1.0, 1.0, 1.0}>
        { y, m1, v1 = BatchNormalization<training_mode=1>(X, s, t, m, v) }"""
    model = add_loss(from_text(text, inputs=("X",)), AddLossConfig(LOSSES["l2"]()))
    feeds = {name: np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32) for name in ("X", "label")}
    results = []
    for engine in (Ort(), Native()):
        derived = derive(model, DeriveConfig(engine=engine, parameters=("s", "t")))
        assert set(derived.facts.statistics) == {"m", "v"}
        results.append(
            run(derived.model, feeds, [*derived.facts.gradients.values(), *derived.facts.statistics.values()])
        )
    for name, value in results[0].items():
        np.testing.assert_allclose(value, results[1][name], rtol=1e-4, atol=1e-5)
    x = feeds["X"].astype(np.float64)
    np.testing.assert_allclose(results[0][derived.facts.statistics["m"]], 0.1 * x.mean(axis=0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(results[0][derived.facts.statistics["v"]], 0.9 + 0.1 * x.var(axis=0), rtol=1e-5)


@pytest.mark.parametrize("op", ["Elu", "HardSwish", "Mean", "Mish", "ReduceSumSquare", "Selu", "Softplus", "Softsign"])
def test_half_precision_has_float32s_gradient_to_its_own_rounding(op):
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float16[3,4] x) => (float16 loss)
        {{ y = {op}(x) loss = ReduceSum<keepdims=0>(y) }}"""
    x, found = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float16), []
    for kind, dtype in (("float16", np.float16), ("float", np.float32)):
        model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text.replace("float16", kind)))
        built, gradients = ort(model, "loss", [], ["x"])
        found += Session(built).run({"x": x.astype(dtype)}, [gradients["x"]])
    np.testing.assert_allclose(found[0], found[1], rtol=2e-3, atol=2e-3)
