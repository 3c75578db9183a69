import contextlib
import threading

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ortpipe.autodiff import gradient
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.doubles import FORMS
from ortpipe.graph.core.operators import having
from ortpipe.runtime.session import Session

IF = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3] X, bool flag) => (float[N, 3] Y)
<float[3] w = {1, 2, 3}>
{
  Y = If (flag) <
    then_branch = yes () => (float[N, 3] a) { inner = Mul(X, w)  a = Relu(inner) },
    else_branch = no () => (float[N, 3] b) { b = Neg(X) }
  >
}
"""


def graph(dtype=ir.DataType.FLOAT):
    return ir.Graph([ir.val("X", dtype, ["N", 3])], [], nodes=[], opset_imports={"": 21}, name="g")


def run(graph, value, **feeds):
    value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
    graph.outputs.append(value)
    return Session(finish(ir.Model(graph, ir_version=10))).run(feeds, [value.name])[0]


def test_names_collide_with_nothing_and_do_not_depend_on_chance():
    def made():
        names = Names(["label", "label_1"])
        return [names.fresh(wanted) for wanted in ("label", "label", "loss", "label_2", "loss")]

    assert made() == ["label_2", "label_3", "loss", "label_2_1", "loss_1"]
    assert made() == made()


def test_names_inside_subgraphs_are_used_too():
    model = ir.from_onnx_text(IF)
    assert {"X", "flag", "Y", "w", "a", "inner", "b"} <= used_names(model.graph)


def test_a_formula_computes_what_it_says():
    own = graph()
    op = Builder(own, "f")
    x = own.inputs[0]
    y = op.Add(op.Mul(x, op.const(np.float32(2))), op.parameter("w", np.array([1, 2, 3], np.float32)))
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(own, y, X=rows), rows * 2 + [1, 2, 3])


def test_the_same_calls_give_the_same_bytes():
    def made():
        own = graph()
        op = Builder(own, "f")
        own.outputs.append(op.Relu(op.Add(own.inputs[0], op.const(np.float32(1)))))
        own.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        return finish(ir.Model(own, ir_version=10)).SerializeToString(deterministic=True)

    assert made() == made()


def test_nodes_with_several_outputs_give_one_value_each():
    own = graph()
    values, index = Builder(own, "f").TopK(own.inputs[0], Builder(own, "g").const(np.array([2])), outputs=2)
    assert (values.name, index.name) == ("f/TopK", "f/TopK_1")


def test_a_missing_optional_input_stays_missing():
    own = graph()
    op = Builder(own, "f")
    rows = np.array([[-5, 0, 5]], np.float32)
    np.testing.assert_array_equal(run(own, op.Clip(own.inputs[0], None, op.const(np.float32(1))), X=rows), [[-5, 0, 1]])


def test_nodes_go_in_front_of_a_node_when_asked():
    own = graph()
    last = Builder(own, "f").Relu(own.inputs[0])
    Builder(own, "g", before=last.producer()).Neg(own.inputs[0])
    assert [node.op_type for node in own] == ["Neg", "Relu"]


def test_two_builders_on_one_graph_do_not_collide():
    own = graph()
    names = [Builder(own, "f").Relu(own.inputs[0]).name for _ in range(3)]
    assert names == ["f/Relu", "f/Relu_1", "f/Relu_2"]


def test_an_equal_constant_is_written_once_and_another_is_not():
    op = Builder(graph(), "f")
    assert op.const(np.float32(1)) is op.const(np.float32(1))
    others = [np.float64(1), np.float32(-1), np.float32([1]), np.int64(1), np.array("1")]
    made = [op.const(value) for value in (np.float32(1), *others)]
    assert len({id(value) for value in made}) == len(made)


def test_minus_zero_is_another_constant_than_zero():
    op = Builder(graph(), "f")
    assert op.const(np.float32(-0.0)) is not op.const(np.float32(0.0))


def test_constants_are_no_initializers_and_parameters_are():
    own = graph()
    op = Builder(own, "f")
    op.const(np.ones(3, np.float32))
    parameter = op.parameter("X", np.ones(3, np.float32))
    assert list(own.initializers) == [parameter.name] == ["X_1"]


def test_string_constants_survive():
    own = graph()
    op = Builder(own, "f")
    index = op.ArgMax(own.inputs[0], axis=1, keepdims=0)
    label = op.Gather(op.const(np.array(["é", "bb", ""])), index)
    label.type = ir.TensorType(ir.DataType.STRING)
    assert run(own, label, X=np.eye(3, dtype=np.float32)).tolist() == ["é", "bb", ""]


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16])
def test_a_number_takes_the_type_of_a_value(dtype):
    own = graph(dtype)
    made = Builder(own, "f").like(0.5, own.inputs[0])
    assert ir.convenience.get_const_tensor(made).dtype == dtype


def test_a_value_is_cast_to_the_type_of_another():
    own = graph(ir.DataType.DOUBLE)
    op = Builder(own, "f")
    whole = op.input("n", ir.DataType.INT64, ["N", 3])
    assert op.cast(whole, own.inputs[0]).dtype == ir.DataType.DOUBLE


@pytest.mark.parametrize("method", ["like", "cast"])
def test_a_type_that_is_not_known_is_refused(method):
    own = graph()
    op = Builder(own, "f")
    unknown = op.OptionalGetElement(own.inputs[0])
    with pytest.raises(ValueError, match="type of f/OptionalGetElement is not known"):
        op.like(1, unknown) if method == "like" else op.cast(own.inputs[0], unknown)


def test_inputs_and_renamed_values_give_way_to_names_that_are_there():
    own = ir.from_onnx_text(IF).graph
    op = Builder(own, "f")
    assert op.input("inner", ir.DataType.FLOAT, ["N", 1]).name == "inner_1"
    assert op.rename(op.Relu(own.inputs[0]), "Y").name == "Y_1"
    assert op.rename(op.Relu(own.inputs[0]), "loss").name == "loss"


def test_what_is_no_operator_is_an_attribute_error():
    with pytest.raises(AttributeError, match="relu"):
        Builder(graph(), "f").relu(None)


class Asked:
    """Somebody else's answer to a + b of values."""

    def Add(self, a, b):
        return "theirs"


@pytest.fixture
def theirs():
    before = ir.set_value_magic_handler(Asked())
    yield
    ir.set_value_magic_handler(before)


def test_formulas_leave_the_arithmetic_of_values_to_whoever_had_it(theirs):
    own = graph()
    x, op, inner = own.inputs[0], Builder(own, "f"), Builder(graph(), "g")
    with op.formulas():
        with contextlib.suppress(ZeroDivisionError), inner.formulas():
            assert (x + x).name == "g/Add"
            raise ZeroDivisionError
        assert (x + x).name == "f/Add"
    assert x + x == "theirs"


def test_values_have_no_arithmetic_outside_of_formulas():
    x = graph().inputs[0]
    with Builder(graph(), "f").formulas():
        pass
    with pytest.raises(ValueError, match="magic handler"):
        x + x


def test_threads_write_formulas_of_their_own_and_leave_others_theirs(theirs):
    own, results, meet = graph(), {}, threading.Barrier(2, timeout=60)
    x = own.inputs[0]

    def write(prefix, first):
        op = Builder(graph(), prefix)
        with op.formulas():
            meet.wait()
            results[prefix] = (x + x).name
            if not first:
                meet.wait()  # the first has left, whose end is not the end of this one
                results[f"{prefix} again"] = (x + x).name
        if first:
            results["outside"] = x + x
            meet.wait()

    threads = [threading.Thread(target=write, args=("a", True)), threading.Thread(target=write, args=("b", False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"a": "a/Add", "b": "b/Add", "b again": "b/Add_1", "outside": "theirs"}
    assert x + x == "theirs"


@pytest.mark.parametrize("numbers", [[0.5], np.array([0.5, 2]), "12"])
def test_a_vector_among_the_inputs_holds_integers(numbers):
    own = graph()
    with pytest.raises(TypeError, match="integer"):
        Builder(own, "f").Mul(own.inputs[0], numbers)


@pytest.mark.parametrize("name", FORMS)
def test_a_function_without_float64_kernel_is_written_in_others_with_its_value_and_slope(name):
    """The values are those of ONNX's reference implementation, the slopes those of the function's own rule."""
    assert name in having("no_double")
    rows, settings = np.linspace(-2, 2, 9), {"alpha": 0.25} if name in ("Elu", "LeakyRelu") else {}
    models = {}
    for dtype, onnx_type in (("float64", ir.DataType.DOUBLE), ("float32", ir.DataType.FLOAT)):
        own = ir.Graph([ir.val("X", onnx_type, ["N"])], [], nodes=[], opset_imports={"": 21}, name="g")
        own.outputs.append(Builder(own, "f").rename(getattr(Builder(own, "f"), name)(own.inputs[0], **settings), "y"))
        models[dtype] = finish(ir.Model(own, ir_version=10))
    results = {
        dtype: Session(gradient(model, "y", "X", ones=True)).run({"X": rows.astype(dtype)})
        for dtype, model in models.items()
    }
    assert {node.op_type for node in models["float64"].graph.node}.isdisjoint(having("no_double"))
    [y] = ReferenceEvaluator(onnx.helper.make_node(name, ["X"], ["y"], **settings)).run(None, {"X": rows})
    np.testing.assert_allclose(Session(models["float64"]).run({"X": rows})[0], y, rtol=1e-13, atol=1e-15)
    for got, expected in zip(results["float64"], results["float32"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
