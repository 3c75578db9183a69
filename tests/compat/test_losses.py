from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from differences import central_differences
from onnx.reference import ReferenceEvaluator

from ortpipe import compat
from ortpipe.artifact import Artifact
from ortpipe.compat import add_loss_output, penalty_loss_onnx, unreduced_onnx_loss
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split
from ortpipe.errors import ConfigError, LossError, ModelError, PenaltyError
from ortpipe.facts_json import read_facts, read_metadata
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines import ENGINES
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

N = 6
LINEAR = """g (float[batch,3] X) => (float[batch,2] Y)
 <float[3,2] coef = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}, float[2] b = {1, 2}>
 { a = MatMul(X, coef) Y = Add(a, b) }"""
BINARY = """g (float[batch,3] X) => (float[batch,2] P) <float[3,2] coef = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}>
 { a = MatMul(X, coef) P = Softmax(a) }"""
COEF = np.array([[0.5, -0.7], [1.1, 0.3], [-0.4, 0.9]], np.float32).astype(np.float64)
TOLERANCES = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}


def parsed(text, dtype="float32", opset=18):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n' + text)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    return model


def rows(score, dtype="float64"):
    rng = np.random.default_rng(2)
    x, weight = rng.normal(size=(N, 3)).astype(dtype), rng.uniform(0.5, 2, N).astype(dtype)
    label = np.arange(N).reshape(-1, 1) % 2 if score == "log" else rng.normal(size=(N, 2)).astype(dtype)
    return x, label, weight


def per_row(score, x, label, l1_weight=0.5, l2_weight=0.5, eps=1e-6):
    """The losses of the rows in float64, from their formulas."""
    z = x.astype(np.float64) @ COEF
    if score == "log":
        e = np.exp(z - z.max(axis=1, keepdims=True))
        p = np.clip(e / e.sum(axis=1, keepdims=True), eps, 1 - eps)
        p, y = p / p.sum(axis=1, keepdims=True), label.ravel()
        return -((1 - y) * np.log(p[:, 0]) + y * np.log(p[:, 1]))
    d = z + np.array([1, 2]) - label
    return {
        "squared_error": d**2,
        "l2": d**2,
        "absolute_error": np.abs(d),
        "l1": np.abs(d),
        "elastic": l1_weight * np.abs(d) + l2_weight * d**2,
    }[score].sum(axis=1)


def expected(score, x, label, weight=None, **settings):
    losses = per_row(score, x, label, **settings) * (1 if weight is None else weight.astype(np.float64))
    return losses.mean() if score == "log" else losses.sum()


def run(model, feeds):
    return Session(model).run(feeds)


SCORES = ["squared_error", "l2", "absolute_error", "l1", "elastic", "log"]
SETTINGS = {"elastic": {"l1_weight": 0.1, "l2_weight": 0.9}, "log": {"eps": 0.3}}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("own_settings", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_the_loss_is_its_formula_in_numpy(score, own_settings, weighted, dtype):
    x, label, weight = rows(score, dtype)
    settings = SETTINGS.get(score, {}) if own_settings else {}
    model = add_loss_output(
        parsed(BINARY if score == "log" else LINEAR, dtype), score, weight_name="w" if weighted else None, **settings
    )
    feeds = {"X": x, "label": label, **({"w": weight} if weighted else {})}
    loss, _ = run(model, feeds)
    assert loss.shape == (1, 1)
    assert loss.dtype == dtype
    wanted = expected(score, x, label, weight if weighted else None, **settings)
    assert loss[0, 0] == pytest.approx(wanted, rel=TOLERANCES[dtype])
    np.testing.assert_allclose(ReferenceEvaluator(model).run(["loss"], feeds)[0], loss, rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("shape", [(N,), (N, 1)])
def test_weights_are_a_vector_or_a_column(score, shape):
    x, label, weight = rows(score)
    model = add_loss_output(parsed(BINARY if score == "log" else LINEAR, "float64"), score, weight_name="weight")
    feeds = {"X": x, "label": label, "weight": weight.reshape(shape)}
    [loss] = ReferenceEvaluator(model).run(["loss"], feeds)
    assert loss[0, 0] == pytest.approx(expected(score, x, label, weight), rel=1e-12)


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_its_gradients_are_the_central_differences(score, penalised):
    x, label, weight = rows(score)
    penalty = {"c*": {"l1": 0.3, "l2": 0.2}} if penalised else None
    model = add_loss_output(
        parsed(BINARY if score == "log" else LINEAR, "float64"), score, weight_name="weight", penalty=penalty
    )
    feeds = {"X": x, "label": label, "weight": weight}
    known = read_metadata(model)
    facts = read_facts({k: v for k, v in known.items() if k != "inputs"} | {"inputs": ["X"]})
    result = derive(Artifact(model, facts), DeriveConfig(inputs=("X",)))
    session = Session(result.model)
    values = dict(zip(session.outputs, session.run(feeds), strict=True))
    for name, gradient in {**result.facts.gradients, **result.facts.input_gradients}.items():
        wanted = central_differences(result.model, "loss", feeds, name)
        np.testing.assert_allclose(values[gradient], wanted, rtol=1e-6, atol=1e-8)


PENALTIES = {
    "an l2 strength": ({"coef": 0.5}, {"coef": (0, 0.5)}),
    "an integer": ({"coef": 2}, {"coef": (0, 2)}),
    "both": ({"coef": {"l1": 0.1, "l2": 3}}, {"coef": (0.1, 3)}),
    "two tensors": ({"coef": {"l1": 1}, "b": 0.25}, {"coef": (1, 0), "b": (0, 0.25)}),
    "a glob": ({"*": {"l1": 2, "l2": None}}, {"coef": (2, 0), "b": (2, 0)}),
    "an input": ({"X": {"l1": 1, "l2": 1}}, {"X": (1, 1)}),
}


@pytest.mark.parametrize("score", ["squared_error", "log"])
@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_adds_its_norms_once_a_batch(name, score):
    penalty, strengths = PENALTIES[name]
    x, label, _ = rows(score)
    values = {"coef": COEF, "b": np.array([1.0, 2.0]), "X": x}
    if score == "log" and name in ("two tensors", "a glob"):
        strengths = {k: v for k, v in strengths.items() if k != "b"}
        penalty = {k: v for k, v in penalty.items() if k != "b"}
    model = add_loss_output(parsed(BINARY if score == "log" else LINEAR, "float64"), score, penalty=penalty)
    extra = sum(l1 * np.abs(values[k]).sum() + l2 * (values[k] ** 2).sum() for k, (l1, l2) in strengths.items())
    loss, _ = run(model, {"X": x, "label": label})
    assert loss[0, 0] == pytest.approx(expected(score, x, label) + extra, rel=1e-12)


def test_an_unknown_penalised_tensor_is_refused_with_the_nearest():
    with pytest.raises(PenaltyError, match="Did you mean 'coef'"):
        add_loss_output(parsed(LINEAR), penalty={"coeff": 0.1})


MULTI = """g (float[batch,3] X) => (int64[batch] label, float[batch,2] P)
 <float[3,2] coef = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}>
 { a = MatMul(X, coef) P = Softmax(a) label = ArgMax<axis=1, keepdims=0>(P) }"""


@pytest.mark.parametrize("index", ["P", 1, -1])
def test_the_output_to_score_is_chosen_by_index_or_name(index):
    x, y, _ = rows("log", "float32")
    model = add_loss_output(parsed(MULTI), "log", output_index=index)
    assert [o.name for o in model.graph.output] == ["loss", "P"]
    assert run(model, {"X": x, "label": y})[0][0, 0] == pytest.approx(expected("log", x, y), rel=1e-5)


# What the model calls `label` → the names of the inputs and outputs of its loss
NAMED = {
    "an inner value": (LINEAR.replace("a =", "label =").replace("(a,", "(label,"), ["X", "label"], ["loss", "Y"]),
    "an inner loss": (LINEAR.replace("a =", "loss =").replace("(a,", "(loss,"), ["X", "label"], ["loss", "Y"]),
    "an input": (LINEAR.replace("X", "label"), ["label", "label_1"], ["loss", "Y"]),
    "an initializer": (LINEAR.replace("coef", "label"), ["X", "label_1"], ["loss", "Y"]),
    "the output": (LINEAR.replace("Y", "label"), ["X", "label_1"], ["loss", "label"]),
    "the output loss": (LINEAR.replace("Y", "loss"), ["X", "label"], ["loss_1", "loss"]),
}


@pytest.mark.parametrize("name", NAMED)
def test_new_names_collide_with_nothing(name):
    text, inputs, outputs = NAMED[name]
    x, label, _ = rows("l2", "float32")
    model = add_loss_output(parsed(text))
    onnx.checker.check_model(model, full_check=True)
    assert [i.name for i in model.graph.input] == inputs
    assert [o.name for o in model.graph.output] == outputs
    assert run(model, dict(zip(inputs, [x, label], strict=True)))[0] == pytest.approx(
        expected("l2", x, label), rel=1e-5
    )


def test_the_callers_names_are_used():
    model = add_loss_output(parsed(LINEAR), "l1", "cost", "truth", "importance")
    assert [i.name for i in model.graph.input] == ["X", "truth", "importance"]
    assert [o.name for o in model.graph.output] == ["cost", "Y"]


def test_metadata_doc_strings_and_named_dimensions_survive_and_the_callers_model_is_untouched():
    onx = parsed(LINEAR)
    onx.doc_string, onx.graph.doc_string, onx.producer_name, onx.domain = "of the model", "of the graph", "me", "here"
    onx.graph.node[0].doc_string, onx.graph.input[0].doc_string = "of the node", "of the input"
    onx.metadata_props.add(key="author", value="someone")
    before = onx.SerializeToString(deterministic=True)
    model = add_loss_output(onx, penalty={"coef": 0.1})
    assert onx.SerializeToString(deterministic=True) == before
    assert (model.doc_string, model.graph.doc_string, model.producer_name) == ("of the model", "of the graph", "me")
    assert (model.domain, model.ir_version) == ("here", onx.ir_version)
    assert (model.graph.node[-1].op_type, model.opset_import[0].version) == ("Reshape", 18)
    assert "of the node" in [n.doc_string for n in model.graph.node]
    assert model.graph.input[0].doc_string == "of the input"
    assert {p.key: p.value for p in model.metadata_props}["author"] == "someone"
    assert [i.type.tensor_type.shape.dim[0].dim_param for i in model.graph.input] == ["batch", "batch"]
    assert model.graph.output[1].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_the_result_explains_itself():
    known = read_metadata(add_loss_output(parsed(LINEAR), weight_name="weight"))
    assert (known["loss"], known["label"], known["sample_weight"], known["reduction"]) == (
        "loss",
        "label",
        "weight",
        "sum",
    )
    assert known["parameters"] == ["coef", "b"]


def test_an_output_without_a_shape_is_taken_to_be_what_the_loss_reads():
    onx = parsed("g (float[N,2] X) => (float[N,2] Y) { Y = Identity(X) }", "float64")
    for value in (onx.graph.input[0], onx.graph.output[0]):
        del value.type.tensor_type.shape.dim[:]
        value.type.tensor_type.shape.dim.add()
        value.type.tensor_type.shape.dim.add()
    p = np.array([0, 0.3, 1, 1])
    x, y = np.stack([1 - p, p], axis=1), np.array([[0], [1], [1], [0]])
    [loss] = ReferenceEvaluator(add_loss_output(onx, "log")).run(["loss"], {"X": x, "label": y})
    q = np.clip(p, 1e-6, 1 - 1e-6)
    assert loss[0, 0] == pytest.approx(-np.log(np.where(y.ravel() == 1, q, 1 - q)).mean(), rel=1e-9)


REFUSED = {
    "an unknown score": (LINEAR, {"score_name": "l3"}, r"Did you mean 'l2'"),
    "an unknown keyword": (LINEAR, {"score_name": "elastic", "l1_weigth": 1}, r"Did you mean 'l1_weight'"),
    "a keyword of another score": (LINEAR, {"eps": 0.1}, r"L2 has no setting 'eps'"),
    "one probability column": (
        "g (float[N,1] X) => (float[N,1] p) { p = Sigmoid(X) }",
        {"score_name": "log"},
        r"two columns(.|\n)*Concat",
    ),
    "several outputs": (MULTI, {}, "Give output_index"),
    "an unknown output": (MULTI, {"output_index": "Q"}, "Valid: P, label"),
    "an output out of range": (MULTI, {"output_index": 2}, "output of the model"),
    "an integer output": (MULTI, {"output_index": "label"}, "with output_index"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_scored_is_refused_with_the_way_out(name):
    text, arguments, message = REFUSED[name]
    with pytest.raises((LossError, ConfigError), match=message):
        add_loss_output(parsed(text), **arguments)


def test_a_model_of_an_old_opset_gets_the_loss_of_a_newer_one():
    old, new = (add_loss_output(parsed(LINEAR, opset=opset)) for opset in (11, 18))
    assert [(entry.domain, entry.version) for entry in old.opset_import] == [("", 18)]
    assert old.graph.node == new.graph.node


def test_a_setting_out_of_its_range_is_refused():
    with pytest.raises(ConfigError, match="eps"):
        add_loss_output(parsed(BINARY), "log", eps=0.7)


@pytest.mark.parametrize("wrong", [2, -1, -2, 7])
def test_a_label_that_is_no_class_index_is_refused_when_the_model_runs(wrong):
    x, label, _ = rows("log", "float32")
    label[2] = wrong
    with pytest.raises(ModelError, match="every label must be 0 or 1"):
        run(add_loss_output(parsed(BINARY), "log"), {"X": x, "label": label})


@pytest.mark.parametrize(("l1", "l2"), [(0.5, None), (None, 0.25), (0.5, 0.25), (2, 0)])
def test_penalty_nodes_compute_the_norms(l1, l2):
    taken = {"coef", "penalty_coef/Abs", "penalty_coef/Mul"}
    before = set(taken)
    initializers, nodes = penalty_loss_onnx("coef", np.float64, l1, l2, taken)
    made = {name for node in nodes for name in node.output} | {t.name for t in initializers}
    assert not made & before
    assert made <= taken
    assert sorted(float(onnx.numpy_helper.to_array(t)) for t in initializers) == sorted(s for s in (l1, l2) if s)
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("coef", onnx.TensorProto.DOUBLE, [3, 2])],
        [onnx.helper.make_tensor_value_info(nodes[-1].output[0], onnx.TensorProto.DOUBLE, [])],
        initializers,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    [got] = run(model, {"coef": COEF})
    assert got == pytest.approx((l1 or 0) * np.abs(COEF).sum() + (l2 or 0) * (COEF**2).sum(), rel=1e-12)


@pytest.mark.parametrize("strengths", [(None, None), (0, None), (0, 0)])
def test_a_penalty_without_a_strength_is_refused(strengths):
    with pytest.raises(PenaltyError, match="needs a strength"):
        penalty_loss_onnx("coef", np.float32, *strengths)


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_an_unreduced_loss_is_every_rows_own_in_their_order(score, weighted, penalised):
    x, label, weight = rows(score)
    model = add_loss_output(
        parsed(BINARY if score == "log" else LINEAR, "float64"),
        score,
        weight_name="weight" if weighted else None,
        penalty={"coef": 1} if penalised else None,
    )
    scores = unreduced_onnx_loss(model, "losses")
    assert [o.name for o in scores.graph.output] == ["losses"]
    assert not read_metadata(scores)
    [got] = run(scores, {"X": x, "label": label, **({"weight": weight} if weighted else {})})
    wanted = per_row(score, x, label) * (weight if weighted else 1)
    np.testing.assert_allclose(got, wanted.reshape(-1, 1), rtol=1e-12)


def test_a_loss_written_by_hand_can_be_unreduced():
    text = """g (float[N,2] X) => (float[1,1] s) { a = ReduceSum<keepdims=1>(X, axes) m = ReduceMean<axes=[0]>(a)
     n = Neg(m) s = Reshape(n, one) }"""
    text = text.replace("=> (float[1,1] s)", "=> (float[1,1] s) <int64[1] axes = {1}, int64[2] one = {1, 1}>")
    [got] = run(unreduced_onnx_loss(parsed(text, opset=13)), {"X": np.array([[1, 2], [3, 4]], np.float32)})
    assert got.tolist() == [[-3], [-7]]


def test_a_loss_that_is_no_sum_over_rows_is_refused():
    text = "g (float[N,2] X) => (float s) { a = ReduceSum<keepdims=0>(X) s = Sqrt(a) }"
    with pytest.raises(LossError, match=r"Sqrt(.|\n)*add_loss_output"):
        unreduced_onnx_loss(parsed(text))


@pytest.mark.parametrize("options", [None, {"zipmap": False}])
def test_probabilities_of_scikit_learn_are_scored_zipped_or_not(options):
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=20) > 0).astype(np.int64)
    estimator = LogisticRegression().fit(x, y)
    onx = to_onnx(estimator, x, target_opset=18, options=options, black_op={"LinearClassifier"})
    model = add_loss_output(onx, "log", output_index=1)
    [loss] = Session(model).run({"X": x, "label": y.reshape(-1, 1)}, ["loss"])
    assert loss[0, 0] == pytest.approx(log_loss(y, estimator.predict_proba(x)), rel=1e-5)


@pytest.mark.parametrize("score", ["squared_error", "l1"])
def test_the_documented_linear_regression_has_the_loss_of_scikit_learn(score):
    from skl2onnx import to_onnx
    from sklearn.datasets import make_regression
    from sklearn.linear_model import LinearRegression

    x, y = make_regression(100, n_features=10, bias=2, random_state=0)
    x, y = x.astype(np.float32), y.astype(np.float32)
    estimator = LinearRegression().fit(x[:75], y[:75] + x[:75, 0] ** 2)
    estimator.coef_ = estimator.coef_.reshape((1, -1))
    onx = to_onnx(estimator, x, target_opset=18, black_op={"LinearRegressor"})
    loss, _ = Session(add_loss_output(onx, score)).run({"X": x[75:], "label": y[75:].reshape(-1, 1)})
    d = np.abs(estimator.predict(x[75:]).ravel().astype(np.float64) - y[75:])
    assert loss[0, 0] == pytest.approx((d if score == "l1" else d**2).sum(), rel=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("score", ["squared_error", "log"])
def test_the_stages_train_a_loss_model_as_it_is(score, engine, request):
    if engine == "ort":
        request.getfixturevalue("training_build")
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(32, 3)).astype(np.float32), rng.uniform(0.5, 2, 32).astype(np.float32)
    z = x @ COEF.astype(np.float32) * 2
    y = np.argmax(z, axis=1) if score == "log" else z
    model = add_loss_output(parsed(BINARY if score == "log" else LINEAR), score, weight_name="weight")
    known = read_metadata(model)
    artifact = derive(Artifact(model, read_facts(known)), DeriveConfig(ENGINES[engine]()))
    data = split(Rows({"X": x}, y, weight), SplitConfig())
    trained = train(artifact, TrainConfig(OPTIMIZERS["sgd"](lr=0.002 if score != "log" else 1.0), epochs=60), data=data)
    losses = trained.tensors["losses/train"]
    assert losses[-1] < losses[0] / 3
    [probability] = Session(trained.model).run({"X": x})
    if score == "log":
        assert (np.argmax(probability, axis=1) == y).mean() > 0.9


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("score", ["l2", "l1", "elastic"])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_outputs_of_any_rank_are_scored_by_all_of_their_elements(shape, score, weighted):
    dims = ",".join(["batch", *map(str, shape)])
    model = parsed(f"g (double[{dims}] X) => (double[{dims}] Y) {{ Y = Neg(X) }}", "float64")
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(2, N, *shape))
    weight = rng.uniform(0.5, 2, N) if weighted else np.ones(N)
    scored = add_loss_output(model, score, weight_name="weight" if weighted else None)
    assert [o.name for o in scored.graph.output] == ["loss", "Y"]
    assert len(scored.graph.input[1].type.tensor_type.shape.dim) == 1 + len(shape)
    d = (-x - label).reshape(N, -1)
    terms = {"l2": d**2, "l1": abs(d), "elastic": 0.5 * abs(d) + 0.5 * d**2}[score].sum(axis=1)
    feeds = {"X": x, "label": label, **({"weight": weight} if weighted else {})}
    loss, y = run(scored, feeds)
    np.testing.assert_allclose(loss, [[(weight * terms).sum()]])
    np.testing.assert_array_equal(y, -x)
    np.testing.assert_allclose(run(unreduced_onnx_loss(scored), feeds)[0].ravel(), weight * terms)


def test_a_model_without_shapes_reads_and_predicts_a_table():
    model = parsed("g (double[batch,2] X) => (double[batch,2] Y) { Y = Identity(X) }", "float64")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    p = np.array([[0.8, 0.2], [0.4, 0.6]])
    loss = run(add_loss_output(model, "log"), {"X": p, "label": np.array([[0], [1]])})[0]
    np.testing.assert_allclose(loss, [[-np.log([0.8, 0.6]).mean()]])
    assert run(add_loss_output(model), {"X": p, "label": 0 * p})[0] == pytest.approx((p**2).sum())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("score", ["l1", "l2", "elastic", "log"])
def test_losses_as_nodes_are_those_of_add_loss_output(score, weighted):
    x, label, weight = rows(score, "float32")
    model, names = parsed(BINARY if score == "log" else LINEAR), {"a", "loss/Sub"}
    expected = add_loss_output(model, score, weight_name="weight" if weighted else None)
    [output] = model.graph.output
    given = (output.type.tensor_type.elem_type, [None, 1 if score == "log" else 2], output.name)
    function = getattr(compat, f"_loss_{score}")
    made = function(names, *given, "label", "weight" if weighted else None, "loss")
    for field, added in zip(("initializer", "input", "node"), made, strict=False):
        getattr(model.graph, field).extend(added)
    model.graph.output.insert(0, made[3][0])
    onnx.checker.check_model(model, full_check=True)
    feeds = {"X": x, "label": label, **({"weight": weight} if weighted else {})}
    np.testing.assert_allclose(run(model, feeds)[0], run(expected, feeds)[0], rtol=1e-6)
    assert {node.output[0] for node in made[2]} - {"loss"} < names


def test_errors_of_penalties_speak_of_the_argument():
    for penalty in ({"zz": 1.0}, {"coef": {"l3": 1.0}}):
        with pytest.raises(ValueError, match="penalty") as error:
            add_loss_output(parsed(LINEAR), penalty=penalty)
        assert "terms" not in str(error.value)
