import numpy as np
import onnx
import pytest
from skl2onnx.common.data_types import DoubleTensorType, Int32TensorType

from ortpipe.compat import (
    _rewrite_op_no_grad,
    add_initializer,
    dtype_to_var_type,
    get_onnx_opset,
    onnx_rewrite_operator,
    proto_type_to_dtype,
)
from ortpipe.errors import ConfigError
from ortpipe.runtime.session import Session


def _model(text: str, opset: int = 18, ir: int = 8) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}]> {text}')


INVERSE = _model("g (float[N] one) => (float[N] Y) <float[1] X = {1}> { Y = Div(X, one) }")
X = np.array([1, -2, 4], np.float32)


def test_every_node_of_an_operator_gives_way_to_a_graph_whatever_its_names_are() -> None:
    model = _model("g (float[N] X) => (float[N] Y) { one = Reciprocal(X) b = Add(one, X) Y = Reciprocal(b) }", ir=7)
    before = model.SerializeToString()
    rewritten = onnx_rewrite_operator(model, "Reciprocal", INVERSE)
    assert sorted(node.op_type for node in rewritten.graph.node) == ["Add", "Constant", "Constant", "Div", "Div"]
    np.testing.assert_allclose(Session(rewritten).run({"X": X})[0], 1 / (1 / X + X))
    onnx.checker.check_model(rewritten, full_check=True)
    assert model.SerializeToString() == before
    assert [(o.domain, o.version) for o in rewritten.opset_import] == [("", 18)]


@pytest.mark.parametrize(("recursive", "left"), [(True, 0), (False, 1)])
def test_nodes_of_subgraphs_are_rewritten_where_asked(recursive: bool, left: int) -> None:
    branch = "{} () => (float[N] {}) {{ {} = Reciprocal(X) }}"
    text = f"then_branch = {branch.format('t', 'p', 'p')}, else_branch = {branch.format('e', 'q', 'q')}"
    model = _model(f"g (float[N] X, bool c) => (float[N] Y) {{ Y = If(c)<{text}> }}")
    rewritten = onnx_rewrite_operator(model, "Reciprocal", INVERSE, recursive)
    assert str(rewritten).count('"Reciprocal"') == 2 * left
    np.testing.assert_allclose(Session(rewritten).run({"X": X, "c": np.array(True)})[0], 1 / X)


def test_a_graph_of_other_inputs_is_rejected() -> None:
    model = _model("g (float[N] X) => (float[N] Y) { Y = Add(X, X) }")
    with pytest.raises(ConfigError, match="as many inputs"):
        onnx_rewrite_operator(model, "Add", INVERSE)


@pytest.mark.parametrize(("opset", "kind"), [(13, "float"), (15, "float"), (18, "double")])
def test_what_had_no_gradient_computes_the_same_without_its_operator(opset: int, kind: str) -> None:
    rewritten = _rewrite_op_no_grad(_model(f"g ({kind}[N] X) => ({kind}[N] Y) {{ Y = Reciprocal(X) }}", opset))
    assert "Reciprocal" not in {node.op_type for node in rewritten.graph.node}
    x = X.astype(onnx.helper.tensor_dtype_to_np_dtype(rewritten.graph.input[0].type.tensor_type.elem_type))
    np.testing.assert_array_equal(Session(rewritten).run({"X": x})[0], 1 / x)


def test_types_and_opsets_have_their_names() -> None:
    assert dtype_to_var_type(np.float64) is DoubleTensorType
    assert dtype_to_var_type(np.int32) is Int32TensorType
    assert proto_type_to_dtype("tensor(float)") is np.float32
    assert proto_type_to_dtype(onnx.TensorProto.DOUBLE) is np.float64
    assert get_onnx_opset(INVERSE) == 18
    for wrong in (
        lambda: dtype_to_var_type(np.int8),
        lambda: proto_type_to_dtype(9),
        lambda: get_onnx_opset(INVERSE, "H"),
    ):
        with pytest.raises(ValueError, match="fix"):
            wrong()


def test_an_added_initializer_is_the_default_of_an_input_of_its_name() -> None:
    model = _model("g (float[N] X, float[1] w) => (float[N] Y) { Y = Mul(X, w) }")
    more = add_initializer(model, "w", np.array([2], np.float32))
    np.testing.assert_array_equal(Session(more).run({"X": X})[0], 2 * X)
    assert not model.graph.initializer
    with pytest.raises(ValueError, match="new"):
        add_initializer(more, "w", np.ones(1))
