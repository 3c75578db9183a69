"""Sensitivity is the mean |SHAP value| of a linear model, and what central differences say of any other."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

from ortpipe.data.rows import Data, Rows
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.figures import figures, flat
from ortpipe.stages.evaluate.stage import evaluate

RNG = np.random.default_rng(0)
X = RNG.normal(2, [1, 5, 0.1], size=(230, 3))
Y = X @ [3.0, 0.0, -1.0] + 0.1 * RNG.normal(size=230)
ASKED = EvaluateConfig(sensitivity=True)


def _found(artifact, rows):
    return evaluate(artifact, ASKED, data=Data(rows, test=rows))


def _mean_absolute_shap(weights):
    return np.abs(weights) * np.abs(X - X.mean(axis=0)).mean(axis=0)  # of independent columns: w (x − E x)


def test_of_linear_models_it_is_the_mean_absolute_shap_value() -> None:
    rows = Rows({"X": X}, Y, columns={"X": ("a", "b", "c")})
    model = LinearRegression().fit(X, Y)
    done = _found(convert(model), rows)
    found = done.facts.lineage[-1]["sensitivity"]
    assert list(found) == ["a", "b", "c"]
    np.testing.assert_allclose(list(found.values()), _mean_absolute_shap(model.coef_), rtol=1e-4, atol=1e-7)
    assert figures(done)["sensitivity"].startswith(b"\x89PNG")
    two = LinearRegression().fit(X, np.c_[Y, -2 * Y])  # each output by itself: their sum would cancel
    found = _found(convert(two), Rows({"X": X}, np.c_[Y, -2 * Y])).facts.lineage[-1]["sensitivity"]
    np.testing.assert_allclose(list(found.values()), sum(map(_mean_absolute_shap, two.coef_)), rtol=1e-4, atol=1e-7)


def test_of_two_classes_it_is_of_the_logit() -> None:
    label = np.where(Y.mean() < Y, "yes", "no")
    model = LogisticRegression().fit(X, label)
    found = _found(convert(model), Rows({"X": X}, label)).facts.lineage[-1]["sensitivity"]
    ratio = np.array(list(found.values())) / _mean_absolute_shap(model.coef_[0])
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    assert ratio[0] == pytest.approx(1, rel=1e-4) or ratio[0] == pytest.approx(0.5, rel=1e-4)  # of a half each class


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("kind", ["values", "classes"])
def test_of_a_network_it_is_what_central_differences_say(kind) -> None:
    digits = load_digits()
    pixels = digits.data[:120] / 16
    if kind == "values":
        model = MLPRegressor(hidden_layer_sizes=(8,), activation="tanh", max_iter=30, random_state=0).fit(
            pixels, digits.target[:120]
        )
    else:
        model = MLPClassifier((8,), activation="tanh", max_iter=30, random_state=0).fit(pixels, digits.target[:120])
    artifact = convert(model)
    done = _found(artifact, Rows({"X": pixels}, digits.target[:120]))
    found = np.array(list(done.facts.lineage[-1]["sensitivity"].values()))

    def score(x):
        hidden = np.tanh(x @ model.coefs_[0] + model.intercepts_[0])
        return hidden @ model.coefs_[1] + model.intercepts_[1]

    picked = np.arange(120), score(pixels).argmax(axis=1)
    gradient = np.zeros_like(pixels)
    for i in range(64):
        step = np.eye(64)[i] * 1e-5
        gradient[:, i] = (score(pixels + step)[picked] - score(pixels - step)[picked]) / 2e-5
    np.testing.assert_allclose(
        found, np.abs((pixels - pixels.mean(axis=0)) * gradient).mean(axis=0), rtol=1e-4, atol=1e-6
    )


def test_of_images_it_is_a_map(from_text) -> None:
    artifact = from_text(
        "g (float[N,1,3,4] image) => (float[N,1] y) <float[12,1] w = {0,1,2,3,4,5,6,7,8,9,10,11}>"
        "{ f = Flatten(image) y = MatMul(f, w) }"
    )
    images = RNG.normal(size=(40, 1, 3, 4)).astype(np.float32)
    done = _found(artifact, Rows({"image": images}, np.zeros(40)))
    [found] = [array for name, array in done.tensors.items() if name == "evaluation/sensitivity/image"]
    expected = np.arange(12).reshape(1, 3, 4) * np.abs(images - images.mean(axis=0)).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert "sensitivity" not in done.facts.lineage[-1]  # no columns
    assert flat(found).shape == (3, 4)
    assert figures(done)["sensitivity"].startswith(b"\x89PNG")


def test_an_operator_without_a_gradient_is_a_note_and_loses_nothing(from_text) -> None:
    artifact = from_text(
        "g (float[N,1,4,4] image) => (float[N,4] y) <int64[2] s = {-1,4}, float[1,5] rois = {0,0,0,3,3}>"
        "{ p = MaxRoiPool<pooled_shape=[2,2]>(image, rois) y = Reshape(p, s) }"
    )
    done = _found(artifact, Rows({"image": RNG.normal(size=(1, 1, 4, 4)).astype(np.float32)}, np.zeros((1, 4))))
    assert "mean_squared_error" in done.facts.metrics
    [note] = done.facts.lineage[-1]["notes"]
    assert note.startswith("no sensitivity")
    assert "MaxRoiPool" in note


def test_it_says_which_columns_have_none(from_text) -> None:
    artifact = from_text(
        "g (float[N,1] age, int64[N,1] sex) => (float[N,1] y) <float[1,1] w = {2}>"
        "{ a = MatMul(age, w) b = Cast<to=1>(sex) y = Add(a, b) }"
    )
    rows = Rows({"age": RNG.normal(size=(9, 1)), "sex": RNG.integers(0, 2, (9, 1))}, np.zeros(9))
    last = _found(artifact, rows).facts.lineage[-1]
    assert list(last["sensitivity"]) == ["age[0]"]
    assert last["notes"] == ["sensitivity needs numbers that the score depends on: none for sex[0]"]
