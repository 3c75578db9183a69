"""Predictions of teachers in training rows, the new rows, and losses of shares of classes."""

from __future__ import annotations

import cProfile
import dataclasses
import importlib
from pathlib import Path

import joblib
import numpy as np
import onnx
import onnx.parser
import pandas as pd
import pytest
import yaml
from sklearn.base import BaseEstimator, clone
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from ortpipe.app.assemble import remembering
from ortpipe.artifact import Artifact
from ortpipe.data.feeds import feeds
from ortpipe.data.raw_columns import RawColumn
from ortpipe.data.rows import SHARES, Data, Rows
from ortpipe.data.teacher import Features, TeacherConfig, taught
from ortpipe.data.teacher.features import frame_of
from ortpipe.errors import ConfigError, DataError, LossError, ModelError
from ortpipe.facts import Facts, metadata_of
from ortpipe.pipeline.store import Store
from ortpipe.runtime.onnx_teacher import OnnxClassifier
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.sources.networks.tabular import Tabular
from ortpipe.stages.convert.stage import convert

COUNT = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(COUNT, 3))
VALUES = X[:, 0] + X[:, 1] ** 2
CLASSES = np.array(["a", "b", "c"])[(VALUES > 0.3).astype(int) + (VALUES > 1)]
PARAMS = {"max_iter": 5, "min_samples_leaf": 3, "random_state": 0}
BOOSTING = {"estimator": "sklearn.ensemble.HistGradientBoosting", "params": PARAMS, "folds": 3, "seed": 4}
MINE = "data.teacher.test_teacher"


class Counted(Ridge):
    """A ridge regression that counts its fits."""

    fits = 0

    def fit(self, X, y, sample_weight=None):
        type(self).fits += 1
        return super().fit(X, y, sample_weight)


class Constant:
    """A fitted teacher without classes that and without fit."""

    def __init__(self, prediction=0.0, count=None):
        self.prediction, self.count = prediction, count

    def predict(self, rows):
        return np.full(self.count or len(rows), self.prediction)


class Mute(BaseEstimator):
    """An estimator without predict."""


def data(label=VALUES, inputs=None, **fields):
    rows = Rows(inputs or {"X": X}, label, **fields)
    return Data(rows.take(slice(0, 40)), rows.take(slice(40, 50)), rows.take(slice(50, 60)))


def table(label=VALUES):
    rng = np.random.default_rng(1)
    words, dates = np.array(["x", "y", ""], object)[rng.integers(0, 3, COUNT)], np.array(["2020-03-01", ""], object)
    numbers = np.where(rng.random(COUNT) < 0.2, np.nan, X[:, 0])
    inputs = {"size": numbers, "kind of": words, "when": dates[rng.integers(0, 2, COUNT)]}
    kinds = {"size": "number", "kind of": "word", "when": "date"}
    return data(label, inputs, kept={name: RawColumn(kind, 1) for name, kind in kinds.items()})


def test_predictions_are_those_of_folds_that_did_not_see_the_row():
    predictions = taught(data(), TeacherConfig(**BOOSTING, alpha=1, augment=0)).train
    folds = KFold(3, shuffle=True, random_state=4)
    oracle = cross_val_predict(HistGradientBoostingRegressor(**PARAMS), X[:40], VALUES[:40], cv=folds)
    assert np.array_equal(predictions.label, oracle)
    mixed = taught(data(), TeacherConfig(**BOOSTING, alpha=0.25, augment=0)).train
    assert np.array_equal(mixed.label, 0.25 * oracle + 0.75 * VALUES[:40])


def test_classes_become_shares_and_labels_stay():
    rows = taught(data(CLASSES), TeacherConfig(**BOOSTING, alpha=0.5, augment=0)).train
    folds = StratifiedKFold(3, shuffle=True, random_state=4)
    estimator = HistGradientBoostingClassifier(**PARAMS)
    oracle = cross_val_predict(estimator, X[:40], CLASSES[:40], cv=folds, method="predict_proba")
    assert np.array_equal(rows.heads[SHARES], 0.5 * oracle + 0.5 * (CLASSES[:40, None] == np.unique(CLASSES)))
    assert np.array_equal(rows.label, CLASSES[:40])


def test_new_rows_have_columns_of_training_rows_and_the_mean_prediction_of_the_folds():
    config = TeacherConfig(**BOOSTING, augment=0.5)
    before, after = data(), taught(data(), config)
    assert after.digests[1:] == before.digests[1:]
    rows = after.train
    assert (len(rows), rows.digest()) == (60, taught(data(), config).train.digest())
    new = rows.inputs["X"][40:]
    assert all(np.isin(new[:, column], X[:40, column]).all() for column in range(3))
    kept = [max((new[row] == X[base]).sum() for base in range(40)) for row in range(20)]
    assert 1 <= min(kept) < 3
    fits = [
        clone(HistGradientBoostingRegressor(**PARAMS)).fit(X[seen], VALUES[seen])
        for seen, _ in KFold(3, shuffle=True, random_state=4).split(X[:40])
    ]
    assert np.allclose(rows.label[40:], np.mean([fit.predict(new) for fit in fits], axis=0), rtol=1e-12)
    copies = taught(data(), dataclasses.replace(config, mix=0)).train.inputs["X"][40:]
    assert len(np.unique(np.r_[copies, X[:40]], axis=0)) == 40
    assert taught(data(), dataclasses.replace(config, seed=5)).train.digest() != rows.digest()


@pytest.mark.parametrize(
    "name", ["sklearn.ensemble.HistGradientBoosting", "lightgbm.LGBM", "ortpipe.data.teacher:Stack"]
)
@pytest.mark.filterwarnings("ignore:The least populated class")
@pytest.mark.parametrize("label", [VALUES, CLASSES], ids=["values", "classes"])
def test_a_table_with_words_dates_and_gaps_has_teachers(name, label):
    if name.startswith("lightgbm"):
        pytest.importorskip("lightgbm")
    params = {"lightgbm": {"n_estimators": 3, "verbose": -1}, "sklearn": {"max_iter": 3}, "ortpipe": {"trees": 3}}
    rows = taught(table(label), TeacherConfig(name, params[name.partition(".")[0]], folds=2, augment=0.1)).train
    assert len(rows) == 44
    if label is CLASSES:
        assert np.allclose(rows.heads[SHARES].sum(axis=1), 1)


def test_a_fitted_estimator_reads_the_columns_by_name(tmp_path):
    kept, rows = table().train, table().train.inputs["kind of"]
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), Ridge())
    frame = pd.DataFrame({"kind of": np.where(rows == "", np.nan, rows)})
    joblib.dump(model.fit(frame, kept.label), tmp_path / "teacher.pkl")
    config = TeacherConfig(path=str(tmp_path / "teacher.pkl"), trust=True, alpha=1, augment=0)
    got = taught(Data(kept), config)
    assert np.array_equal(got.train.label, model.predict(frame))
    assert "already fitted, so it may have seen them" in got.notes[-1]
    with pytest.raises(DataError, match="The teacher must read columns of the data"):
        taught(data(), config)


def test_a_store_keeps_predictions_by_content(tmp_path):
    remember = remembering(Store(tmp_path / "cache"), "teacher")
    Counted = importlib.import_module(MINE).Counted
    config, before = TeacherConfig(f"{MINE}:Counted", folds=2, augment=0.2), Counted.fits
    first = taught(data(), config, remember).train
    again = taught(data(), dataclasses.replace(config, alpha=1.0), remember).train
    assert Counted.fits == before + 2
    assert np.array_equal(first.label[:40], 0.3 * again.label[:40] + 0.7 * VALUES[:40])
    assert taught(data(), config, remember).train.digest() == first.digest()
    taught(data(VALUES + 1), config, remember)
    assert Counted.fits == before + 4


W = np.array([[1, -2, 0.5], [0.25, 3, -1], [0, 1, 1]])
HEAD = "g (double[N,3] X) => (double[N,{width}] y) <double[3,3] w = {{1,-2,0.5, 0.25,3,-1, 0,1,1}}, int64[1] k = {{0}}>"
ENDS = {
    "scores": (3, "{ y = MatMul(X, w) }"),
    "probabilities": (3, "{ z = MatMul(X, w) y = Softmax(z) }"),
    "one column": (1, "{ z = MatMul(X, w) y = Gather <axis = 1> (z, k) }"),
    "one probability": (1, "{ z = MatMul(X, w) s = Gather <axis = 1> (z, k) y = Sigmoid(s) }"),
}
ONNX = {"estimator": "ortpipe.runtime:Onnx", "alpha": 1.0, "augment": 0.0}


def onnx_file(folder, text):
    path = folder / "teacher.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}'), path)
    return str(path)


@pytest.mark.parametrize("end", ENDS)
def test_an_onnx_model_is_a_teacher_by_its_probabilities_or_scores(tmp_path, end):
    width, nodes = ENDS[end]
    path, z = onnx_file(tmp_path, HEAD.format(width=width) + nodes), X[:40] @ W
    powers = np.exp(z) if width == 3 else np.c_[np.ones(40), np.exp(z[:, 0])]
    label = CLASSES if width == 3 else CLASSES == "c"
    got = taught(data(label), TeacherConfig(path=path, **ONNX)).train
    assert np.allclose(got.heads[SHARES], powers / powers.sum(axis=1, keepdims=True), rtol=1e-9)


def test_a_model_of_ortpipe_is_a_teacher_that_reads_raw_columns(tmp_path):
    rows = table(CLASSES)
    model = convert(None, ConvertConfig(MLP(hidden=(4,), dropout=0.0)), data=rows)
    onnx.save(model.model, path := tmp_path / "model.onnx")
    got = taught(rows, TeacherConfig(path=str(path), **ONNX)).train.heads[SHARES]
    feed = feeds(model.signature, model.facts, rows.train)
    assert np.allclose(got, Session(model.model).run(feed, [model.facts.prediction])[0], atol=1e-6)
    assert OnnxClassifier(str(path)).classes_.tolist() == ["a", "b", "c"]
    with pytest.raises(DataError, match="must know the classes of the labels"):
        taught(table(np.where(CLASSES == "a", "z", CLASSES)), TeacherConfig(path=str(path), **ONNX))


def test_an_onnx_teacher_of_values_counts_by_its_content(tmp_path):
    remember = remembering(Store(tmp_path / "cache"), "teacher")
    text = "g (double[N,3] X) => (double[N] y, double[N] z) <int64[1] a = {1}> "
    text += "{ y = ReduceSum <keepdims = 0> (X, a) z = Neg(y) }"
    config = TeacherConfig(path=onnx_file(tmp_path, text), params={"output": "z"}, **ONNX)
    assert np.allclose(taught(data(), config, remember).train.label, -X[:40].sum(axis=1))
    onnx_file(tmp_path, text.replace("Neg", "Abs"))
    assert np.allclose(taught(data(), config, remember).train.label, abs(X[:40].sum(axis=1)))
    with pytest.raises(ModelError, match=r"one output of floats, or name it(.|\n)*to one of y, z"):
        taught(data(), dataclasses.replace(config, params={}))
    with pytest.raises(DataError, match=r"the width that the model takes(.|\n)*for the teacher OnnxRegressor"):
        taught(data(inputs={"X": X[:, :2]}), config)


def written(folder, end, **facts):
    """Return a file of ortpipe whose prediction y is `end` of z = X·w, [N, 1]."""
    text = "g (double[N,3] X) => (double[N,K] y) <double[3,1] w = {1, 0.25, 0}> { z = MatMul(X, w) n = Neg(z) "
    text += f"y = {end} }}"
    model = onnx.load(path := onnx_file(folder, text))
    facts = Facts(**{"task": "binary", "logits": "y", "classes": (0, 1)} | facts, **PLACES)
    onnx.helper.set_model_props(model, dict(metadata_of(facts)))
    onnx.save(model, path)
    return TeacherConfig(path=path, **ONNX)


PLACES = {"inputs": ("X",), "outputs": ("y",), "prediction": "y", "parameters": ("w",)}
VALUE = {"task": "regression", "logits": None, "classes": None}


def test_a_file_of_ortpipe_teaches_the_mean_of_a_log_link_for_any_number_of_rows(tmp_path):
    config, x = written(tmp_path, "Identity(z)", link="log", **VALUE), np.tile(X, (50, 1))
    got = taught(Data(Rows({"X": x}, np.ones(3000))), config).train.label
    assert np.allclose(got, np.exp(x[:, 0] + x[:, 1] / 4), rtol=1e-12)


@pytest.mark.parametrize("threshold", [None, 0.9])
def test_a_file_of_ortpipe_teaches_the_probabilities_of_opposite_scores(tmp_path, threshold):
    config = written(tmp_path, "Concat <axis = 1> (n, z)", opposite=True, threshold=threshold)
    label = (VALUES > 0).astype(int)
    got = taught(data(label), config).train.heads[SHARES]
    assert np.allclose(got[:, 1], 1 / (1 + np.exp(-(X[:40, 0] + X[:40, 1] / 4))), rtol=1e-12)


@pytest.mark.parametrize("link", ["quantiles", "risk", "survival"])
def test_a_file_of_ortpipe_that_predicts_no_value_is_no_teacher(tmp_path, link):
    with pytest.raises(ModelError, match=f"of these kinds: regression(.|\n)*of kind {link}"):
        taught(data(), written(tmp_path, "Identity(z)", link=link, **VALUE))


def test_the_files_of_settings_and_the_class_have_the_same_defaults():
    folder = Path(__file__).resolve().parents[3] / "conf" / "data" / "teacher"
    for file in folder.glob("*.yaml"):
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        defaults = vars(TeacherConfig(estimator="X"))
        for name in ("augment", "mix", "neighbors"):  # an .onnx model has another alpha
            assert settings.get(name, defaults[name]) == defaults[name], f"{name} in {file.name}"


NETWORKS = {"mlp": MLP(hidden=(4,), dropout=0.0), "members": Tabular(width=4, members=3, dropout=0.0)}


@pytest.mark.parametrize("source", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("classes", [2, 3])
def test_the_loss_of_shares_is_the_log_loss_of_weighted_classes(source, classes):
    names = np.unique(CLASSES)[:classes]
    label = np.where(np.isin(CLASSES, names), CLASSES, names[0])
    rows = taught(data(label), TeacherConfig(**BOOSTING, alpha=0.7, augment=0.5))
    artifact = convert(None, ConvertConfig(source), data=rows)
    model = add_loss(artifact, AddLossConfig(LOSSES["auto"]()), data=rows)
    session, facts = Session(model.model), model.facts
    assert facts.soft

    def outputs(part):
        names_of = [output.name for output in model.model.graph.output]
        return dict(zip(names_of, session.run(feeds(model.model, facts, part)), strict=True))

    if facts.members is None:
        p = np.float64(outputs(rows.train)[facts.prediction])
        p /= p.sum(axis=1, keepdims=True)
        repeated, weights = np.tile(np.arange(classes), len(p)), rows.train.heads[SHARES].ravel()
        oracle = log_loss(repeated, np.repeat(p, classes, axis=0), sample_weight=weights)
        assert np.isclose(outputs(rows.train)["loss"], oracle, rtol=1e-5)
    indices = Artifact(artifact.model, dataclasses.replace(artifact.facts, soft=None))
    hard = add_loss(indices, AddLossConfig(LOSSES["auto"]()))
    feed = feeds(hard.model, hard.facts, rows.validation)
    assert np.isclose(outputs(rows.validation)["loss"], Session(hard.model).run(feed)[0], rtol=1e-5)


def test_a_loss_that_cannot_read_shares_is_rejected():
    rows = taught(data(CLASSES), TeacherConfig(**BOOSTING, augment=0))
    artifact = convert(None, ConvertConfig(MLP(hidden=(4,), dropout=0.0)), data=rows)
    with pytest.raises(LossError, match=r"the loss must read shares of classes[\s\S]*cross_entropy or log"):
        add_loss(artifact, AddLossConfig(LOSSES["one_vs_rest"]()), data=rows)
    values = convert(
        None, ConvertConfig(MLP(hidden=(4,), task="regression")), data=(numbers := data(np.arange(COUNT) % 3))
    )
    predictions = taught(numbers, TeacherConfig(**BOOSTING, augment=0))
    with pytest.raises(LossError, match=r"Teacher and model must have one task[\s\S]*Regressor"):
        add_loss(values, AddLossConfig(LOSSES["l2"]()), data=predictions)


@pytest.mark.parametrize(
    ("settings", "label", "message"),
    [
        ({"estimator": f"{MINE}:Mute"}, VALUES, "must have the method predict[\\s\\S]*Mute without predict"),
        ({"estimator": f"{MINE}:Missing"}, VALUES, "must be a function or a class of its module"),
        (
            {"estimator": f"{MINE}:Constant", "params": {"count": 7}},
            VALUES,
            "prediction for every row[\\s\\S]*for 40 rows",
        ),
        ({"estimator": f"{MINE}:Constant", "params": {"prediction": np.nan}}, VALUES, "nan or infinite predictions"),
        (
            {"estimator": f"{MINE}:Constant", "params": {"prediction": "d"}},
            CLASSES,
            "must know the classes of the labels",
        ),
        ({"estimator": f"{MINE}:known_classes"}, CLASSES, "must know the classes[\\s\\S]*'x', 'y'"),
        ({"estimator": "sklearn.linear_model.Ridge"}, CLASSES, "must be able to fit the training rows[\\s\\S]*Ridge"),
        ({**BOOSTING, "folds": 41}, VALUES, "folds must fit the training rows"),
        (BOOSTING, np.stack([VALUES] * 2, axis=1)[:, :, None], "with a class, or with values, as the only label"),
    ],
    ids=["no predict", "no class", "rows", "nan", "word", "classes", "fit", "folds", "steps"],
)
def test_a_teacher_that_does_not_fit_is_rejected_before_training(settings, label, message):
    with pytest.raises(DataError, match=message):
        taught(data(label), TeacherConfig(**settings))


def test_labels_of_heads_are_not_dropped_by_a_teacher():
    with pytest.raises(DataError, match=r"only label[\s\S]*heads \['size'\][\s\S]*Remove .*heads.*teacher.*"):
        taught(data(CLASSES, heads={"size": VALUES}), TeacherConfig(**BOOSTING))


def known_classes():
    return DummyClassifier(strategy="prior").fit([[0], [1]], ["x", "y"])


def test_a_pickle_needs_trust_and_a_teacher_a_source(tmp_path):
    joblib.dump(LogisticRegression(), tmp_path / "t.pkl")
    with pytest.raises(ConfigError, match="A pickle runs code when it is opened"):
        TeacherConfig(path=str(tmp_path / "t.pkl"))
    with pytest.raises(ConfigError, match="path must be a file"):
        TeacherConfig(path=str(tmp_path / "none.pkl"), trust=True)
    with pytest.raises(ConfigError, match="A teacher is an estimator or a file"):
        TeacherConfig()


def test_no_column_replaces_another_of_the_same_name():
    three = {"X": X[:, :2], "X_1": X[:, 2], "when": np.full(COUNT, "2020-03-02"), "when month": 10 * X[:, 0]}
    rows = Rows(
        three, VALUES, kept={"when": RawColumn("date"), "X_1": RawColumn("number"), "when month": RawColumn("number")}
    )
    days = (np.datetime64("2020-03-02") - np.datetime64("1970-01-01")).astype(int)
    expected = [X[:, 0], X[:, 1], X[:, 2], np.full(COUNT, days), 10 * X[:, 0], np.full(COUNT, 3), np.full(COUNT, 0)]
    np.testing.assert_array_equal(Features(HistGradientBoostingRegressor(), rows)(rows), np.stack(expected, axis=1))
    assert list(frame_of(rows)) == ["X_0", "X_1_", "X_1", "when", "when month"]


def test_pictures_become_features_at_once():
    rows = Rows({"X": np.arange(300_000.0).reshape(2, 3, 50_000)}, np.zeros(2))
    profile = cProfile.Profile()
    features = profile.runcall(Features(HistGradientBoostingRegressor(), rows), rows)
    np.testing.assert_array_equal(features, np.arange(300_000.0).reshape(2, -1))
    assert sum(entry.callcount for entry in profile.getstats()) < 5 * 150_000  # a Series of each column takes 50 calls
