from __future__ import annotations

import numpy as np
import pytest

from ortpipe.errors import DeriveError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines.ort import Ort
from ortpipe.stages.derive.engines.ort_operators import DIFFERENTIATED, FAULTS
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


FAULTY = {
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
}
SOUND = {
    "Conv": graph(f"{IMAGE} j = Conv<pads=[0, 0, 0, 1]>(i, k) {FLAT}", ", float[1,1,1,2] k = {0.4, 0.8}"),
    "Dropout": graph("h = Dropout(m)"),
    "Gelu": graph("h = Gelu(m)"),
    "Split": graph(
        """at = Constant<value_ints=[3, 3]>() e = Exp(m) two = Concat<axis=1>(m, e)
         a, b = Split<axis=1>(two, at) h = Mul(a, b)"""
    ),
    "Where": graph("zero = Constant<value_float=0.0>() c = Greater(m, zero) k = Exp(m) h = Where(c, m, k)"),
    "Where, broadcast": graph(
        "zero = Constant<value_float=0.0>() c = Greater(m, zero) h = Where(c, m, k)", ", float[3] k = {0.4, 0.8, 1.3}"
    ),
    "Dropout with a mask": graph("d, mask = Dropout(m) seen = Cast<to=1>(mask) h = Mul(d, seen)"),
    "MaxPool": graph(f"{IMAGE} j = MaxPool<kernel_shape=[1, 2], pads=[0, 0, 0, 1]>(i) {FLAT}"),
    "AveragePool": graph(f"{IMAGE} j = AveragePool<kernel_shape=[1, 2], pads=[0, 0, 0, 1]>(i) {FLAT}"),
    "Transpose without perm": graph("a = Transpose(m) b = Tanh(a) h = Transpose(b)"),
    "Transpose": graph("a = Transpose<perm=[1, 0]>(m) b = Tanh(a) h = Transpose<perm=[1, 0]>(b)"),
    "a counted copy": graph("i = Cast<to=7>(m) f = Cast<to=1>(i) h = Add(m, f)"),
}


def loss_model(from_text, text):
    return add_loss(from_text(text, inputs=("X",)), AddLossConfig(LOSSES["l2"]()))


def test_the_table_of_graphs_holds_every_fault():
    assert set(FAULTS) - set(FAULTY) == {"ReduceLogSumExp"}  # see test_ort_rewrites.py


@pytest.mark.parametrize("op", FAULTY)
def test_a_form_that_is_differentiated_wrong_is_refused_by_name(from_text, op):
    with pytest.raises(DeriveError) as error:
        derive(loss_model(from_text, FAULTY[op]), ORT)
    assert f"got: {op} at node " in str(error.value)
    assert (FAULTS[op][0] if op in DIFFERENTIATED else "no gradient for it, or a wrong one") in str(error.value)


@pytest.mark.parametrize("op", FAULTY)
def test_it_is_no_hindrance_in_front_of_the_trained_parameters(from_text, op):
    result = derive(loss_model(from_text, FAULTY[op]), DeriveConfig(engine=Ort(), parameters=("u",)))
    assert list(result.facts.gradients) == ["u"]


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
