"""Calibration and the threshold of decisions agree with scikit-learn 1.9, on the same probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import TunedThresholdClassifierCV

from ortpipe import ConvertConfig, Data, EvaluateConfig, Rows, convert, evaluate
from ortpipe.errors import ConfigError, ConvertError, EvaluateError
from ortpipe.metrics.columns import as_columns
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.evaluate.figures import panels
from ortpipe.stages.evaluate.threshold import candidates

STEPS = ["fit", "validation", "test"]


def rows_of(classes: int, weights: list[float] | None = None, seed: int = 0) -> dict[str, Rows]:
    """Return rows to fit, to validate and to test on, with labels that are words, and weights of rows."""
    x, y = make_classification(
        480, 6, n_informative=4, n_classes=classes, weights=weights, flip_y=0.2, random_state=seed
    )
    words, weight = np.array(["no", "yes", "perhaps"])[y], np.random.default_rng(1).uniform(0.5, 2, 480)
    x = (x * 3).astype(np.float32)
    cuts = dict(zip(STEPS, (slice(0, 40), slice(40, 260), slice(260, 480)), strict=True))
    return {name: Rows({"X": x[cut]}, words[cut], sample_weight=weight[cut]) for name, cut in cuts.items()}


def data_of(rows: dict[str, Rows]) -> Data:
    return Data(rows["fit"], rows["validation"], rows["test"])


def fitted(rows: dict[str, Rows]) -> LogisticRegression:
    """Return an estimator that is too sure of itself: it has few rows and no penalty."""
    return LogisticRegression(C=1e4, max_iter=500).fit(rows["fit"].inputs["X"], rows["fit"].label)


@pytest.fixture(scope="module")
def two() -> tuple[dict[str, Rows], LogisticRegression]:
    rows = rows_of(2, [0.85])
    return rows, fitted(rows)


def answer(artifact, rows: Rows) -> dict[str, np.ndarray]:
    session = Session(artifact.model)
    return dict(zip(session.outputs, session.run({"X": rows.inputs["X"]}), strict=True))


@pytest.mark.filterwarnings("ignore:Since FrozenEstimator")  # the weights of the calibration are enough here
@pytest.mark.parametrize("classes", [2, 3])
def test_the_temperature_is_scikit_learns(classes: int) -> None:
    rows = rows_of(classes)
    estimator, validation = fitted(rows), rows["validation"]
    result = evaluate(convert(estimator), EvaluateConfig(calibration="temperature"), data=data_of(rows))
    oracle = CalibratedClassifierCV(FrozenEstimator(estimator), method="temperature")
    oracle.fit(validation.inputs["X"], validation.label, sample_weight=validation.sample_weight)
    expected = oracle.predict_proba(rows["test"].inputs["X"])
    assert abs(expected - estimator.predict_proba(rows["test"].inputs["X"])).max() > 0.02
    np.testing.assert_allclose(answer(result, rows["test"])["probabilities"], expected, atol=2e-4)


def test_isotonic_calibration_is_scikit_learns(two) -> None:
    rows, estimator = two
    result = evaluate(convert(estimator), EvaluateConfig(calibration="isotonic"), data=data_of(rows))
    p = {name: estimator.predict_proba(rows[name].inputs["X"])[:, 1] for name in STEPS}
    true, weight = rows["validation"].label == "yes", rows["validation"].sample_weight
    oracle = IsotonicRegression(out_of_bounds="clip").fit(p["validation"], true, sample_weight=weight)
    found = answer(result, rows["test"])
    np.testing.assert_allclose(found["probabilities"][:, 1], oracle.predict(p["test"]), atol=1e-3)
    np.testing.assert_array_equal(found["label"], np.where(found["probabilities"][:, 1] > 0.5, "yes", "no"))


def test_a_threshold_is_the_best_of_all_and_at_least_as_good_as_scikit_learns(two) -> None:
    rows, estimator = two
    x, truth = rows["validation"].inputs["X"], rows["validation"].label == "yes"
    plain = {name: replace(part, sample_weight=None) for name, part in rows.items()}
    p = estimator.predict_proba(x)[:, 1]
    for name, score in (("f1", metrics.f1_score), ("balanced_accuracy", metrics.balanced_accuracy_score)):
        result = evaluate(convert(estimator), EvaluateConfig((name,), threshold=name), data=data_of(plain))
        record = result.facts.lineage[-1]["threshold"]
        scorer = metrics.make_scorer(score, **({"pos_label": "yes"} if name == "f1" else {}))
        settings = {"cv": "prefit", "refit": False, "response_method": "predict_proba"}
        oracle = TunedThresholdClassifierCV(FrozenEstimator(estimator), scoring=scorer, **settings)
        oracle.fit(x, rows["validation"].label)
        assert record["after"] == pytest.approx(score(truth, p >= result.facts.threshold))
        assert record["before"] == pytest.approx(score(truth, p > 0.5))
        assert record["after"] >= oracle.best_score_ - 1e-12
        assert record["after"] == pytest.approx(max(score(truth, p >= t) for t in np.unique(p)))


@pytest.mark.parametrize("calibration", [None, "temperature", "isotonic"])
def test_the_graphs_labels_predict_and_the_metrics_use_the_same_threshold(two, calibration: str | None) -> None:
    rows, estimator = two
    config = EvaluateConfig(calibration=calibration, threshold="f1")
    result = evaluate(convert(estimator), config, data=data_of(rows))
    found, test = answer(result, rows["test"]), rows["test"]
    label = np.where(found["probabilities"][:, 1] >= result.facts.threshold, "yes", "no")
    np.testing.assert_array_equal(found["label"], label)
    np.testing.assert_array_equal(as_columns(result.facts, found["probabilities"])["prediction"], label)
    np.testing.assert_array_equal(np.array(["no", "yes"])[result.tensors["evaluation/prediction"]], label)
    measured = result.facts.metrics["f1"]
    assert measured["trained"] == pytest.approx(
        metrics.f1_score(test.label, label, pos_label="yes", sample_weight=test.sample_weight)
    )
    plain = estimator.predict(test.inputs["X"])
    assert measured["unadjusted"] == pytest.approx(
        metrics.f1_score(test.label, plain, pos_label="yes", sample_weight=test.sample_weight)
    )


END = {
    "one raw score": ("z = MatMul(X, w) y = Identity(z)", 1, "y"),
    "two raw scores": ("z = MatMul(X, w) y = Identity(z)", 2, "y"),
    "one probability": ("z = MatMul(X, w) y = Sigmoid(z)", 1, "z"),
    "two probabilities": ("z = MatMul(X, w) y = Softmax(z)", 2, "z"),
    "no logits": ("z = MatMul(X, w) y = Sigmoid(z)", 1, None),
    "two without logits": ("z = MatMul(X, w) y = Softmax(z)", 2, None),
}


@pytest.mark.parametrize("calibration", ["temperature", "isotonic"])
def test_every_form_of_a_prediction_is_calibrated_to_the_same_probabilities(from_text, calibration: str) -> None:
    rng, found = np.random.default_rng(0), {}
    x = rng.normal(size=(300, 2))
    y = (x[:, 0] + rng.normal(size=300) > 0.8).astype(np.int64)
    parts = [Rows({"X": x[cut]}, y[cut]) for cut in (slice(0, 50), slice(50, 200), slice(200, 300))]
    for name, (nodes, width, logits) in END.items():
        w = "3, 0.5" if width == 1 else "0, 3, 0, 0.5"
        text = f"g (float[N,2] X) => (float[N,{width}] y) <float[2,{width}] w = {{{w}}}> {{ {nodes} }}"
        artifact = from_text(text, dtype="float64", task="binary", logits=logits, classes=(0, 1))
        config = EvaluateConfig(("f1",), calibration=calibration, threshold="f1", baseline=None)
        result = evaluate(artifact, config, data=Data(*parts))
        found[name] = as_columns(result.facts, answer(result, parts[2])["y"]), result.facts.threshold
    (first, threshold), *others = found.values()
    for columns, other in others:
        np.testing.assert_allclose(columns["probability_1"], first["probability_1"], atol=1e-6)
        np.testing.assert_array_equal(columns["prediction"], first["prediction"])
        assert other == pytest.approx(threshold, abs=1e-6)


def test_members_of_an_ensemble_are_calibrated_by_their_mean(two) -> None:
    rows, _ = two
    source = ConvertConfig(SOURCES["tabular"](members=2, width=4, blocks=1, dropout=0.0))
    network = convert(None, source, data=data_of(rows))
    result = evaluate(network, EvaluateConfig(calibration="temperature"), data=data_of(rows))
    before, after = (answer(each, rows["test"])["probabilities"].astype(np.float64) for each in (network, result))
    t = result.facts.lineage[-1]["calibration"]["temperature"]
    powers = before ** (1 / t)
    np.testing.assert_allclose(after, powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


def test_test_rows_decide_nothing_and_the_same_rows_give_the_same_bytes(two) -> None:
    rows, estimator = two
    config = EvaluateConfig(("f1",), calibration="isotonic", threshold="f1")
    flipped = replace(rows["test"], label=np.where(rows["test"].label == "yes", "no", "yes"))
    results = [
        evaluate(convert(estimator), config, data=data_of(part)) for part in (rows, rows, {**rows, "test": flipped})
    ]
    assert results[0].digest() == results[1].digest() != results[2].digest()
    models = [result.signature.SerializeToString() for result in results]
    assert models[0] == models[2]
    assert results[0].facts.threshold == results[2].facts.threshold


def test_a_misspelt_metric_of_a_threshold_is_answered_by_metrics_that_fit() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'f1'") as error:
        EvaluateConfig(threshold="f2")
    assert "r2" not in str(error.value)


def test_a_usual_threshold_stays_if_no_other_is_better() -> None:
    x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    rows = Rows({"X": x}, (x[:, 0] > 0).astype(np.int64))
    model = convert(LogisticRegression().fit(x, rows.label))
    result = evaluate(model, EvaluateConfig(threshold="accuracy"), data=Data(rows, rows, rows))
    assert result.facts.threshold is None
    assert "0.5 stays" in result.facts.lineage[-1]["notes"][0]


@pytest.mark.parametrize("classes", [(-1, 1), (0, 2)])
@pytest.mark.parametrize("indices", [False, True], ids=["classes", "class indices"])
def test_a_label_output_keeps_its_kind_if_the_first_rows_are_all_of_one_class(from_text, classes, indices) -> None:
    z = np.sin(np.arange(1200.0) * 7) * 3
    first = 1 if classes == (-1, 1) else 0  # 1 is a class and an index of (-1, 1), and so is 0 of (0, 2)
    z[:1000] = (abs(z[:1000]) + 0.1) * (1 if first else -1)
    kind = (0, 1) if indices else classes
    text = """g (double[N,1] X) => (double[N,1] p, int64[N,1] label)
      <double[1] w = {1}, int64 a = {%d}, int64 b = {%d}, double half = {0.5}>
      { z = Mul(X, w) p = Sigmoid(z) above = Greater(p, half) label = Where(above, b, a) }"""
    artifact = from_text(text % kind, dtype="float64", task="binary", logits="z", classes=classes)
    rows = Rows({"X": z[:, None]}, np.array(classes)[(z + np.cos(np.arange(1200)) > 0.8).astype(int)])
    result = evaluate(artifact, EvaluateConfig(("f1",), calibration="isotonic", baseline=None), data=Data(*[rows] * 3))
    found = answer(result, rows)
    np.testing.assert_array_equal(found["label"], np.array(kind)[(found["p"] > 0.5).astype(int)])
    assert set(found["label"].ravel().tolist()) == set(kind)


@pytest.mark.parametrize("prediction", ["z", "p"])
def test_a_note_names_each_output_that_stays_uncalibrated(from_text, prediction: str) -> None:
    text = """g (double[N,2] X) => (double[N,1] z, double[N,1] p, double[N,1] h)
      <double[2,1] w = {3, 0.5}> { h = MatMul(X, w) z = Identity(h) p = Sigmoid(z) }"""
    artifact = from_text(text, dtype="float64", prediction=prediction, task="binary", logits="z", classes=(0, 1))
    x = np.random.default_rng(0).normal(size=(100, 2))
    rows = Rows({"X": x}, (x[:, 0] + x[:, 1] > 0).astype(np.int64))
    result = evaluate(artifact, EvaluateConfig(calibration="temperature", baseline=None), data=Data(*[rows] * 3))
    notes = [note for note in result.facts.lineage[-1]["notes"] if "only output" in note]
    other = "p" if prediction == "z" else "z"
    assert notes == [f"calibration: only output {prediction!r} is calibrated, {other!r} is not"]


def test_thresholds_of_many_rows_are_between_quantiles_of_both_classes() -> None:
    p, truth = np.random.default_rng(0).uniform(size=5000), np.zeros(5000, int)
    truth[np.argsort(p)[-20:]] = 1
    tried = np.array(candidates(p, truth))
    assert len(tried) < 202
    assert (tried > np.sort(p)[-20]).sum() == 19


def test_the_reliability_before_and_after_is_in_one_picture(two) -> None:
    from matplotlib.figure import Figure

    rows, estimator = two
    result = evaluate(convert(estimator), EvaluateConfig(calibration="temperature"), data=data_of(rows))
    axes = Figure().subplots()
    panels(result)["curves"][-1](axes)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["before calibration", "calibrated"]


def few(rows: Rows) -> Rows:
    yes = np.flatnonzero(rows.label == "yes")
    return rows.take(np.concatenate([np.flatnonzero(rows.label == "no"), yes[:4]]))


def weightless(rows: Rows) -> Rows:
    return replace(rows, sample_weight=(rows.label == "no").astype(np.float64))


REJECTED = {
    "no validation rows": ({"threshold": "f1"}, lambda data: replace(data, validation=None), r"split.validation"),
    "few of a class": ({"threshold": "f1"}, lambda data: replace(data, validation=few(data.validation)), "4 of 'yes'"),
    "rows that weigh nothing": (
        {"calibration": "isotonic"},
        lambda data: replace(data, validation=weightless(data.validation)),
        "0 of 'yes'",
    ),
    "probabilities": ({"threshold": "roc_auc"}, lambda data: data, "predicted classes"),
    "a head's metric": ({"threshold": "box/f1"}, lambda data: data, "plain name"),
    "a metric of values": ({"threshold": "r2"}, lambda data: data, "fit the model's task"),
}


@pytest.mark.parametrize("why", REJECTED)
def test_settings_that_fit_neither_the_rows_nor_the_task_are_errors(two, why: str) -> None:
    (rows, estimator), (settings, change, words) = two, REJECTED[why]
    with pytest.raises(EvaluateError, match=words):
        evaluate(convert(estimator), EvaluateConfig(**settings), data=change(data_of(rows)))


@pytest.mark.parametrize(
    ("task", "settings", "fix"),
    [
        ("multiclass", {"calibration": "isotonic"}, "calibration=temperature"),
        ("multiclass", {"threshold": "f1_macro"}, "threshold=null"),
        ("regression", {"calibration": "temperature"}, "calibration=null"),
    ],
)
def test_other_tasks_are_errors(task: str, settings: dict[str, str], fix: str) -> None:
    rows = rows_of(3)
    if task == "regression":
        rows = {name: Rows({"X": part.inputs["X"]}, part.inputs["X"][:, 0]) for name, part in rows.items()}
    kind = LinearRegression if task == "regression" else LogisticRegression
    model = convert(kind().fit(rows["fit"].inputs["X"], rows["fit"].label))
    with pytest.raises(EvaluateError, match=fix.replace(".", r"\.")):
        evaluate(model, EvaluateConfig(**settings), data=data_of(rows))


def test_an_adjusted_model_is_neither_adjusted_again_nor_trained_further(two) -> None:
    rows, estimator = two
    config = EvaluateConfig(calibration="temperature", threshold="f1")
    result = evaluate(convert(estimator), config, data=data_of(rows))
    with pytest.raises(EvaluateError, match="fitted once"):
        evaluate(result, config, data=data_of(rows))
    with pytest.raises(ConvertError, match="calibration temperature, threshold 0"):
        convert(result.model)
    again = evaluate(result, data=data_of(rows))
    assert again.facts.metrics["accuracy"]["trained"] == result.facts.metrics["accuracy"]["trained"]
