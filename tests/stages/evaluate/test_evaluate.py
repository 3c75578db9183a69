from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn import metrics
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ortpipe.app.run import screen
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Data, Rows
from ortpipe.data.split import split
from ortpipe.errors import EvaluateError
from ortpipe.graph.core import apart, protos
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train


def trained(forward, loss, data, lr=0.01, weighted=False, derive_config=None, **config):
    source = derive(add_loss(forward, AddLossConfig(LOSSES[loss](), sample_weight=weighted)), derive_config)
    return train(source, TrainConfig(OPTIMIZERS["sgd"](lr), **{"epochs": 3, **config}), data=data)


@pytest.fixture(scope="module")
def line(diabetes):
    return LinearRegression().fit(diabetes.train.inputs["X"], diabetes.train.label)


@pytest.fixture(scope="module")
def flowers(iris):
    rows = iris.train
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(rows.inputs["X"], rows.label)


@pytest.fixture(scope="module")
def tumours(breast_cancer):
    rows = breast_cancer.train
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(rows.inputs["X"], rows.label)


def test_regression_metrics_of_the_source_are_the_estimators_own(line, diabetes):
    result = evaluate(trained(convert(line), "l2", diabetes), data=diabetes)
    truth, predicted = diabetes.test.label, line.predict(diabetes.test.inputs["X"])
    got = {name: row["source"] for name, row in result.facts.metrics.items()}
    assert got == pytest.approx(
        {
            "r2": metrics.r2_score(truth, predicted),
            "mean_squared_error": metrics.mean_squared_error(truth, predicted),
            "mean_absolute_error": metrics.mean_absolute_error(truth, predicted),
        },
        rel=1e-4,
    )


def test_the_trained_model_is_measured_on_validation_rows_too_as_scikit_learn_measures_it(tumours, breast_cancer):
    rows = breast_cancer.train
    weight = np.linspace(1, 3, 60)
    validation = Rows({"X": rows.inputs["X"][:60]}, rows.label[:60], sample_weight=weight)
    data = dataclasses.replace(breast_cancer, validation=validation)
    result = evaluate(trained(convert(tumours), "log", breast_cancer), data=data)
    features = StandardScaler().fit(rows.inputs["X"]).transform(validation.inputs["X"])
    parameter = {name: result.tensors[f"parameter/{name}"] for name in result.facts.parameters}
    coefficient, intercept = sorted(parameter.values(), key=np.size, reverse=True)[:2]
    probability = 1 / (1 + np.exp(-(features @ coefficient.reshape(-1) + intercept.reshape(()))))
    truth = validation.label == tumours.classes_[1]
    assert result.facts.lineage[-1]["validation"] == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(truth, probability > 0.5, sample_weight=weight),
            "accuracy_unweighted": metrics.accuracy_score(truth, probability > 0.5),
            "f1_macro": metrics.f1_score(truth, probability > 0.5, average="macro", sample_weight=weight),
            "f1_macro_unweighted": metrics.f1_score(truth, probability > 0.5, average="macro"),
            "balanced_accuracy": metrics.balanced_accuracy_score(truth, probability > 0.5, sample_weight=weight),
            "balanced_accuracy_unweighted": metrics.balanced_accuracy_score(truth, probability > 0.5),
            "log_loss": metrics.log_loss(truth, probability, sample_weight=weight),
            "log_loss_unweighted": metrics.log_loss(truth, probability),
            "roc_auc": metrics.roc_auc_score(truth, probability, sample_weight=weight),
            "roc_auc_unweighted": metrics.roc_auc_score(truth, probability),
            "average_precision": metrics.average_precision_score(truth, probability, sample_weight=weight),
            "average_precision_unweighted": metrics.average_precision_score(truth, probability),
        },
        rel=1e-4,
    )


def test_a_metric_without_a_value_on_validation_rows_is_left_out(tumours, breast_cancer):
    one_class = np.flatnonzero(breast_cancer.train.label == tumours.classes_[0])[:9]
    data = dataclasses.replace(breast_cancer, validation=breast_cancer.train.take(one_class))
    validation = evaluate(trained(convert(tumours), "log", data), data=data).facts.lineage[-1]["validation"]
    assert "accuracy" in validation
    assert "roc_auc" not in validation


def test_metrics_of_several_outputs_are_the_estimators_own(linnerud):
    estimator = LinearRegression().fit(linnerud.train.inputs["X"], linnerud.train.label)
    result = evaluate(trained(convert(estimator), "l2", linnerud), data=linnerud)
    predicted = estimator.predict(linnerud.test.inputs["X"])
    assert result.facts.metrics["r2"]["source"] == pytest.approx(
        metrics.r2_score(linnerud.test.label, predicted), rel=1e-4
    )
    assert result.tensors["evaluation/prediction"].shape == predicted.shape


@pytest.mark.parametrize("which", ["binary", "multiclass"])
def test_classification_metrics_of_the_source_are_the_estimators_own(which, request):
    estimator, data, loss = {
        "binary": ("tumours", "breast_cancer", "log"),
        "multiclass": ("flowers", "iris", "cross_entropy"),
    }[which]
    estimator, data = request.getfixturevalue(estimator), request.getfixturevalue(data)
    result = evaluate(trained(convert(estimator), loss, data), data=data)
    features, truth = data.test.inputs["X"], data.test.label
    predicted, probability = estimator.predict(features), estimator.predict_proba(features)
    expected = {
        "accuracy": metrics.accuracy_score(truth, predicted),
        "f1_macro": metrics.f1_score(truth, predicted, average="macro"),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, predicted),
        "log_loss": metrics.log_loss(truth, probability, labels=estimator.classes_),
    }
    if which == "binary":
        expected["average_precision"] = metrics.average_precision_score(
            truth == estimator.classes_[1], probability[:, 1]
        )
        expected["roc_auc"] = metrics.roc_auc_score(truth == estimator.classes_[1], probability[:, 1])
    got = {name: row["source"] for name, row in result.facts.metrics.items()}
    assert got == pytest.approx(expected, rel=1e-4)
    index = {c: i for i, c in enumerate(estimator.classes_)}
    np.testing.assert_array_equal(result.tensors["evaluation/label"], [index[c] for c in truth])


def test_multilabel_metrics_of_the_source_are_the_estimators_own():
    bunch = load_digits()
    labels = np.stack([bunch.target % 2, bunch.target > 4], axis=1).astype(int)
    data = split(Rows({"X": bunch.data[:200] / 16}, labels[:200]), SplitConfig(test=0.4))
    estimator = MLPClassifier([6], solver="lbfgs", max_iter=40, tol=1.0, random_state=0)
    estimator.fit(data.train.inputs["X"], data.train.label)
    result = evaluate(trained(convert(estimator), "log", data), data=data)
    predicted = estimator.predict(data.test.inputs["X"])
    assert {name: row["source"] for name, row in result.facts.metrics.items()} == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(data.test.label, predicted),
            "f1_macro": metrics.f1_score(data.test.label, predicted, average="macro"),
        }
    )
    np.testing.assert_array_equal(result.tensors["evaluation/label"], data.test.label)


def test_before_trained_and_source_are_three_states_of_the_weights(line, diabetes):
    artifact = trained(convert(line), "l2", diabetes, init="random")
    table = evaluate(artifact, data=diabetes).facts.metrics["mean_squared_error"]
    features, truth = diabetes.test.inputs["X"], diabetes.test.label
    for column, prefix in (("before", "initial"), ("trained", "parameter"), ("source", "source")):
        weight, bias = (artifact.tensors[f"{prefix}/{name}"] for name in ("coefficient", "intercept"))
        expected = metrics.mean_squared_error(truth, features @ weight + bias)
        assert table[column] == pytest.approx(expected, rel=1e-5)
    assert len({round(v, 6) for v in table.values()}) == 4  # with the baseline


def test_frozen_weights_are_the_models_own_in_every_state(line, diabetes):
    frozen = DeriveConfig(frozen=("intercept",))
    artifact = trained(convert(line), "l2", diabetes, derive_config=frozen, init="random")
    table = evaluate(artifact, data=diabetes).facts.metrics["mean_squared_error"]
    bias = artifact.tensors["source/intercept"]
    for column, prefix in (("before", "initial"), ("trained", "parameter")):
        predicted = diabetes.test.inputs["X"] @ artifact.tensors[f"{prefix}/coefficient"] + bias
        assert table[column] == pytest.approx(metrics.mean_squared_error(diabetes.test.label, predicted), rel=1e-5)


def test_rows_are_weighted_where_they_have_weights(line, diabetes):
    def add(rows):
        return dataclasses.replace(rows, sample_weight=np.linspace(0.1, 3, len(rows)))

    data = Data(add(diabetes.train), None, add(diabetes.test))
    result = evaluate(trained(convert(line), "l1", data, weighted=True), data=data)
    predicted = line.predict(data.test.inputs["X"])
    weighted = metrics.mean_absolute_error(data.test.label, predicted, sample_weight=data.test.sample_weight)
    plain = metrics.mean_absolute_error(data.test.label, predicted)
    assert weighted != pytest.approx(plain, rel=1e-3)
    found = {name: row["source"] for name, row in result.facts.metrics.items()}
    assert found["mean_absolute_error"] == pytest.approx(weighted, rel=1e-4)
    assert found["mean_absolute_error_unweighted"] == pytest.approx(plain, rel=1e-4)
    assert found["r2_unweighted"] == pytest.approx(metrics.r2_score(data.test.label, predicted), rel=1e-4)
    [note] = result.facts.lineage[-1]["notes"]
    assert "_unweighted counts each row once" in note
    table = screen.table(result)
    assert "mean_absolute_error (weighted)" in table
    assert "mean_absolute_error (unweighted)" in table


def test_rows_without_weights_have_each_metric_once_and_no_note(line, diabetes):
    result = evaluate(trained(convert(line), "l1", diabetes), data=diabetes)
    assert list(result.facts.metrics) == ["r2", "mean_squared_error", "mean_absolute_error"]
    assert "notes" not in result.facts.lineage[-1]
    assert "weighted" not in screen.table(result)


def test_a_model_too_large_for_one_message_trains_and_is_measured_like_a_small_one(flowers, iris, monkeypatch):
    small = evaluate(trained(convert(flowers), "cross_entropy", iris), data=iris)
    monkeypatch.setattr(protos, "LARGE_MODEL", 10)
    for module in (protos, apart):
        monkeypatch.setattr(module, "LARGE_WEIGHT", 1)
    large = evaluate(trained(convert(flowers), "cross_entropy", iris), data=iris)
    assert large.digest() == small.digest()
    assert large.facts.metrics == small.facts.metrics


RAW = {
    "binary": ("y = Identity(z)", 1, "log"),
    "multiclass": ("y = Identity(z)", 3, "cross_entropy"),
    "multilabel": ("y = Identity(z)", 3, "log"),
}
ENDS = {
    "binary": "y = Sigmoid(z)",
    "multiclass": "y = Softmax(z)",
    "multilabel": "y = Sigmoid(z)",
}


def scores(from_text, task, end, width, raw):
    rng = np.random.default_rng(2)
    numbers = ", ".join(f"{v:.3f}" for v in rng.normal(size=4 * width))
    text = f"g (float[N,4] X) => (float[N,{width}] y) <float[4,{width}] w = {{{numbers}}}> {{ z = MatMul(X, w) {end} }}"
    classes = tuple(range(max(width, 2))) if task != "multilabel" else None
    return from_text(text, dtype="float64", task=task, logits="y" if raw else "z", classes=classes)


def data_of(task, width):
    rng = np.random.default_rng(3)
    label = rng.integers(0, 2, (60, width)) if task == "multilabel" else rng.integers(0, max(width, 2), 60)
    return split(Rows({"X": rng.normal(size=(60, 4))}, label), SplitConfig(test=0.5))


@pytest.mark.parametrize("task", RAW)
def test_raw_scores_and_probabilities_of_one_model_give_the_same_metrics(from_text, task):
    end, width, loss = RAW[task]
    data, tables = data_of(task, width), []
    for ending, raw in ((end, True), (ENDS[task], False)):
        artifact = trained(scores(from_text, task, ending, width, raw), loss, data)
        tables.append(evaluate(artifact, data=data).facts.metrics)
    assert tables[0].keys() == tables[1].keys()
    for name, row in tables[0].items():
        assert row == pytest.approx(tables[1][name], rel=1e-9)


def test_two_raw_scores_of_two_classes_are_a_softmax(from_text):
    data, tables = data_of("binary", 2), []
    for end, raw in (("y = Identity(z)", True), ("y = Softmax(z)", False)):
        artifact = trained(scores(from_text, "binary", end, 2, raw), "log", data)
        tables.append(evaluate(artifact, data=data).facts.metrics)
    for name, row in tables[0].items():
        assert row == pytest.approx(tables[1][name], rel=1e-9)


def test_chosen_metrics_are_the_only_ones(line, diabetes):
    result = evaluate(trained(convert(line), "l2", diabetes), EvaluateConfig(("r2",)), data=diabetes)
    assert set(result.facts.metrics) == {"r2"}


@pytest.mark.parametrize("name", ["accuracy", "log_loss", "roc_auc"])
def test_a_metric_that_does_not_fit_the_task_is_refused_with_those_that_do(line, diabetes, name):
    artifact = trained(convert(line), "l2", diabetes)
    with pytest.raises(EvaluateError) as error:
        evaluate(artifact, EvaluateConfig(("r2", name)), data=diabetes)
    assert f"{name} for a regression model" in str(error.value)
    assert "r2, mean_squared_error, mean_absolute_error" in str(error.value)


def test_no_test_rows_are_refused(line, diabetes):
    artifact = trained(convert(line), "l2", diabetes)
    with pytest.raises(EvaluateError, match=r"split.test"):
        evaluate(artifact, data=dataclasses.replace(diabetes, test=None))


def test_labels_of_another_width_are_refused(line, diabetes):
    artifact = trained(convert(line), "l2", diabetes)
    wide = dataclasses.replace(diabetes.test, label=np.stack([diabetes.test.label] * 2, axis=1))
    with pytest.raises(EvaluateError, match="width"):
        evaluate(artifact, data=dataclasses.replace(diabetes, test=wide))


def test_one_class_in_the_test_rows_has_no_area_under_the_curve(tumours, breast_cancer):
    artifact = trained(convert(tumours), "log", breast_cancer)
    rows = breast_cancer.test.take(np.flatnonzero(breast_cancer.test.label == "benign"))
    data = dataclasses.replace(breast_cancer, test=rows)
    assert {"accuracy", "f1_macro", "log_loss"} <= set(found := evaluate(artifact, data=data).facts.metrics)
    assert "roc_auc" not in found
    with pytest.raises(EvaluateError, match="roc_auc"):
        evaluate(artifact, EvaluateConfig(("roc_auc",)), data=data)


def test_its_input_and_model_stay_as_they_were(line, diabetes):
    artifact = trained(convert(line), "l2", diabetes)
    before = artifact.digest()
    result = evaluate(artifact, data=diabetes)
    assert artifact.digest() == before
    assert result.model.graph == artifact.model.graph
    assert {k: v.tolist() for k, v in result.tensors.items() if k in artifact.tensors} == {
        k: v.tolist() for k, v in artifact.tensors.items()
    }


def test_the_same_rows_give_the_same_bytes(flowers, iris):
    artifact = trained(convert(flowers), "cross_entropy", iris)
    assert evaluate(artifact, data=iris).digest() == evaluate(artifact, data=iris).digest()
