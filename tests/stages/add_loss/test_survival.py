"""Cox's loss, discrete hazards and their metrics, against scikit-survival and lifelines."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    ConvertConfig,
    Data,
    EvaluateConfig,
    Given,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    evaluate,
    train,
)
from ortpipe.errors import ConfigError, ConvertError, DataError, LossError, TrainError
from ortpipe.metrics import METRICS, survival
from ortpipe.metrics.survival import concordance, integrated_brier_score, kaplan_meier
from ortpipe.stages.add_loss.config import HeadLoss
from ortpipe.stages.convert.prediction.meaning import OutputSettings
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.evaluate.stage import Answers

# Freireich et al. (1963): weeks of remission of leukemia with 6-MP (21 patients), and with a placebo
WEEKS = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
WEEKS += [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
Y = np.stack([WEEKS, [1] * 9 + [0] * 12 + [1] * 21], axis=1).astype(np.float64)
X = np.stack([[0] * 21 + [1] * 21, np.sin(np.arange(42))], axis=1)
COX = [1.5106541194091314, -0.02504214907522825]  # CoxPHSurvivalAnalysis(ties="breslow") of scikit-survival 0.28.0
LINE = "g (float[N,1] X) => (float[N,1] y) <float[1] w = {0}> { y = Add(X, w) }"
WIDE = "g (float[N,3] X) => (float[N,3] y) <float[3] w = {0, 0, 0}> { y = Add(X, w) }"
HAZARD = LOSSES["discrete_hazard"](cuts=(5, 10, 20))


def network(data, name="mlp", **settings):
    settings = {"task": "regression", "dropout": 0.0, **settings}
    return convert(None, ConvertConfig(SOURCES[name](**settings), dtype="float64"), data=data)


def cox_formula(risk, label):
    time, event = label.T
    total = np.array([np.exp(risk[time >= t]).sum() for t in time])
    return event * (np.log(total) - risk)


def hazard_formula(z, label, cuts):
    starts, hazard, terms = [0, *cuts[:-1]], 1 / (1 + np.exp(-z)), np.zeros(len(z))
    for i, (time, event) in enumerate(label):
        for k, (start, end) in enumerate(zip(starts, cuts, strict=True)):
            if event and (start < time <= end or (k == 0 and time == 0)):
                terms[i] -= np.log(hazard[i, k])
            elif time > end if event else time >= (start + end) / 2:
                terms[i] -= np.log(1 - hazard[i, k])
    return terms


@pytest.mark.parametrize(("loss", "text"), [(LOSSES["cox"](), LINE), (HAZARD, WIDE)], ids=["cox", "discrete_hazard"])
def test_value_and_gradient_are_those_of_the_formula_in_float64(from_text, run, central_differences, loss, text):
    scored = add_loss(from_text(text, dtype="float64"), AddLossConfig(loss, "sum"))
    z = np.random.default_rng(3).normal(size=(42, 1 if text == LINE else 3))
    expected = cox_formula(z[:, 0], Y) if text == LINE else hazard_formula(z, Y, (5, 10, 20))
    feeds = {"X": z, "label": Y}
    assert run(scored.model, feeds)["loss"] == pytest.approx(expected.sum(), rel=1e-12)
    slope = central_differences(scored.model, "loss", feeds, "X")
    gradient = derive(scored, DeriveConfig(inputs=("X",)))
    np.testing.assert_allclose(run(gradient.model, feeds)["X_grad"], slope, rtol=1e-6, atol=1e-7)


def test_a_linear_network_on_full_batches_has_the_coefficients_of_scikit_survival() -> None:
    data = Data(Rows({"X": X}, Y))
    model = network(data, hidden=(), outputs=1, scale_target=False, standardize=False)
    gradient = derive(add_loss(model, AddLossConfig(LOSSES["cox"]()), data=data))
    trained = train(gradient, TrainConfig(OPTIMIZERS["lbfgs"](), epochs=100), data=data)
    np.testing.assert_allclose(trained.initializers["output.weight"].ravel(), COX, atol=1e-3)


@pytest.mark.parametrize("head", ["", "risk"])
def test_parts_of_a_batch_are_rejected_for_the_prediction_and_for_heads(head) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (double[N,2] X) => (double[N,1] y, double[N,1] risk)
      <double[2,1] w = {1, 2}, double[2,1] v = {2, 1}> { y = MatMul(X, w) risk = MatMul(X, v) }"""
    label = {"label": Y[:, :1], "heads": {"risk": Y}} if head else {"label": Y}
    data, cox = Data(Rows({"X": X}, **label)), LOSSES["cox"]()
    heads = {"risk": OutputSettings(task="regression")} if head else {}
    model = convert(onnx.parser.parse_model(text), ConvertConfig(Given(task="regression", heads=heads)), data=data)
    loss = AddLossConfig(LOSSES["l2"](), heads={"risk": HeadLoss(cox)}) if head else AddLossConfig(cox)
    gradient = derive(add_loss(model, loss, data=data), data=data)
    with pytest.raises(TrainError, match=r"cox reads a whole batch(.|\n)*accumulate=4" + (".*'risk'" if head else "")):
        train(gradient, TrainConfig(OPTIMIZERS["sgd"](), epochs=1, accumulate=4), data=data)
    with pytest.raises(TrainError, match=("of head 'risk' " if head else "cox ") + "compares the rows of a batch"):
        train(gradient, TrainConfig(OPTIMIZERS["sgd"](), epochs=1, batch_size=1), data=data)


def test_scikit_survival_still_has_these_coefficients() -> None:
    linear_model = pytest.importorskip("sksurv.linear_model")
    label = np.array([(bool(e), t) for t, e in Y], dtype=[("event", bool), ("time", float)])
    fitted = linear_model.CoxPHSurvivalAnalysis(ties="breslow", tol=1e-12).fit(X, label)
    np.testing.assert_allclose(fitted.coef_, COX, rtol=1e-6)


def test_a_file_of_a_network_keeps_its_cut_points(run) -> None:
    data = Data(Rows({"X": X}, Y))
    model = network(data, hidden=(), intervals=4)
    again = convert(model.model, data=data)
    assert again.facts.levels == model.facts.levels
    losses = [add_loss(each, AddLossConfig(LOSSES["discrete_hazard"]()), data=data) for each in (model, again)]
    first, second = (run(each.model, {"X": X, "label": Y})["loss"] for each in losses)
    assert first == pytest.approx(second, rel=1e-12)
    trained = train(derive(losses[0]), TrainConfig(OPTIMIZERS["sgd"](), epochs=1), data=data)
    final = convert(trained.model, data=data)
    with pytest.raises(LossError, match="stores no cut points"):  # its prediction is no logit of a hazard
        add_loss(final, AddLossConfig(LOSSES["discrete_hazard"]()), data=data)


def test_an_ensemble_has_the_mean_of_its_members_losses(run) -> None:
    data = Data(Rows({"X": X}, Y))
    model = network(data, "tabular", members=3, width=4, outputs=1, scale_target=False)
    scored = add_loss(model, AddLossConfig(LOSSES["cox"](), "sum"), data=data)
    members = run(ir.to_proto(scored.ir_model(["members"])), {"X": X})["members"][:, :, 0]
    assert run(scored.model, {"X": X, "label": Y})["loss"] == pytest.approx(
        np.mean([cox_formula(risk, Y).sum() for risk in members.T]), rel=1e-9
    )


def test_the_cut_points_are_quantiles_of_the_times_of_events_and_the_model_predicts_survival(run) -> None:
    data = Data(Rows({"X": X}, Y), test=Rows({"X": X}, Y))
    model = network(data, hidden=(), intervals=4)
    events = Y[Y[:, 1] == 1, 0]
    cuts = tuple(np.unique(np.quantile(events, [0.25, 0.5, 0.75, 1], method="inverted_cdf")).tolist())
    assert model.facts.levels == cuts
    scored = add_loss(model, AddLossConfig(LOSSES["discrete_hazard"]()), data=data)
    assert (scored.facts.link, scored.facts.levels, scored.facts.outputs) == ("survival", cuts, model.facts.outputs)
    hazard = 1 / (1 + np.exp(-run(model.model, {"X": X})["prediction"]))
    prediction = run(scored.model, {"X": X, "label": Y})["prediction"]
    np.testing.assert_allclose(prediction, np.cumprod(1 - hazard, axis=1), rtol=1e-9)
    result = evaluate(train(derive(scored), TrainConfig(OPTIMIZERS["adam"](), epochs=1), data=data), data=data)
    assert set(result.facts.metrics) == {"concordance", "integrated_brier_score"}
    assert result.facts.metrics["concordance"]["baseline"] == 0.5
    constant = np.broadcast_to(kaplan_meier(*Y.T)(np.array(cuts)), (42, len(cuts)))
    levels = np.broadcast_to(cuts, constant.shape)
    expected = integrated_brier_score(Y, (constant, levels), None)
    assert result.facts.metrics["integrated_brier_score"]["baseline"] == pytest.approx(expected, rel=1e-12)


def test_the_best_constant_hazards_are_those_of_kaplan_and_meier(from_text, run) -> None:
    label = np.array([[5, 1], [5, 0], [10, 1], [10, 1], [10, 0], [20, 1], [20, 0.0]])  # censored at cut points only
    estimate = kaplan_meier(*label.T)(np.array([5.0, 10, 20]))
    hazard = 1 - estimate / np.concatenate([[1], estimate[:-1]])
    z = np.broadcast_to(np.log(hazard / (1 - hazard)), (7, 3))
    gradient = derive(add_loss(from_text(WIDE, dtype="float64"), AddLossConfig(HAZARD)), DeriveConfig(inputs=("X",)))
    np.testing.assert_allclose(run(gradient.model, {"X": z, "label": label})["X_grad"].sum(axis=0), 0, atol=1e-12)


# lifelines 0.30.3 and scikit-survival 0.28.0 on the rows of `sampled`
CONCORDANCE, BRIER = 0.7376476906552094, 0.22412018314428922
KAPLAN_MEIER = [0.8868243243243243, 0.8047599838644618, 0.63869839989243, 0.5042355788624446, 0.2941374210030927]
TIMES = np.array([2.0, 4, 6, 8, 10])


def sampled() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    time = rng.integers(1, 12, 80).astype(float)
    event = rng.random(80) < 0.6
    risk = np.round(rng.normal(size=80) - 0.2 * time, 1)
    return np.stack([time, event], axis=1), risk, np.exp(-np.cumsum(rng.uniform(0, 0.3, (80, 5)), axis=1))


def test_metrics_are_those_of_lifelines_and_scikit_survival() -> None:
    truth, risk, probability = sampled()
    predicted = probability, np.broadcast_to(TIMES, probability.shape)
    assert METRICS["concordance"](truth, risk[:, None], None, None) == pytest.approx(CONCORDANCE, rel=1e-12)
    assert METRICS["integrated_brier_score"](truth, *predicted, None) == pytest.approx(BRIER, rel=1e-12)
    np.testing.assert_allclose(kaplan_meier(*truth.T)(TIMES), KAPLAN_MEIER, rtol=1e-12)


def test_lifelines_and_scikit_survival_still_have_these_numbers() -> None:
    lifelines, metrics = pytest.importorskip("lifelines"), pytest.importorskip("sksurv.metrics")
    (time, event), risk, probability = sampled()[0].T, *sampled()[1:]
    label = np.array(list(zip(event == 1, time, strict=True)), dtype=[("event", bool), ("time", float)])
    assert lifelines.utils.concordance_index(time, -risk, event) == pytest.approx(CONCORDANCE)
    assert metrics.concordance_index_censored(event == 1, time, risk)[0] == pytest.approx(CONCORDANCE)
    assert metrics.integrated_brier_score(label, label, probability, TIMES) == pytest.approx(BRIER)
    np.testing.assert_allclose(lifelines.KaplanMeierFitter().fit(time, event).predict(TIMES), KAPLAN_MEIER)


def test_weights_of_metrics_count_rows() -> None:
    truth, risk, probability = sampled()
    weight = np.random.default_rng(1).integers(1, 4, 80)
    again = np.repeat(np.arange(80), weight)
    concordances = concordance(truth, risk[:, None], weight), concordance(truth[again], risk[again, None], None)
    assert concordances[0] == pytest.approx(concordances[1], rel=1e-12)
    levels = np.broadcast_to(TIMES, probability.shape)
    brier = integrated_brier_score(truth, (probability, levels), weight)
    repeated = integrated_brier_score(truth[again], (probability[again], levels[again]), None)
    assert brier == pytest.approx(repeated, rel=1e-12)


def test_a_row_of_weight_0_is_no_row() -> None:
    truth, _, probability = sampled()
    weight = np.where(truth[:, 0] > 8, 0, 1 + np.arange(80) % 2)
    assert truth[weight > 0, 0].max() < TIMES[-1]
    kept, levels = weight > 0, np.broadcast_to(TIMES, probability.shape)
    brier = integrated_brier_score(truth, (probability, levels), weight)
    assert brier == integrated_brier_score(truth[kept], (probability[kept], levels[kept]), weight[kept])


def test_events_at_time_0_give_no_cut_points() -> None:
    data = Data(Rows({"X": X}, np.stack([Y[:, 0] * (Y[:, 1] == 0), Y[:, 1]], axis=1)))
    with pytest.raises(ConvertError, match=r"need an event after time 0(.|\n)*all events at time 0"):
        network(data, hidden=(), intervals=4)


def test_concordance_counts_all_pairs_by_halves(monkeypatch) -> None:
    truth, risk, _ = sampled()
    whole = concordance(truth, risk[:, None], None)
    monkeypatch.setattr(survival, "BLOCK", 1)
    assert concordance(truth, risk[:, None], None) == pytest.approx(whole, rel=1e-12)
    assert np.isnan(concordance(np.array([[1.0, 0], [2, 0]]), np.zeros((2, 1)), None))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (Y[:, 0], r"two label columns(.|\n)*got: 1 label column"),
        (Y[:, ::-1] + [[0, 1]], r"two label columns(.|\n)*\[1.0, 7.0\] in row 0(.|\n)*order of"),
        (np.where(Y == 35, -1, Y), r"two label columns(.|\n)*\[-1.0, 0.0\] in row 20, of the 42 rows to train"),
        (np.array([["6", "yes"]] * 42), r"got: text(.|\n)*Write events as 1 and 0"),
        (Y * [[1, 0]], "needs an event in the training rows"),
    ],
)
@pytest.mark.parametrize("loss", ["cox", "discrete_hazard"])
def test_labels_that_are_no_times_and_events_are_rejected(from_text, label, message, loss) -> None:
    data = Data(Rows({"X": X[:, :1]}, label))
    config = AddLossConfig(HAZARD if loss == "discrete_hazard" else LOSSES[loss]())
    with pytest.raises(DataError, match=message):
        add_loss(from_text(WIDE if loss == "discrete_hazard" else LINE), config, data=data)


def test_settings_and_models_that_do_not_fit_are_rejected(from_text) -> None:
    with pytest.raises(LossError, match=r"needs a prediction \[N, 1\](.|\n)*\[N, 3\]"):
        add_loss(from_text(WIDE), AddLossConfig(LOSSES["cox"]()))
    with pytest.raises(LossError, match="cox has no row weights"):
        add_loss(from_text(LINE), AddLossConfig(LOSSES["cox"](), sample_weight=True))
    with pytest.raises(LossError, match="stores no cut points"):
        add_loss(from_text(WIDE), AddLossConfig(LOSSES["discrete_hazard"]()))
    with pytest.raises(ConfigError, match="times in ascending order"):
        LOSSES["discrete_hazard"](cuts=(5, 5))
    with pytest.raises(LossError, match="already predicts"):
        add_loss(add_loss(from_text(WIDE), AddLossConfig(HAZARD)), AddLossConfig(HAZARD))


def test_the_weights_of_a_source_predict_survival_too(from_text) -> None:
    facts = add_loss(from_text(WIDE), AddLossConfig(HAZARD)).facts
    answers = Answers({"": Y}, {"": np.full((42, 3), 0.5)}, None)
    assert answers.compared(facts, source=True)[""].label.shape == (42, 3)


def test_boosting_is_no_baseline_of_survival(from_text) -> None:
    data = Data(Rows({"X": X}, Y), test=Rows({"X": X}, Y))
    scored = add_loss(network(data, hidden=(), outputs=1, scale_target=False), AddLossConfig(LOSSES["cox"]()))
    trained = train(derive(scored), TrainConfig(OPTIMIZERS["sgd"](), epochs=1), data=data)
    with pytest.raises(Exception, match="one class or value per row"):
        evaluate(trained, EvaluateConfig(baseline="HistGradientBoosting"), data=data)
