"""The training build's gradients: right ones agree with differences, others are rejected by name."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from engines import ort

from ortpipe.errors import DeriveError
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.rewrite import rewrite
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines.ort import FORMS, RIGHT, STANDARD, Ort
from ortpipe.stages.derive.stage import derive

pytestmark = pytest.mark.usefixtures("training_build")
ORT = DeriveConfig(engine=Ort())

W = "float[3,3] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9, -0.2, 0.6, 0.8}, float[3,1] u = {0.5, -0.7, 1.1}"
IMAGE = "to = Constant<value_ints=[-1, 1, 1, 3]>() i = Reshape(m, to)"
FLAT = "back = Constant<value_ints=[-1, 3]>() h = Reshape(j, back)"
SEQUENCE = "to = Constant<value_ints=[1, -1, 3]>() i = Reshape(m, to)"
LAST = "zero = Constant<value_ints=[0]>() h = Squeeze(last, zero)"


def graph(body, values=""):
    return f"g (float[N,3] X) => (float[N,1] y) <{W}{values}> {{ m = MatMul(X, w) {body} y = MatMul(h, u) }}"


def branch(name, text):
    return f"{name} = {name}_graph () => (float[N,3] {name}_out) {{ {name}_out = {text}(m) }}"


def filled(name, *shape):
    count = int(np.prod(shape))
    return f", float[{','.join(map(str, shape))}] {name} = {{{', '.join(['0.1'] * count)}}}"


UNARY = ("Acosh", "Celu", "Dropout", "Elu", "Gelu", "HardSigmoid", "Mean", "Mish", "Reciprocal", "ReduceL2")
UNARY += ("ReduceLogSumExp", "ReduceMax", "Selu", "Softplus", "Softsign", "Sum", "Tan")
FAULTY = {
    **{op: graph(f"e = {op}(m) h = Add(m, e)") for op in UNARY},
    "BatchNormalization": graph("h = BatchNormalization(m, k, k, k, k)", filled("k", 3)),
    "LayerNormalization": graph("h = LayerNormalization(m, k)", filled("k", 3)),
    "If": graph(
        f"""on = Constant<value=bool {{1}}>() h = If (on) <{branch("then_branch", "Neg")}, {
            branch("else_branch", "Abs")
        }
         >"""
    ),
    "Loop": graph(
        """count = Constant<value=int64 {2}>() on = Constant<value=bool {1}>()
        h = Loop (count, on, m) <body = again (int64 i, bool go, float[N,3] v) => (bool go_on, float[N,3] twice)
          { go_on = Identity(go) twice = Add(v, v) }>"""
    ),
    "Scan": graph(
        """h = Scan (m) <num_scan_inputs = 1, body = each (float[3] row) => (float[3] out) { out = Neg(row) }>"""
    ),
    "Conv": graph(f'{IMAGE} j = Conv<auto_pad="SAME_UPPER">(i, k) {FLAT}', ", float[1,1,1,2] k = {0.4, 0.8}"),
    "ConvTranspose": graph(
        f"{IMAGE} j = ConvTranspose<pads=[0, 0, 0, 1]>(i, k) {FLAT}", ", float[1,1,1,2] k = {0.4, 0.8}"
    ),
    "GRU": graph(
        f"{SEQUENCE} all, last = GRU<hidden_size=3>(i, k, r) {LAST}", filled("k", 1, 9, 3) + filled("r", 1, 9, 3)
    ),
    "LSTM": graph(
        f"{SEQUENCE} all, last, cell = LSTM<hidden_size=3>(i, k, r, b, , , , p) {LAST}",
        filled("k", 1, 12, 3) + filled("r", 1, 12, 3) + filled("b", 1, 24) + filled("p", 1, 9),
    ),
    "MatMul": graph("v = MatMul(m, k) one = Constant<value_ints=[1]>() h = Unsqueeze(v, one)", filled("k", 3)).replace(
        "y = MatMul(h, u)", "n = Mul(h, m) y = MatMul(n, u)"
    ),
    "MaxPool": graph(
        f"{IMAGE} q, at = MaxPool<kernel_shape=[1, 2], pads=[0, 0, 0, 1]>(i) s = Cast<to=1>(at) j = Add(q, s) {FLAT}"
    ),
    "Pad": graph('two = Constant<value_ints=[0, 1, 0, -1]>() h = Pad<mode="edge">(m, two)'),
    "Resize": graph(
        f"{IMAGE} by = Constant<value_floats=[1.0, 1.0, 2.0, 1.0]>() r = Resize(i, , by) j = ReduceMean<keepdims=1>"
        f"(r, two) {FLAT}"
    ).replace("by =", "two = Constant<value_ints=[2]>() by ="),
    "ScatterElements": graph(
        """like = Shape(m) at = ConstantOfShape<value = int64[1] {0}>(like) e = Exp(m)
        h = ScatterElements<axis=1, reduction="add">(m, at, e)"""
    ),
    "ScatterND": graph(
        """like = Constant<value_ints=[1, 1]>() at = ConstantOfShape<value = int64[1] {0}>(like)
        a = Constant<value_ints=[0]>() b = Constant<value_ints=[1]>() e = Slice(m, a, b)
        h = ScatterND<reduction="add">(m, at, e)"""
    ),
    "Slice": graph(
        """a = Constant<value_ints=[-1]>() b = Constant<value_ints=[-9]>() c = Constant<value_ints=[1]>()
        h = Slice(m, a, b, c, a)"""
    ),
    "Split": graph(
        """like = Shape<start=1>(m) two = Concat<axis=1>(m, m) sizes = Concat<axis=0>(like, like)
        as = Cast<to=1>(sizes) at = Cast<to=7>(as) p, rest = Split<axis=1>(two, at) h = Add(p, m)"""
    ),
    "Transpose": graph("a = Transpose(m) b = Tanh(a) h = Transpose<perm=[1, 0]>(b)"),
    "Where": graph("zero = Constant<value_float=0.0>() c = Greater(m, zero) h = Where(c, m, k)", filled("k", 3)),
}
SOUND = {
    "Conv": graph(f"{IMAGE} j = Conv<pads=[0, 0, 0, 1]>(i, k) {FLAT}", ", float[1,1,1,2] k = {0.4, 0.8}"),
    "Split": graph(
        """at = Constant<value_ints=[3, 3]>() e = Exp(m) two = Concat<axis=1>(m, e)
         a, b = Split<axis=1>(two, at) h = Mul(a, b)"""
    ),
    "Where": graph("zero = Constant<value_float=0.0>() c = Greater(m, zero) k = Exp(m) h = Where(c, m, k)"),
    "Transpose": graph("a = Transpose<perm=[1, 0]>(m) b = Tanh(a) h = Transpose<perm=[1, 0]>(b)"),
    "Slice": graph(
        """a = Constant<value_ints=[0]>() b = Constant<value_ints=[3]>() c = Constant<value_ints=[1]>()
        h = Slice(m, a, b, c, c)"""
    ),
    "a counted copy": graph("i = Cast<to=7>(m) f = Cast<to=1>(i) h = Add(m, f)"),
}


def loss_model(from_text, text):
    return add_loss(from_text(text, inputs=("X",)), AddLossConfig(LOSSES["l2"]()))


def test_the_table_of_graphs_holds_every_form():
    assert {*FORMS} <= {*FAULTY}


@pytest.mark.parametrize("op", FAULTY)
def test_what_is_differentiated_wrong_is_rejected_by_name_with_the_way_out(from_text, op):
    with pytest.raises(DeriveError) as error:
        derive(loss_model(from_text, FAULTY[op]), ORT)
    assert f"got: {op} at node " in str(error.value)
    assert (f"right only for {FORMS[op][0]}" if op in RIGHT else "missing or wrong") in str(error.value)
    assert "fix: Choose derive=native" in str(error.value)


@pytest.mark.parametrize("op", [op for op in FAULTY if op not in ("Loop", "Split", "Transpose")])
def test_it_is_no_hindrance_in_front_of_the_trained_parameters(from_text, op):
    result = derive(loss_model(from_text, FAULTY[op]), DeriveConfig(engine=Ort(), parameters=("u",)))
    assert list(result.facts.gradients) == ["u"]


@pytest.mark.parametrize(("op", "rejected"), [("Loop", "MatMul"), ("Split", "MatMul"), ("Transpose", "Transpose")])
def test_unknown_ranks_and_a_transpose_without_perm_are_rejected_wherever_they_come_from(from_text, op, rejected):
    with pytest.raises(DeriveError, match=f"{rejected} at node"):
        derive(loss_model(from_text, FAULTY[op]), DeriveConfig(engine=Ort(), parameters=("u",)))


@pytest.mark.parametrize("op", SOUND)
def test_the_sound_form_passes_with_the_right_gradient(from_text, run, central_differences, op):
    model = loss_model(from_text, SOUND[op])
    rng = np.random.default_rng(1)
    feeds = {"X": rng.normal(size=(4, 3)).astype(np.float32), "label": rng.normal(size=(4, 1)).astype(np.float32)}
    result = derive(model, ORT)
    values = run(result.model, feeds)
    for name, gradient in result.facts.gradients.items():
        expected = central_differences(model.model, "loss", feeds, name, step=3e-3)
        np.testing.assert_allclose(values[gradient], expected, rtol=1e-2, atol=2e-3)  # float32: 1e-7 / 3e-3 and h²


def test_a_node_that_reads_one_parameter_twice_has_its_whole_gradient():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float loss) <float[2] w = {3.0, -4.0}>
        { y = Mul(w, w) a = Mul(y, x) loss = ReduceSum<keepdims=0>(a) }"""
    built, gradients = ort(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)), "loss", ["w"], [])
    w, x = np.array([3, -4], np.float32), np.array([1, 2], np.float32)
    [gradient] = Session(built).run({i.name: {"w": w, "x": x}[i.name] for i in built.graph.input}, [gradients["w"]])
    np.testing.assert_allclose(gradient, 2 * w * x)


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


# Backward operators, called as Op(dy, y): operator, attributes, forward function, shape
BACKWARD = [
    ("ReluGrad", "", lambda x: np.maximum(x, 0), (4, 3)),
    ("SigmoidGrad", "", lambda x: 1 / (1 + np.exp(-x)), (4, 3)),
    ("TanhGrad", "", np.tanh, (4, 3)),
    ("SoftmaxGrad_13", "<axis=1>", lambda x: softmax(x, 1), (2, 3, 2)),
    ("SoftmaxGrad_13", "", lambda x: softmax(x, -1), (4, 3)),
    ("LogSoftmaxGrad_13", "<axis=1>", lambda x: np.log(softmax(x, 1)), (2, 3, 2)),
    ("LogSoftmaxGrad_13", "", lambda x: np.log(softmax(x, -1)), (4, 3)),
]
# Others, called as Op(a, b): operator, attributes, formula, shapes
PRODUCTS = [
    ("FusedMatMul", "<transA=1>", lambda a, b: a.T @ b, (3, 4), (3, 2)),
    ("FusedMatMul", "<transB=1, alpha=0.5>", lambda a, b: 0.5 * a @ b.T, (4, 3), (2, 3)),
    ("Scale", "", lambda a, b: a * b, (4, 3), ()),
    ("Scale", "<scale_down=1>", lambda a, b: a / b, (4, 3), ()),
]


def standard(op, attributes, first, second, out, kind="double"):
    """Return the model of one operator of the training build, and the same in standard operators."""
    dims = ["[" + ",".join(map(str, s)) + "]" if s else "" for s in (first, second, out)]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g ({kind}{dims[0]} a, {kind}{dims[1]} b) => ({kind}{dims[2]} c)
        {{ c = com.microsoft.{op}{attributes}(a, b) }}"""
    )
    own = ir.from_proto(model)
    rewrite(own.graph, STANDARD, "com.microsoft")
    return model, finish(own)


def test_the_tables_of_operators_hold_every_rule():
    assert {row[0] for row in (*BACKWARD, *PRODUCTS)} == {*STANDARD}


@pytest.mark.parametrize(("op", "attributes", "forward", "shape"), BACKWARD)
def test_a_backward_operator_is_the_central_difference_of_its_forward(op, attributes, forward, shape):
    """In float64; in float32 it agrees with the kernel of onnxruntime-training 1.19.2."""
    rng = np.random.default_rng(2)
    x, dy = rng.normal(size=shape), rng.normal(size=shape)
    _, model = standard(op, attributes, shape, shape, shape)
    assert {node.domain for node in model.graph.node} == {""}
    [got] = Session(model).run({"a": dy, "b": forward(x)})
    expected = np.zeros(shape)
    for place in np.ndindex(shape):
        step = np.zeros(shape)
        step[place] = 1e-5
        expected[place] = (dy * (forward(x + step) - forward(x - step))).sum() / 2e-5
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9)
    feeds = {"a": dy.astype(np.float32), "b": forward(x).astype(np.float32)}
    kernel, own = (Session(m).run(feeds)[0] for m in standard(op, attributes, shape, shape, shape, "float"))
    np.testing.assert_allclose(own, kernel, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("op", "attributes", "formula", "first", "second"), PRODUCTS)
def test_a_product_is_its_formula_in_standard_operators(op, attributes, formula, first, second):
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=first), rng.uniform(1, 2, size=second)
    expected = formula(a, b)
    _, model = standard(op, attributes, first, second, expected.shape)
    assert {node.domain for node in model.graph.node} == {""}
    np.testing.assert_allclose(Session(model).run({"a": a, "b": np.asarray(b)})[0], expected, rtol=1e-12)
