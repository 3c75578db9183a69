import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ortpipe.errors import ModelError
from ortpipe.graph.core import apart, check, protos
from ortpipe.graph.core.check import checked, finish
from ortpipe.graph.core.protos import graphs

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3] X) => (float[N, 1] Y)
<float[3, 1] w = {1, 2, 3}, float[1] unused = {1}>
{ h = MatMul(X, w)  dead = Neg(h)  Y = Relu(h) }
"""
WRONG = {
    "shapes that do not fit": TEXT.replace("float[3, 1] w", "float[2, 1] w").replace("1, 2, 3}", "1, 2}"),
    "an unknown operator": TEXT.replace("Relu", "Rulu"),
    "a value that nobody makes": TEXT.replace("Relu(h)", "Relu(ghost)"),
    "a name made twice": TEXT.replace("dead", "h"),
    "an output of another type": TEXT.replace("(float[N, 1] Y)", "(int64[N, 1] Y)"),
}


def test_a_finished_model_has_shapes_and_no_dead_part():
    model = finish(ir.from_onnx_text(TEXT))
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Relu"]
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info
    }
    assert shapes["h"] == ["N", 1]


def test_checking_leaves_the_model_it_is_given_alone():
    model = onnx.parser.parse_model(TEXT)
    before = model.SerializeToString()
    assert len(checked(model).graph.value_info) == 2 + len(model.graph.value_info)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("large", [False, True])
def test_a_wrong_model_is_refused(text, large, monkeypatch):
    if large:
        monkeypatch.setattr(protos, "LARGE_MODEL", 0)
    with pytest.raises(ModelError, match=r"onnx\.checker with full check"):
        checked(onnx.parser.parse_model(text))


def test_a_large_model_is_checked_and_inferred_without_its_weights(monkeypatch):
    model = onnx.parser.parse_model(TEXT)
    body = model.graph.node.add(op_type="Scan", input=["rows"], output=["scanned"])
    body.attribute.append(onnx.helper.make_attribute("num_scan_inputs", 1))
    scanned = onnx.parser.parse_graph("b (float[2] row) => (float[2] sum) <float[2] b = {1, 2}> { sum = Add(row, b) }")
    body.attribute.append(onnx.helper.make_attribute("body", scanned))
    model.graph.input.append(onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, [3, 2]))
    expected = checked(model)
    monkeypatch.setattr(protos, "LARGE_MODEL", 0)
    monkeypatch.setattr(apart, "LARGE_WEIGHT", 0)
    seen, full = [], onnx.checker.check_model
    monkeypatch.setattr(onnx.checker, "check_model", lambda model, **how: seen.append(model) or full(model, **how))
    assert checked(model) == expected
    sizes = [(len(graph.initializer), len(graph.input)) for graph in graphs(seen[0].graph)]
    assert sizes == [(0, 2 + 3), (0, 1)]  # X and rows, and what were initializers


CONVOLUTION = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 1, 8, 8] x, float[2, 1, 3, 3] k) => (float[N, M] y)
  { c = Conv(x, k) r = Relu(c) y = Flatten(r) }"""


@pytest.mark.parametrize(
    "grown",
    [
        "y = ConstantOfShape(n)",
        "y = Expand(x, n)",
        "y = Tile(x, n)",
        "h = Expand(x, n) y = Identity(h)",
    ],
)
def test_values_are_not_followed_where_a_graph_makes_a_long_vector_of_nothing(monkeypatch, grown):
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[M] w)
    <int64[1] n = {{{2 * check.LONGEST_VECTOR}}}> {{ {grown} w = Add(y, x) }}"""
    followed, infer = [], onnx.shape_inference.infer_shapes
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda *a, **k: followed.append(k) or infer(*a, **k))
    shaped = check.inferred(onnx.parser.parse_model(text))
    check.inferred(shaped)
    assert followed == [{}, {}]


def test_values_are_followed_at_once_where_no_axis_can_grow(monkeypatch):
    followed, infer = [], onnx.shape_inference.infer_shapes
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda *a, **k: followed.append(k) or infer(*a, **k))
    check.inferred(onnx.parser.parse_model(TEXT))
    assert followed == [{"data_prop": True}]


def test_values_are_followed_at_once_where_inference_has_set_all_shapes(monkeypatch):
    model = onnx.parser.parse_model(CONVOLUTION)
    shaped, followed, infer = check.inferred(model), [], onnx.shape_inference.infer_shapes
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda *a, **k: followed.append(k) or infer(*a, **k))
    assert check.inferred(shaped) == shaped == check.inferred(model)
    assert followed == [{"data_prop": True}, {}, {"data_prop": True}]
