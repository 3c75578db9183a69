from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from ortpipe.compat import (
    add_loss_output,
    get_train_initializer,
    onnx_rename_weights,
    replace_initializers_into_onnx,
    select_model_inputs_outputs,
    unique_name,
)
from ortpipe.errors import ModelError
from ortpipe.facts_json import read_metadata
from ortpipe.runtime.session import Session

X = np.array([[1.0, 2.0], [-3.0, 0.5]], np.float32)
MODEL = """g (float[N,2] X) => (float[N,1] p) <float[2,1] w = {1, 2}, float[1] b = {-1}, int64[1] k = {3}>
 { a = MatMul(X, w) z = Add(a, b) p = Sigmoid(z) }"""


def parsed(text=MODEL, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]>\n' + text)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_weights_and_biases_of_every_float_type_are_trained_and_numbers_are_not(dtype):
    kind = {"float16": 10, "bfloat16": 16, "float32": 1, "float64": 11}[dtype]
    text = dtype.replace("float32", "float").replace("float64", "double")
    model = parsed(f"g ({text}[N,2] X) => ({text}[N,2] p) {{ a = MatMul(X, w) z = Add(a, b) p = Mul(z, t) }}")
    for name, shape in (("w", [2, 2]), ("b", [2]), ("t", [1]), ("unread", [2])):
        size = int(np.prod(shape))
        model.graph.initializer.append(onnx.helper.make_tensor(name, kind, shape, [1.0, 0.5, 2.0, 4.0][:size]))
    found = get_train_initializer(model)
    assert list(found) == ["w", "b"]
    array, tensor = found["b"]
    assert (array.dtype.name, array.tolist(), tensor.name) == (dtype, [1, 0.5], "b")


def test_a_loss_adds_nothing_that_can_be_trained():
    model = add_loss_output(parsed(), "elastic", weight_name="weight", penalty={"*": {"l1": 1, "l2": 1}})
    assert list(get_train_initializer(model)) == ["w", "b"]


def test_a_unique_name_counts_from_two():
    names = {"a"}
    assert [unique_name(names, n) for n in ("a", "a", "b", "a")] == ["a_2", "a_3", "b", "a_4"]
    assert unique_name(names, "c", add=False) == "c"
    assert "c" not in names


def test_renamed_weights_are_in_alphabetical_order_and_the_model_computes_the_same():
    weights = [f"w{i}" for i in range(12)]
    held = ", ".join(f"float[1] {w} = {{{i}}}" for i, w in enumerate(weights))
    adds = " ".join(f"a{i + 1} = Add(a{i}, {w})" for i, w in enumerate(weights))
    model = parsed(f"g (float[N,1] a0) => (float[N,1] a12) <{held}> {{ {adds} }}")
    before = Session(model).run({"a0": X[:, :1]})
    renamed = onnx_rename_weights(model)
    assert renamed is model
    names = [t.name for t in model.graph.initializer]
    assert names == sorted(names) == [f"I{i:02}_w{i}" for i in range(12)]
    np.testing.assert_array_equal(Session(model).run({"a0": X[:, :1]}), before)


def test_renaming_reaches_subgraphs_and_the_models_own_facts():
    model = parsed(
        """g (float[N,2] X) => (float[N,2] Y) <float[2] w = {1, 2}, bool yes = {1}>
         { Y = If(yes) <then_branch = t () => (float[N,2] u) { u = Add(X, w) },
                        else_branch = e () => (float[N,2] v) { v = Sub(X, w) }> }"""
    )
    np.testing.assert_array_equal(Session(onnx_rename_weights(model)).run({"X": X})[0], X + np.array([1, 2]))
    loss = onnx_rename_weights(add_loss_output(parsed()))
    assert read_metadata(loss)["parameters"] == ["I0_w", "I1_b"]


def test_a_model_without_weights_keeps_its_names():
    model = parsed("g (float[N,2] X) => (float[N,2] Y) { Y = Abs(X) }")
    assert not onnx_rename_weights(model).graph.initializer


def test_replaced_initializers_are_arrays_tensors_or_ort_values():
    import onnxruntime

    model, w = parsed(), np.array([[3], [4]], np.float32)
    before = model.SerializeToString()
    for value in (w, onnx.numpy_helper.from_array(w, "other"), onnxruntime.OrtValue.ortvalue_from_numpy(w)):
        replaced = replace_initializers_into_onnx(model, {"w": value})
        assert {n: a.tolist() for n, (a, _) in get_train_initializer(replaced).items()} == {"w": [[3], [4]], "b": [-1]}
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("results", "message"), [({"ww": X}, "Did you mean 'w'"), ({"w": X}, r"\[2, 2\] for 'w' of shape \[2, 1\]")]
)
def test_what_cannot_be_replaced_is_refused(results, message):
    with pytest.raises(RuntimeError, match=message):  # as in the original
        replace_initializers_into_onnx(parsed(), results)


def test_raw_scores_are_selected_as_outputs():
    model = parsed()
    scores = select_model_inputs_outputs(model, outputs=["z"])
    [z] = Session(scores).run({"X": X})
    np.testing.assert_allclose(z, X @ [[1], [2]] - 1)
    assert scores.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert [t.name for t in scores.graph.initializer] == ["w", "b"]


def test_raw_scores_in_front_of_a_zip_map_are_selected():
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression().fit(X, [0, 1])
    model = to_onnx(estimator, X, target_opset=18, black_op={"LinearClassifier"})
    [scores] = [n.input[0] for n in model.graph.node if n.op_type in ("Softmax", "Sigmoid")]
    [got] = Session(select_model_inputs_outputs(model, scores)).run({"X": X})
    np.testing.assert_allclose(got.ravel()[-1], estimator.decision_function(X)[-1], rtol=1e-4)


def test_an_inner_value_becomes_an_input():
    part = select_model_inputs_outputs(parsed(), inputs=["z"])
    assert [i.name for i in part.graph.input] == ["z"]
    [p] = Session(part).run({"z": np.zeros((3, 1), np.float32)})
    assert p.tolist() == [[0.5]] * 3


def test_a_type_that_is_not_known_is_said():
    model = parsed("g (float[N,2] X) => (float[N,2] Y) { a = some.domain.Op(X) Y = Abs(a) }")
    model.opset_import.add(domain="some.domain", version=1)
    with pytest.raises(ModelError, match="overwrite="):
        select_model_inputs_outputs(model, inputs="a")
    part = select_model_inputs_outputs(model, inputs="a", overwrite={"a": (np.float32, [None, 2])})
    np.testing.assert_array_equal(Session(part).run({"a": X})[0], np.abs(X))


def test_nodes_that_nobody_reads_stay_on_request(capsys):
    kept = select_model_inputs_outputs(parsed(), "z", remove_unused=False, verbose=1)
    assert [n.op_type for n in kept.graph.node] == ["MatMul", "Add", "Sigmoid"]
    assert "X → z" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"outputs": "zz"}, "Did you mean 'z'"), ({"outputs": "a", "inputs": ["z"]}, r"depend on X")],
)
def test_what_cannot_be_selected_is_refused(arguments, message):
    with pytest.raises(ModelError, match=message):
        select_model_inputs_outputs(parsed(), **arguments)
