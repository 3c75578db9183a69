import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ortpipe.errors import DeriveError
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.inference import infer
from ortpipe.runtime.gradient_builder import gradient_model, with_yield
from ortpipe.runtime.session import Session

pytestmark = pytest.mark.usefixtures("training_build")
TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3] X, float[N, 2] label) => (float loss)
<float[3, 2] zeta = {0.5, -1, 2, 1, 0.25, -0.5}, float[2] alpha = {0.5, -0.25}, float frozen = {2}>
{
  h = MatMul(X, zeta)
  y = Add(h, alpha)
  d = Sub(y, label)
  q = Mul(d, d)
  k = Mul(q, frozen)
  loss = ReduceSum<keepdims = 0>(k)
}
"""
rng = np.random.default_rng(0)
FEEDS = {"X": rng.normal(size=(5, 3)).astype(np.float32), "label": rng.normal(size=(5, 2)).astype(np.float32)}


def gradients(model, parameters, inputs=()):
    """Run the builder's graph, called through the engine, with YieldOp answered by ∂loss/∂loss = 1."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    own, names = with_yield(ir.from_proto(copy), parameters, inputs, ())
    infer(own)
    [node] = [node for node in own.graph if node.op_type == "YieldOp"]
    one = ir.node("Constant", [], {"value": ir.tensor(np.ones((), np.float32))})
    own.graph.insert_before(node, one)
    node.outputs[0].replace_all_uses_with(one.outputs[0])
    own.graph.remove(node, safe=True)
    by_name = ir.convenience.create_value_mapping(own.graph)
    own.graph.outputs[:] = [by_name[name] for name in names.values()]
    own.graph.opset_imports.setdefault("com.microsoft", 1)
    given = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer} | FEEDS
    session = Session(ir.to_proto(own))
    feeds = {v.name: given[v.name] for v in own.graph.inputs}
    return dict(zip(names, session.run(feeds, list(names.values())), strict=True))


def finite_differences(model, name):
    def loss(array):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for tensor in changed.graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        feeds = {**FEEDS, name: array.astype(np.float32)} if name in FEEDS else FEEDS
        return float(Session(changed).run(feeds)[0])

    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer} | FEEDS
    start, slope = tensors[name].astype(np.float64), np.zeros(tensors[name].shape)
    for place in np.ndindex(start.shape):
        step = np.zeros_like(start)
        step[place] = 2**-5
        slope[place] = (loss(start + step) - loss(start - step)) / 2**-4
    return slope


@pytest.mark.parametrize("parameters", [["zeta", "alpha"], ["alpha", "zeta"], ["zeta"], ["alpha"]])
def test_each_name_has_its_own_gradient_whatever_the_order(parameters):
    model = onnx.parser.parse_model(TEXT)
    found = gradients(model, parameters)
    assert set(found) == set(parameters)
    for name in parameters:
        np.testing.assert_allclose(found[name], finite_differences(model, name), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("inputs", [["X"], ["X", "label"]])
def test_inputs_have_gradients_on_request(inputs):
    model = onnx.parser.parse_model(TEXT)
    found = gradients(model, ["zeta"], inputs)
    assert set(found) == {"zeta", *inputs}
    for name in inputs:
        np.testing.assert_allclose(found[name], finite_differences(model, name), rtol=1e-3, atol=1e-3)


ODD = [("zeta", "loss_grad"), ("alpha", "X_grad"), ("h", "zeta_grad"), ("y", "alpha_grad"), ("frozen", "label_1")]


@pytest.mark.parametrize(("old", "new"), ODD)
def test_odd_names_change_no_gradient(old, new):
    def rename(name):
        return new if name == old else name

    text = TEXT.replace(f" {old} ", f" {new} ")
    for before, after in ((f"({old}", f"({new}"), (f"{old})", f"{new})"), (f"{old},", f"{new},")):
        text = text.replace(before, after)
    plain = gradients(onnx.parser.parse_model(TEXT), ["zeta", "alpha"])
    odd = gradients(onnx.parser.parse_model(text), [rename("zeta"), rename("alpha")])
    for name in ("zeta", "alpha"):
        np.testing.assert_array_equal(odd[rename(name)], plain[name])


def test_a_parameter_may_have_the_name_of_an_inputs_gradient():
    model = onnx.parser.parse_model(TEXT.replace("zeta", "X_grad"))
    found, plain = gradients(model, ["X_grad"], ["X"]), gradients(onnx.parser.parse_model(TEXT), ["zeta"], ["X"])
    np.testing.assert_array_equal(found["X_grad"], plain["zeta"])
    np.testing.assert_array_equal(found["X"], plain["X"])


def test_the_model_is_not_touched():
    model = onnx.parser.parse_model(TEXT)
    before = model.SerializeToString()
    gradient_model(model, ["zeta"], [])
    assert model.SerializeToString() == before


def test_the_same_model_gives_the_same_graph():
    model = finish(ir.from_onnx_text(TEXT))
    one, two = (gradient_model(model, ["alpha", "zeta"], ["X"]) for _ in range(2))
    assert one[0].SerializeToString(deterministic=True) == two[0].SerializeToString(deterministic=True)
    assert one[1] == two[1]


def test_an_operator_without_a_gradient_is_refused_by_name():
    text = TEXT.replace("q = Mul(d, d)", "q = Acosh(d)")
    with pytest.raises(DeriveError, match="Acosh"):
        gradient_model(onnx.parser.parse_model(text), ["zeta"], [])


def test_a_parameter_that_does_not_exist_is_refused():
    with pytest.raises(DeriveError, match="nope"):
        gradient_model(onnx.parser.parse_model(TEXT), ["nope"], [])
