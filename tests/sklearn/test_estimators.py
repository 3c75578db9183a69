"""OrtClassifier and OrtRegressor: scikit-learn's own checks, what they train, and what stays of a training."""

from __future__ import annotations

import pickle
import re
import signal
import warnings

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge, RidgeClassifier, SGDClassifier
from sklearn.metrics import log_loss, mean_poisson_deviance, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from ortpipe import convert
from ortpipe.data.sources.parquet import Parquet
from ortpipe.errors import ConfigError, ConvertError, DataError, OrtpipeError
from ortpipe.runtime.session import Session
from ortpipe.sklearn import OrtClassifier, OrtRegressor
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.train.optimizers import OPTIMIZERS

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
SMALL = {"hidden": (8,), "epochs": 10}


BOTH_SOLVERS = [
    OrtClassifier(hidden=(10,), epochs=20, batch_size=200, learning_rate=0.1),
    OrtRegressor(hidden=(5,), optimizer="lbfgs", epochs=15),
]


@parametrize_with_checks(BOTH_SOLVERS)
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they fit columns of [N, 1], and pass what is no array
        check(estimator)


def test_one_row_alone_cannot_be_held_out():
    with pytest.raises(DataError, match="1 sample"):
        OrtRegressor(early_stopping=True).fit([[1.0, 2.0]], [1.0])


def test_the_trained_model_predicts_what_the_estimator_does_in_the_users_labels():
    classifier = OrtClassifier(**SMALL, dtype="float32").fit(X, NAMES)
    label, probability = Session(classifier.onnx_).run({"X": X.astype(np.float32)}, ["label", "probabilities"])
    assert (label == classifier.predict(X)).all()
    np.testing.assert_allclose(probability, classifier.predict_proba(X), atol=1e-6)
    assert classifier.classes_.tolist() == ["setosa", "versicolor", "virginica"]


def test_the_history_holds_the_loss_of_each_epoch_and_of_the_rows_held_out():
    classifier = OrtClassifier(hidden=(8,), epochs=300, early_stopping=True, patience=2, learning_rate=0.1).fit(X, Y)
    losses, validation = classifier.history_["loss"], classifier.history_["validation_loss"]
    assert len(losses) == len(validation) == classifier.n_iter_ < 300
    assert min(validation) == validation[-3]
    assert any("stopped after epoch" in note for note in classifier.notes_)
    rare = OrtClassifier(hidden=(8,), epochs=2, early_stopping=True).fit(X[:101], Y[:101])
    assert len(rare.history_["validation_loss"]) == 2
    full = OrtClassifier(hidden=(8,), epochs=5, optimizer="lbfgs").fit(X, Y)
    np.testing.assert_allclose(full.history_["loss"][-1], log_loss(Y, full.predict_proba(X)), rtol=1e-9)


def test_the_same_seed_gives_the_same_bytes_and_numpys_global_state_stays():
    state = np.random.get_state()[1].tolist()
    first, second, other = (
        OrtClassifier(**SMALL, random_state=seed).fit(X, Y).onnx_.SerializeToString() for seed in (3, 3, None)
    )
    assert first == second != other
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize("optimizer", [None, "lbfgs"])
def test_a_row_of_weight_two_counts_as_the_row_twice(optimizer):
    settings = {**SMALL, "optimizer": optimizer, "batch_size": 1000}
    weight = np.arange(len(X)) % 3
    weighted = OrtClassifier(**settings).fit(X, Y, sample_weight=weight)
    repeated = OrtClassifier(**settings).fit(X.repeat(weight, axis=0), Y.repeat(weight))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-6)


def test_balanced_classes_weigh_the_same():
    rare = np.r_[0:50, 50:55]
    counts = [
        (OrtClassifier(**SMALL, class_weight=w).fit(X[rare], Y[rare]).predict(X) == 1).sum() for w in (None, "balanced")
    ]
    assert counts[0] < counts[1]


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(C=10.0, tol=1e-9),
        RidgeClassifier(),
        SGDClassifier("log_loss", alpha=0.01, tol=None, max_iter=2000, random_state=0),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_class_weights_of_the_model_count(model, weighted):
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 3))
    labels = (rows[:, 0] + random.normal(size=400) > 1.8).astype(int)
    weight = random.uniform(1, 5, 400) if weighted else None
    own = clone(model).set_params(class_weight="balanced").fit(rows, labels, sample_weight=weight)
    exact = {"optimizer": "lbfgs", "epochs": 200, "dtype": "float64"}
    trained = OrtClassifier(own, **exact).fit(rows, labels, weight)
    np.testing.assert_allclose(
        trained.decision_function(rows), own.decision_function(rows), atol=0.1 if "SGD" in str(model) else 1e-4
    )
    assert not any("=" in note and "class" in note for note in trained.notes_)  # which name keys of a config


@pytest.mark.parametrize("setting", ["balanced", {1: 4.0}])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_own_class_weights_are_those_of_scikit_learns_softmax(setting, weighted):
    random = np.random.default_rng(0)
    rows = random.normal(size=(200, 3))
    labels = np.digitize(rows[:, 0] + random.normal(size=200), [0.5, 1.8])
    weight = random.uniform(1, 5, 200) if weighted else None
    model = LogisticRegression(C=10.0, tol=1e-9)
    own = clone(model).set_params(class_weight=setting).fit(rows, labels, sample_weight=weight)
    exact = {"optimizer": "lbfgs", "epochs": 100, "dtype": "float64"}
    trained = OrtClassifier(model.fit(rows, labels), class_weight=setting, **exact).fit(rows, labels, weight)
    np.testing.assert_allclose(trained.predict_proba(rows), own.predict_proba(rows), atol=1e-4)


def test_notes_name_arguments_and_no_settings_of_a_config(tmp_path):
    fixed = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,4] x) => (float[2,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { y = MatMul(x, w) }""")
    onnx.save(fixed, tmp_path / "fixed.onnx")
    still = {"learning_rate": 1e-30, "epochs": 2, "batch_size": 150}
    notes = OrtClassifier(SVC(), **still).fit(X, Y).notes_
    notes += OrtRegressor(OnnxFile(str(tmp_path / "fixed.onnx"), batch="rows"), **still).fit(X, X[:, :2]).notes_
    assert any("batch=rows" in note for note in notes)
    assert any("each node can have its own" in note for note in notes)
    assert any("the loss did not change" in note and "(model.task, model.scores)" in note for note in notes)
    assert not [note for note in notes if re.search(r"\b(convert|add_loss|derive|train|data)[.=]|untie", note)]


def test_targets_and_labels_may_have_columns():
    wide, y = load_diabetes(return_X_y=True)
    regressor = OrtRegressor(hidden=(8,), epochs=60, learning_rate=0.05).fit(wide, np.stack([y, -9 * y], axis=1))
    assert regressor.score(wide, np.stack([y, -9 * y], axis=1)) > 0.45
    labels = np.stack([Y > 0, Y == 1], axis=1).astype(int)
    classifier = OrtClassifier(hidden=(8,), epochs=60, learning_rate=0.05).fit(X, labels)
    assert classifier.predict_proba(X).shape == classifier.predict(X).shape == labels.shape
    assert classifier.score(X, labels) > 0.9


def test_a_loss_with_a_logarithm_as_link_predicts_its_mean():
    counts = np.random.default_rng(0).poisson(np.exp(X[:, 0] - 4))
    regressor = OrtRegressor(hidden=(4,), loss="poisson", epochs=100, learning_rate=0.05).fit(X, counts)
    assert regressor.predict(X).mean() == pytest.approx(counts.mean(), rel=0.05)
    assert mean_poisson_deviance(counts, regressor.predict(X)) < mean_poisson_deviance(
        counts, counts.mean().repeat(150)
    )


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (LogisticRegression(max_iter=500), {"coefficient", "intercept"}),
        (make_pipeline(StandardScaler(), LogisticRegression()), {"coefficient", "intercept"}),
        (MLP(hidden=(8,), dropout=0.1), {"layers.0.weight", "layers.0.bias", "output.weight", "output.bias"}),
    ],
)
def test_any_source_may_be_the_model(model, names):
    classifier = clone(OrtClassifier(model, epochs=8, batch_size=8, learning_rate=0.03)).fit(X, NAMES)
    assert classifier.score(X, NAMES) > 0.9
    assert {tensor.name for tensor in classifier.onnx_.graph.initializer} == names


def test_an_estimator_inside_trains_by_its_own_objective_and_stays_at_its_minimum():
    counts = np.round(np.exp(X[:, 3]))
    own = PoissonRegressor(alpha=0.1, tol=1e-9, max_iter=1000).fit(X[:, :3], counts)
    trained = OrtRegressor(own, optimizer="lbfgs").fit(X[:, :3], counts)
    np.testing.assert_allclose(trained.predict(X[:, :3]), own.predict(X[:, :3]), rtol=1e-6)
    assert "penalty=auto: 0.05·l2 of coefficient" in trained.notes_
    assert all(part in trained._repr_html_() for part in ("Poisson(", "</b> auto"))
    with_other = OrtRegressor(own, loss="l2", optimizer="lbfgs").fit(X[:, :3], counts)
    assert with_other.score(X[:, :3], counts) > r2_score(counts, own.predict(X[:, :3])) + 0.005


@pytest.mark.parametrize(
    ("estimator", "own"),
    [
        (OrtRegressor, Ridge(alpha=10.0)),
        (OrtRegressor, Lasso(alpha=1.0, tol=1e-10)),
        (OrtClassifier, LogisticRegression(C=0.1, tol=1e-10, max_iter=1000)),
    ],
)
def test_rows_weights_change_an_estimators_own_penalty_no_more_than_in_scikit_learn(estimator, own):
    weight = np.random.default_rng(0).integers(0, 6, len(X)).astype(float)  # their sum is not the number of rows
    labels, expected = (Y, "decision_function") if estimator is OrtClassifier else (X[:, 3] * 10, "predict")
    weighed = estimator(own, optimizer="lbfgs").fit(X[:, :3], labels, weight)
    again = np.repeat(np.arange(len(X)), weight.astype(int))
    for other in (clone(own).fit(X[:, :3], labels, weight), clone(weighed).fit(X[again, :3], labels[again])):
        np.testing.assert_allclose(*(getattr(m, expected)(X[:, :3]) for m in (weighed, other)), atol=1e-4)


def test_an_onnx_model_goes_on_with_the_classes_of_the_labels():
    first = OrtClassifier(**SMALL).fit(X, Y)
    further = OrtClassifier(first.onnx_, epochs=40, learning_rate=0.05).fit(X[Y < 2], Y[Y < 2])
    assert further.classes_.tolist() == [0, 1, 2]
    assert further.predict_proba(X).shape == (150, 3)
    assert further.score(X[Y < 2], Y[Y < 2]) == 1
    renamed = OrtClassifier(first.onnx_, epochs=40, learning_rate=0.05).fit(X, NAMES)
    assert renamed.score(X, NAMES) > 0.9
    assert renamed.notes_[0] == "the model's classes 0 to 2 are assumed to be setosa, versicolor, virginica"
    with pytest.raises(ConvertError, match="a multiclass model"):
        OrtRegressor(first.onnx_).fit(X, Y * 1.0)


def test_raw_scores_of_a_file_become_a_classifier(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[N,4] x) => (float[N,3] z)
      <float[4,3] w = {0,0,0,0,0,0,0,0,0,0,0,0}, float[3] b = {0,0,0}> { h = MatMul(x, w) z = Add(h, b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "scores.onnx")
    classifier = OrtClassifier(tmp_path / "scores.onnx", optimizer="lbfgs").fit(X, NAMES)
    assert classifier.score(X, NAMES) > 0.95
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1, rtol=1e-6)


def test_partial_fit_and_warm_starts_go_on_with_weights_and_moments():
    parts = OrtClassifier(hidden=(8,)).partial_fit(X[:100], Y[:100], classes=[0, 1, 2])
    parts = pickle.loads(pickle.dumps(parts)).partial_fit(X, Y, sample_weight=np.ones(150))
    assert parts.n_iter_ == len(parts.history_["loss"]) == 2
    assert parts.predict_proba(X).shape == (150, 3)
    with pytest.raises(DataError, match="Name all classes"):
        OrtClassifier(hidden=(8,)).partial_fit(X[:100], Y[:100]).partial_fit(X, Y)
    with pytest.raises(ConfigError, match="does not know the last step"):
        OrtClassifier(schedule="cosine").partial_fit(X, Y)
    warm = OrtClassifier(**SMALL, warm_start=True, schedule="constant").fit(X, Y).fit(X, Y)
    whole = OrtClassifier(hidden=(8,), epochs=20, schedule="constant").fit(X, Y)
    assert warm.history_ == whole.history_
    assert warm.onnx_.SerializeToString() == whole.onnx_.SerializeToString()


@pytest.fixture
def listens_to_ctrl_c():
    """Python's own handler: a shell starts what runs in the background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_a_callback_or_ctrl_c_ends_the_fit_with_what_is_trained():
    def interrupt(epoch):
        if epoch.number == 3:
            signal.raise_signal(signal.SIGINT)

    for optimizer in (None, "lbfgs"):
        with pytest.warns(UserWarning, match="interrupted after 3 of 10"):
            interrupted = OrtClassifier(**SMALL, optimizer=optimizer, callbacks=[interrupt]).fit(X, Y)
        assert interrupted.n_iter_ == len(interrupted.history_["loss"]) == 3
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ended = OrtClassifier(**SMALL, optimizer=optimizer, callbacks=[lambda epoch: epoch.number == 4]).fit(X, Y)
        assert ended.n_iter_ == 4


def test_a_grid_searches_in_threads_over_the_rate_and_keeps_the_names_of_columns():
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), OrtClassifier(**SMALL))
    with parallel_config("threading"):
        grid = GridSearchCV(pipeline, {"ortclassifier__learning_rate": [1e-5, 0.1]}, cv=2, n_jobs=2).fit(frame, NAMES)
    assert grid.best_params_ == {"ortclassifier__learning_rate": 0.1}
    last = grid.best_estimator_[-1]
    assert last.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert any(entry.key == "ortpipe.columns" and '"d"' in entry.value for entry in last.onnx_.metadata_props)


def test_a_frame_may_hold_words_dates_and_missing_values():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 80, 200).astype(float), "city": rng.choice(["Bonn", "Ulm"], 200)})
    y = np.where((frame.age > 50) ^ (frame.city == "Ulm"), "yes", "no")
    frame = frame.assign(
        day=pd.date_range("2020-02-28", periods=200), kind=pd.Categorical(frame.age // 30), ok=frame.age > 30
    )
    frame.loc[::9, "age"], frame.loc[::11, "city"] = np.nan, None
    classifier = OrtClassifier(epochs=40, learning_rate=0.02).fit(frame, y, sample_weight=np.arange(200) > 4)
    assert classifier.score(frame, y) > 0.85
    assert [value.name for value in classifier.onnx_.graph.input] == ["age", "city", "day", "kind", "ok"]
    assert classifier.predict(frame[3:4].assign(city="Rom")).tolist() in (["yes"], ["no"])
    assert pickle.loads(pickle.dumps(classifier)).partial_fit(frame, y).n_iter_ == 41
    with pytest.raises(DataError, match="the same named columns"), pytest.warns(UserWarning, match="feature names"):
        classifier.predict(frame.to_numpy())
    with pytest.raises(DataError, match="column 'age' of"):
        classifier.predict(frame.assign(age="old"))


def test_a_frame_may_hold_categories_as_polars_writes_them():
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 20), pa.array(["a", "b"], pa.string_view()))
    frame, y = pa.table({"w": words, "x": np.arange(60.0)}), np.array([0, 1, 0] * 20)
    assert OrtClassifier(epochs=30, learning_rate=0.05).fit(frame, y).score(frame, y) == 1
    with pytest.raises(DataError, match="column 'w' of X, of type list"):
        OrtClassifier().fit(pa.table({"w": pa.array([[1]] * 60)}), y)
    with pytest.raises(DataError, match="one class each"):
        OrtClassifier(class_weight="balanced").fit(
            X, np.eye(3, dtype=int)[Y] + np.eye(3, dtype=int)[0] * (Y > 0)[:, None]
        )


def test_a_pipeline_that_chooses_columns_by_name_reads_them_so():
    frame = pd.DataFrame(X, columns=list("abcd")).assign(word=np.where(X[:, 0] > 5, "large", "small"))
    chosen = ColumnTransformer([("n", StandardScaler(), ["c", "d"]), ("w", OneHotEncoder(), ["word"])])
    pipeline = make_pipeline(chosen, LogisticRegression()).fit(frame, NAMES)
    classifier = OrtClassifier(pipeline, epochs=1, learning_rate=1e-9).fit(frame, NAMES)
    np.testing.assert_allclose(classifier.predict_proba(frame), pipeline.predict_proba(frame), atol=1e-5)
    assert [value.name for value in classifier.onnx_.graph.input] == ["c", "d", "word"]


def test_a_skops_file_holds_the_estimator_and_names_its_types():
    classifier = OrtClassifier(**SMALL, optimizer=OPTIMIZERS["adam"](lr=0.1)).fit(X, NAMES)
    import skops.io

    stored = skops.io.dumps(classifier)
    types = skops.io.get_untrusted_types(data=stored)
    assert types == ["ortpipe.sklearn.classifier.OrtClassifier", "ortpipe.stages.train.optimizers.adam.Adam"]
    loaded = skops.io.loads(stored, trusted=types)
    np.testing.assert_array_equal(loaded.predict_proba(X), classifier.predict_proba(X))


def test_a_notebook_shows_the_stages_and_the_curve_and_a_bar_where_it_is_asked_for(capsys):
    classifier = OrtClassifier(**SMALL, penalty=0.01)
    assert "<svg width" not in classifier._repr_html_()
    shown = classifier.set_params(verbose=1).fit(X, Y)._repr_mimebundle_()["text/html"]
    assert "MLP (8,)" in shown
    assert "CrossEntropy" in shown
    assert shown.count("<polyline") == 1
    assert "10/10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "adm"}, "'adam'"),
        ({"loss": "l2"}, "must fit multiclass labels"),
        ({"epochs": "5"}, "epochs=5"),
        ({"model": 3}, "must be a model"),
        ({"model": "mpl"}, "'mlp'"),
        ({"optimizer": "lbfgs", "learning_rate": 0.1}, "no setting 'lr'"),
        ({"optimizer": "lbfgs", "schedule": "cosine"}, "chooses its own step sizes"),
        ({"early_stopping": True, "validation_fraction": 2}, "validation_fraction"),
        ({"penalty": {"nothing": {"l2": 1}}}, "nothing"),
        ({"penalty": "l2"}, "must be a number, auto"),
        ({"hidden": 5}, "hidden must be a sequence"),
        ({"callbacks": print}, "callbacks must be a sequence"),
        ({"dtype": "float16"}, "dtype must be"),
    ],
)
def test_what_means_nothing_is_refused_by_name(settings, said):
    with pytest.raises(OrtpipeError, match=said):
        OrtClassifier(**settings).fit(X, Y)


def test_digits_are_learned_as_well_as_by_scikit_learn():
    images, digits = load_digits(return_X_y=True)
    classifier = OrtClassifier(epochs=30).fit(images[::2], digits[::2])
    assert classifier.score(images[1::2], digits[1::2]) > 0.95


def test_labels_of_pandas_own_types_come_back_as_numbers_and_truth_values_and_intervals_are_words():
    x = pd.DataFrame({"length": pd.cut(X[:100, 0], 3), "width": X[:100, 1]})
    quick = OrtClassifier(hidden=(2,), epochs=1)
    for labels, dtype in (
        (pd.Series(Y[:100], dtype="Int64"), np.int64),
        (pd.Series(Y[:100] > 0, dtype="boolean"), bool),
    ):
        assert quick.fit(x, labels).predict(x).dtype == dtype
    assert [column.kind for column in quick._columns.values()] == ["word", "number"]
    with pytest.raises(DataError, match="all strings or all numbers"):
        quick.fit(x, np.where(Y[:100] > 0, "yes", Y[:100].astype(object)))


TRUTH = pd.DataFrame({"length": X[:100, 0], "vip": X[:100, 1] > 0, "city": np.where(X[:100, 2] > 4, "x", "y")})


@pytest.mark.parametrize(
    ("model", "columns"),
    [
        (LogisticRegression(), ["length", "vip"]),
        (LogisticRegression(), ["vip"]),
        (make_pipeline(StandardScaler(), LogisticRegression()), ["length", "vip"]),
        (make_pipeline(OneHotEncoder(), LogisticRegression()), ["vip", "city"]),
        (
            make_pipeline(
                ColumnTransformer([("city", OneHotEncoder(), ["city"])], remainder="passthrough"), LogisticRegression()
            ),
            ["length", "vip", "city"],
        ),
    ],
)
@pytest.mark.parametrize("fitted", [True, False])
def test_truth_values_are_for_scikit_learn_what_they_are_without_ortpipe(model, columns, fitted):
    x, y = TRUTH[columns], Y[:100]
    oracle = clone(model).fit(x, y)
    # a step of next to no length: the model still predicts what scikit-learn fitted
    ours = OrtClassifier(oracle if fitted else clone(model), epochs=1, learning_rate=1e-9).fit(x, y)
    np.testing.assert_allclose(ours.predict_proba(x), oracle.predict_proba(x), atol=1e-6)
    with pytest.raises(DataError, match=r"'vip' must hold true and false(.|\n)*'maybe' in row 3 of X"):
        ours.predict(x.astype({"vip": object}).assign(vip=lambda x: x.vip.where(x.index != 3, "maybe").astype(str)))


@pytest.mark.parametrize(
    "column",
    [pd.to_timedelta(range(100), "h"), pd.period_range("2020", periods=100), pd.interval_range(0, 100), [b"a"] * 100],
    ids=["timedelta", "period", "interval", "bytes"],
)
def test_columns_of_other_types_are_rejected_as_the_command_line_rejects_them(column, tmp_path):
    frame = pd.DataFrame({"length": X[:100, 0], "odd": column})
    with pytest.raises(DataError, match="column 'odd' of X, of type"):
        OrtClassifier(epochs=1).fit(frame, Y[:100])
    frame.assign(y=Y[:100]).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"column 'odd' of .*, of type"):
        Parquet(path=str(tmp_path / "rows.parquet"), label="y")()


@pytest.mark.parametrize("column", [pd.arrays.SparseArray([0, 1] * 50), np.ones(100) * 1j], ids=["sparse", "complex"])
def test_columns_that_arrow_does_not_know_are_rejected(column):
    frame = pd.DataFrame({"length": X[:100, 0], "odd": column})
    with pytest.raises(DataError, match=r"values of one type(.|\n)*column odd"):
        OrtClassifier(epochs=1).fit(frame, Y[:100])


def test_integers_above_2_to_the_53_become_the_nearest_float_in_every_frame():
    big = np.array([2**53 + 1, 2**60 + 2**36 + 1, -(2**62) - 3] * 20)
    frame = pd.DataFrame({"big": big, "city": ["x", "y"] * 30})
    kept = OrtClassifier(epochs=1).fit(frame, np.arange(60) % 2)
    for other in (
        frame.astype({"big": float}),
        frame.astype({"big": "Int64"}),
        frame.astype({"big": "int64[pyarrow]"}),
    ):
        np.testing.assert_array_equal(kept.predict_proba(other), kept.predict_proba(frame))
    plain = OrtClassifier(epochs=1).fit(frame[["big"]], np.arange(60) % 2)
    np.testing.assert_array_equal(
        plain.predict_proba(frame[["big"]].astype(float)), plain.predict_proba(frame[["big"]])
    )


def test_an_encoder_fitted_on_none_and_nan_reads_missing_words_as_none():
    words = pd.DataFrame({"w": pd.Series(["a", None, np.nan, "b"] * 10, dtype=object)})
    pipeline = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    pipeline.fit(words, np.arange(40) % 3 > 0)
    [made] = Session(convert(pipeline).model).run({"w": np.array(["a", "", "b"], object)}, ["probabilities"])
    np.testing.assert_allclose(made, pipeline.predict_proba(words.iloc[[0, 1, 3]]), atol=1e-6)


def test_labels_and_losses_of_the_other_task_are_refused_in_the_words_of_python():
    with pytest.raises(DataError, match=r"got: labels such as 'a'(.|\n)*Use OrtClassifier"):
        OrtRegressor().fit(X[:4], ["a", "b", "a", "b"])
    with pytest.raises(ConfigError, match=r"loss must fit multiclass labels(.|\n)*got: L2(.|\n)*'cross_entropy'"):
        OrtClassifier(loss="l2").fit(X, Y)
