from __future__ import annotations

import functools
import io

import numpy as np
import onnx.parser
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sklearn.linear_model import LinearRegression, LogisticRegression

from ortpipe.artifact import Artifact, Facts
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.figures import _confusion, _points, _reliability, _roc, figures
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

CASES = {
    "diabetes": (LinearRegression(), "l2", {"losses", "predicted", "residuals"}),
    "linnerud": (LinearRegression(), "l2", {"losses", "predicted", "residuals"}),
    "breast_cancer": (LogisticRegression(max_iter=3, tol=1e3), "log", {"losses", "confusion", "curves"}),
    "iris": (LogisticRegression(max_iter=3, tol=1e3), "cross_entropy", {"losses", "confusion", "curves"}),
}


@pytest.fixture(scope="module")
def artifacts(request):
    made = {}

    def artifact(name):
        if name not in made:
            data, (estimator, loss, _) = request.getfixturevalue(name), CASES[name]
            source = derive(add_loss(convert(estimator, data=data), AddLossConfig(LOSSES[loss]())))
            trained = train(source, TrainConfig(OPTIMIZERS["sgd"](1e-4), epochs=4), data=data)
            made[name] = trained, evaluate(trained, data=data)
        return made[name]

    return artifact


@pytest.fixture(scope="module")
def drawn(artifacts):
    return functools.cache(lambda name: figures(artifacts(name)[1]))


def decoded(png):
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("name", CASES)
def test_they_are_pngs_under_the_names_of_their_task(drawn, name):
    pictures = drawn(name)
    assert set(pictures) == CASES[name][2]
    for called, png in pictures.items():
        pixels = decoded(png)
        assert pixels.shape == ((420, 1440, 3) if called == "curves" else (540, 720, 3))
        assert len(np.unique(pixels.astype(np.int64) @ [1, 1 << 8, 1 << 16])) > 10  # colours; by rows it takes seconds


@pytest.mark.parametrize("name", ["diabetes", "iris"])  # every kind of picture
def test_the_same_artifact_gives_the_same_bytes_and_stays_as_it_was(artifacts, drawn, name):
    artifact = artifacts(name)[1]
    before = artifact.digest()
    assert figures(artifact) == drawn(name)
    assert artifact.digest() == before


def test_a_model_that_was_not_evaluated_has_its_losses_alone(artifacts):
    assert set(figures(artifacts("iris")[0])) == {"losses"}


def test_a_model_that_was_not_trained_has_no_losses(iris):
    forward = convert(LogisticRegression(), data=iris)
    assert set(figures(evaluate(forward, data=iris))) == {"confusion", "curves"}


def test_another_artifact_gives_another_picture(drawn):
    assert drawn("iris")["losses"] != drawn("diabetes")["losses"]


def test_what_is_monitored_is_drawn_beside_the_loss(artifacts):
    trained = artifacts("iris")[0]
    watched = Artifact(
        trained.model, trained.facts, {**trained.tensors, "monitor/accuracy": np.array([0.1, 0.5, np.nan, 1])}
    )
    assert figures(watched)["losses"] != figures(trained)["losses"]


@pytest.mark.parametrize("draw", [_roc, _reliability])
def test_the_dashed_line_is_the_diagonal(artifacts, draw):
    draw(artifacts("breast_cancer")[1], axes := Figure().add_subplot())
    [dashed] = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed.get_xydata().tolist() == [[0, 0], [1, 1]]


def test_many_outputs_are_drawn_at_once() -> None:  # a drawing of each of 32,000 samples of a sound took minutes
    truth = np.random.default_rng(0).normal(size=(4, 300))
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[N, 300] x) => (float[N, 300] p) { p = Identity(x) }'
    tensors = {"evaluation/label": truth, "evaluation/prediction": truth}
    facts = Facts("regression", ("x",), ("p",), "p", ())
    _points(Artifact(onnx.parser.parse_model(text), facts, tensors), False, axes := Figure().add_subplot())
    assert [drawn.get_offsets().shape for drawn in axes.collections] == [(truth.size, 2)]


def test_of_many_classes_only_those_that_occur_are_drawn() -> None:
    facts = Facts("multiclass", ("x",), ("p",), "p", (), classes=tuple(range(200)))
    tensors = {"evaluation/label": np.array([3, 150, 150]), "evaluation/prediction": np.array([3, 3, 150])}
    text = "<ir_version: 9, opset_import: ['': 18]> g (float[N] x) => (float[N] p) { p = Identity(x) }".replace(
        "'", '"'
    )
    axes = Figure().add_subplot()
    _confusion(Artifact(onnx.parser.parse_model(text), facts, tensors), axes)
    [image] = axes.images
    assert image.get_array().tolist() == [[1, 0], [1, 1]]
    assert "2 of 200 classes" in axes.get_title()
