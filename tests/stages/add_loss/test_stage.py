from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import LossError
from ortpipe.facts_json import read_metadata
from ortpipe.metrics.predictions import predicted
from ortpipe.settings import Config
from ortpipe.stages.add_loss.config import VERSION, AddLossConfig
from ortpipe.stages.add_loss.early import check
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert

LINEAR = "g (float[N,2] X) => (float[N,1] y) <float[2,1] w = {0.5, -2}, float[1] b = {0.25}> { y = Gemm(X, w, b) }"
NAMED = """g (float[N,2] loss) => (float[N,1] label, float[N,1] sample_weight)
 <float[2,1] w = {0.5, -2}, float[2,1] label_1 = {1, 1}>
 { label = MatMul(loss, w) sample_weight = MatMul(loss, label_1) }"""
X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]], np.float32)
Y = np.array([[1.0], [2.0], [-1.0]], np.float32)


@pytest.fixture
def linear(from_text):
    return from_text(LINEAR)


def test_the_loss_comes_first_and_the_forward_outputs_stay(linear, run):
    result = add_loss(linear, AddLossConfig(LOSSES["l2"]()))
    assert [o.name for o in result.model.graph.output] == ["loss", "y"]
    values = run(result.model, {"X": X, "label": Y})
    np.testing.assert_array_equal(values["y"], run(linear.model, {"X": X})["y"])


def test_its_facts_name_what_it_added(linear):
    facts = add_loss(linear, AddLossConfig(LOSSES["l1"](), "sum", sample_weight=True)).facts
    assert (facts.loss, facts.label, facts.sample_weight, facts.reduction) == ("loss", "label", "sample_weight", "sum")
    assert facts.outputs == linear.facts.outputs
    assert facts.parameters == linear.facts.parameters
    assert facts.lineage[-1] == {"stage": "add_loss", "version": VERSION, "input": linear.digest()}


def test_the_bare_model_explains_itself(linear):
    model = add_loss(linear, AddLossConfig(LOSSES["l1"]())).model
    assert read_metadata(model)["loss"] == "loss"


def test_without_sample_weight_there_is_no_weight_input(linear):
    result = add_loss(linear, AddLossConfig(LOSSES["l2"]()))
    assert [i.name for i in result.model.graph.input] == ["X", "label"]
    assert result.facts.sample_weight is None


def test_its_input_stays_as_it_was(linear):
    before, content = linear.digest(), linear.model.SerializeToString(deterministic=True)
    result = add_loss(linear, AddLossConfig(LOSSES["l2"](), sample_weight=True))
    assert result is not linear
    assert linear.digest() == before
    assert linear.model.SerializeToString(deterministic=True) == content


def test_the_same_input_gives_the_same_bytes(linear, from_text):
    config = AddLossConfig(LOSSES["elastic"]())
    assert add_loss(linear, config).digest() == add_loss(from_text(LINEAR), config).digest()


def test_the_result_passes_the_full_check(linear):
    onnx.checker.check_model(add_loss(linear, AddLossConfig(LOSSES["l2"]())).model, full_check=True)


def test_new_names_make_way_for_the_models_own(from_text, run):
    forward = from_text(NAMED, prediction="label")
    result = add_loss(forward, AddLossConfig(LOSSES["l2"](), sample_weight=True))
    facts = result.facts
    assert len({facts.loss, facts.label, facts.sample_weight, "loss", "label", "label_1", "sample_weight"}) == 7
    weight = np.array([[1.0], [2.0], [0.0]], np.float32)
    values = run(result.model, {"loss": X, facts.label: Y, facts.sample_weight: weight})
    prediction = X @ np.array([[0.5], [-2]])
    assert values[facts.loss] == pytest.approx(((prediction - Y) ** 2 * weight).sum() / 3)
    np.testing.assert_allclose(values["label"], prediction)
    np.testing.assert_allclose(values["sample_weight"], X @ np.ones((2, 1)))


def test_adding_a_second_loss_takes_other_names(linear):
    once = add_loss(linear, AddLossConfig(LOSSES["l2"]()))
    twice = add_loss(once, AddLossConfig(LOSSES["l1"]()))
    assert (twice.facts.loss, twice.facts.label) == ("loss_1", "label_1")


VALUES = "auto or contrastive or cosine or cox or discrete_hazard or elastic or epsilon_insensitive or gamma or huber "
VALUES += "or info_nce or l1 or l2 or onnx or poisson or quantile or squared_epsilon_insensitive or tweedie"
TWO = "auto or focal or hinge or log or modified_huber or onnx or perceptron or squared_hinge or squared_margin"


@pytest.mark.parametrize(
    ("task", "loss", "fitting"),
    [
        ("regression", "log", VALUES),
        ("regression", "cross_entropy", VALUES),
        ("binary", "l2", TWO),
        ("binary", "cross_entropy", TWO),
        ("multiclass", "log", "auto or cross_entropy or ctc or focal or hinge or one_vs_rest or onnx"),
        ("multilabel", "cross_entropy", TWO),
    ],
)
def test_a_loss_that_does_not_fit_the_task_is_refused_with_those_that_do(from_text, task, loss, fitting):
    with pytest.raises(LossError) as error:
        add_loss(from_text(LINEAR, task=task, classes=(0, 1)), AddLossConfig(LOSSES[loss]()))
    assert f"a {task} model" in str(error.value)
    assert f"add_loss={fitting};" in str(error.value)
    assert f"convert's source.task={LOSSES[loss].tasks[0]}" in str(error.value)


def test_a_prediction_without_rows_is_refused(from_text):
    text = "g (float[N,2] X) => (float y) <float[1] w = {1}> { s = Mul(X, w) y = ReduceSum <keepdims = 0> (s) }"
    with pytest.raises(LossError, match="one entry per row"):
        add_loss(from_text(text), AddLossConfig(LOSSES["l2"]()))


def test_two_logits_of_two_classes_give_the_loss_of_their_softmax(from_text, run):
    text = "g (float[N,2] X) => (float[N,2] y) <float[2] w = {0, 0}> { z = Add(X, w) y = Softmax(z) }"
    label = np.array([[0], [1], [1]])
    p = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
    for logits in ("z", None):
        forward = from_text(text, task="binary", logits=logits, classes=(0, 1))
        result = add_loss(forward, AddLossConfig(LOSSES["log"]()))
        got = run(result.model, {"X": X, result.facts.label: label})[result.facts.loss]
        assert got == pytest.approx(-np.log(np.take_along_axis(p, label, axis=1)).mean(), rel=1e-5)


def test_its_names_are_those_of_the_config(linear):
    config = AddLossConfig(LOSSES["l2"](), sample_weight=True, loss_name="cost", label_name="y", weight_name="w")
    facts = add_loss(linear, config).facts
    assert (facts.loss, facts.label, facts.sample_weight) == ("cost", "y_1", "w_1")  # the model has a y and a w


def test_its_inputs_have_the_rows_of_the_prediction(from_text):
    text = "g (float[batch,2] X) => (float[batch,1] y) <float[2,1] w = {1, 2}> { y = MatMul(X, w) }"
    model = add_loss(from_text(text), AddLossConfig(LOSSES["l2"](), sample_weight=True)).model
    rows = [i.type.tensor_type.shape.dim[0].dim_param for i in model.graph.input]
    assert rows == ["batch"] * 3


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_it_needs_no_known_width(from_text, run, reduction):
    forward = from_text("g (float[N,M] X) => (float[N,M] y) <float[1] w = {1}> { y = Mul(X, w) }")
    model = add_loss(forward, AddLossConfig(LOSSES["l2"](), reduction)).model
    assert run(model, {"X": X, "label": X + 2})["loss"] == 4 * X.size / (1 if reduction == "sum" else len(X))


def test_two_columns_that_do_not_add_up_to_one_are_divided_by_their_sum(from_text, run):
    text = "g (float[N,2] X) => (float[N,2] y) <float[2] w = {0, 0}> { y = Add(X, w) }"
    p, label = np.array([[0.2, 0.6], [0.5, 0.1]], np.float32), np.array([[1], [0]])
    forward = from_text(text, task="binary", classes=(0, 1))
    got = run(add_loss(forward, AddLossConfig(LOSSES["log"]())).model, {"X": p, "label": label})["loss"]
    assert got == pytest.approx(-(np.log(0.6 / 0.8) + np.log(0.5 / 0.6)) / 2, rel=1e-5)


@pytest.mark.parametrize("opset", [17, 18])
def test_a_loss_over_steps_is_their_mean_at_every_opset(run, opset):
    text = "g (float[N,3,2] x) => (float[N,3,2] y) <float[2,2] w = {1, 0, 0, 1}> { y = MatMul(x, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n' + text)
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    loss = add_loss(convert(model), AddLossConfig(LOSSES["l2"]()))
    given = run(loss.model, {"x": x, "label": np.zeros_like(x)}, ["loss"])
    assert given["loss"] == pytest.approx((x**2).sum(-1).mean())


def labelled(labels, test=None):
    rows = [None if y is None else Rows({"X": np.zeros((len(y), 2))}, np.array(y)) for y in (labels, test)]
    return Data(rows[0], None, rows[1])


@pytest.mark.parametrize(
    ("loss", "data", "message"),
    [
        (
            "poisson",
            labelled([0, 3, -1, -2]),
            r"not negative.\n  got: -1 in row 2, -2 in row 3, of the 4 rows to train",
        ),
        ("gamma", labelled([1.5, 2.0], [0.0, 1.0]), r"positive.\n  got: 0.0 in row 0, of the 2 rows to test,"),
        ("tweedie", labelled([-1.0] * 5), r"in row 2, and 2 more, of the 5 rows"),
    ],
)
def test_labels_that_a_loss_is_not_defined_for_are_refused_by_row(linear, loss, data, message):
    with pytest.raises(LossError, match=message):
        check(linear.facts, AddLossConfig(LOSSES[loss]()), data=data)
    with pytest.raises(LossError):
        add_loss(linear, AddLossConfig(LOSSES[loss]()), data=data)


def test_labels_within_bounds_and_of_losses_without_any_are_taken(linear):
    check(linear.facts, AddLossConfig(LOSSES["poisson"]()), data=labelled([0, 3.5]))
    check(linear.facts, AddLossConfig(LOSSES["tweedie"](0.0)), data=labelled([-1.0]))
    check(linear.facts, AddLossConfig(LOSSES["l2"]()), data=labelled([-1.0]))
    check(linear.facts, AddLossConfig(LOSSES["poisson"](), padding=-100), data=labelled([-100, 2]))


@pytest.mark.parametrize("loss", ["hinge", "focal", "squared_hinge", "modified_huber"])
def test_several_labels_are_0_or_1_for_losses_of_margins(from_text, loss):
    forward = from_text(LINEAR, task="multilabel", logits="y")
    check(forward.facts, AddLossConfig(LOSSES[loss]()), data=labelled([[0, 1], [1, 1]]))
    with pytest.raises(LossError, match=r"0 or 1.\n  got: \[0, 2\] in row 1"):
        check(forward.facts, AddLossConfig(LOSSES[loss]()), data=labelled([[0, 1], [0, 2]]))


def test_with_a_log_link_metrics_are_of_the_mean(linear):
    facts = add_loss(linear, AddLossConfig(LOSSES["poisson"]())).facts
    assert facts.link == "log"
    assert "log" in facts.lineage[-1]["notes"][0]
    found, _ = predicted(facts, np.log([[2.0], [3.0]]))
    np.testing.assert_allclose(found, [[2.0], [3.0]])
    assert add_loss(linear, AddLossConfig(LOSSES["l2"]())).facts.link is None


@dataclass(frozen=True)
class SoftMaximum(Config):
    """The loss log(1 + exp(max(label − prediction)))."""

    def __call__(self, op, label, scores):
        return op.Softplus(op.ReduceMax(label - scores.prediction, [-1], keepdims=1))


def test_an_own_loss_uses_operators_of_the_newest_form_whatever_the_files_opset_and_type(run):
    """The oracle is NumPy: opset 16 has ReduceMax's axes as an attribute, and float64 has no kernel of Softplus."""
    text = '<ir_version: 8, opset_import: ["": 16]>' + LINEAR.replace("float[", "double[")
    artifact = convert(onnx.parser.parse_model(text), data=Data(Rows({"X": X.astype(float)}, Y.astype(float))))
    result = add_loss(artifact, AddLossConfig(SoftMaximum()))
    expected = np.log1p(np.exp(Y - (X @ [[0.5], [-2]] + 0.25))).mean()
    values = run(result.model, {"X": X.astype(float), "label": Y.astype(float)})
    assert values["loss"] == pytest.approx(expected, rel=1e-12)
