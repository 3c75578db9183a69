import dataclasses
import functools
import pickle
from pathlib import Path

import joblib
import numpy as np
import onnx
import pytest
from sample import pairs
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_iris, load_linnerud
from sklearn.decomposition import NMF, MiniBatchDictionaryLearning
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.impute import KNNImputer
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    Ridge,
    SGDClassifier,
    SGDRegressor,
    TheilSenRegressor,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import OneClassSVM
from sklearn.utils.validation import check_is_fitted

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, ConvertError
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.convert.sources.estimators import class_path
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.convert.stage import convert

FIT = slice(0, None, 2)  # every second row is fitted on, the others are predicted
SMALL = {"hidden_layer_sizes": (6, 5), "max_iter": 40, "random_state": 0}
LOG = {"loss": "log_loss", "random_state": 0}


@functools.cache
def loaded(load):
    return load(return_X_y=True)


def regression():
    return loaded(load_diabetes)


def many_targets():
    return loaded(load_linnerud)


def one_column():
    x, y = regression()
    return x, y[:, None]


def binary_numbers():
    x, y = loaded(load_iris)
    return x, np.where(y == 1, 2, -1)


def binary_words():
    x, y = loaded(load_iris)
    return x, np.where(y == 1, "yes", "no")


def truths():
    x, y = loaded(load_iris)
    return x, y == 1


def multiclass_numbers():
    x, y = loaded(load_iris)
    return x, y * 2 - 1


def multiclass_words():
    x, y = loaded(load_iris)
    return x, load_iris().target_names[y]


def multiclass_objects():
    x, y = multiclass_words()
    return x, y.astype(object)


def multilabel():
    x, y = loaded(load_iris)
    return x, np.stack([y == 0, y > 0, x[:, 0] > 5.8], axis=1).astype(int)


CLASSES = (binary_numbers, binary_words, truths, multiclass_numbers, multiclass_words, multiclass_objects)
MEMBERS = [  # estimator, the labels it learns
    *((estimator, regression) for estimator in (LinearRegression(), Ridge(), Lasso(), ElasticNet())),
    *((estimator, many_targets) for estimator in (LinearRegression(), Ridge(), Lasso(), ElasticNet())),
    (LinearRegression(), one_column),
    (LinearRegression(fit_intercept=False), regression),
    (Ridge(fit_intercept=False), many_targets),
    (SGDRegressor(random_state=0), regression),
    *((LogisticRegression(max_iter=500), labels) for labels in CLASSES),
    (LogisticRegression(solver="liblinear"), binary_words),
    (LogisticRegression(fit_intercept=False, max_iter=500), multiclass_words),
    *((SGDClassifier(**LOG), labels) for labels in CLASSES),
    *((MLPRegressor(**SMALL, activation=a), regression) for a in ("relu", "tanh", "logistic", "identity")),
    (MLPRegressor(**SMALL), many_targets),
    (MLPRegressor(**SMALL, loss="poisson"), regression),
    (MLPRegressor(hidden_layer_sizes=(), max_iter=40, random_state=0), regression),
    *((MLPClassifier(**SMALL), labels) for labels in (*CLASSES, multilabel)),
    (MLPClassifier(**SMALL, activation="tanh"), multilabel),
]
SCALERS = {
    "alone": [],
    "standard": [StandardScaler()],
    "minmax": [MinMaxScaler()],
    "centred": [StandardScaler(with_std=False)],
    "clipped": [MinMaxScaler(feature_range=(-1, 0.5), clip=True)],
    "both": [MinMaxScaler(), StandardScaler(with_mean=False)],
}
# How a scaler is written does not depend on what follows: every member alone and behind two, and one of each task.
OF_EACH_TASK = (
    (Ridge(), regression),
    (LogisticRegression(max_iter=500), binary_words),
    (MLPClassifier(**SMALL), multilabel),
)
SCALED = [
    *((member, scalers) for scalers in ("alone", "both") for member in MEMBERS),
    *((member, scalers) for member in OF_EACH_TASK for scalers in SCALERS if scalers not in ("alone", "both")),
]
quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
fit_cache = {}


def ids(member):
    if isinstance(member, str):
        return None
    if isinstance(member[1], str):
        return f"{ids(member[0])}-{member[1]}"
    return f"{type(member[0]).__name__}-{member[1].__name__}"


def fitted(estimator, labels, scalers="alone"):
    key = repr((estimator, labels, scalers))
    if key not in fit_cache:
        x, y = labels()
        fit_cache[key] = clone(make_pipeline(*SCALERS[scalers], estimator)).fit(x[FIT], y[FIT])
    steps = fit_cache[key]
    return steps if scalers != "alone" else steps[-1]


def as_config(dtype, estimator="sklearn.linear_model.Ridge", **source):
    return ConvertConfig(SklearnEstimator(estimator, **source), dtype=dtype)


@functools.cache
def converted(estimator, labels, scalers="alone", dtype="float32"):
    """Return an artifact that several tests look at."""
    return convert(fitted(estimator, labels, scalers), as_config(dtype))


def outputs(artifact, x):
    session = Session(artifact.model)
    return dict(zip(session.outputs, session.run({"X": x}), strict=True))


def rows(labels):
    x, y = labels()
    return Data(Rows({"X": x[FIT]}, y[FIT]))


def test_the_catalogues_are_whole():
    assert (SOURCES["onnx"], SOURCES["sklearn"]) == (OnnxFile, SklearnEstimator)


@quiet
@pytest.mark.parametrize(("scaled", "dtype"), pairs(SCALED, ["float32", "float64"], 2), ids=ids)
def test_the_model_predicts_what_its_estimator_predicts_on_other_rows(scaled, dtype):
    (estimator, labels), scalers = scaled
    source, artifact = fitted(estimator, labels, scalers), converted(estimator, labels, scalers, dtype)
    facts = artifact.facts
    x = labels()[0][1::2].astype(dtype)
    found = outputs(artifact, x)
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    if facts.task == "regression":
        expected = source.predict(x.astype(np.float64)).reshape(len(x), -1)
    else:
        expected = source.predict_proba(x.astype(np.float64))
        predicted = source.predict(x.astype(np.float64))
        np.testing.assert_array_equal(found["label"], predicted)
    assert found[facts.prediction].dtype == dtype
    np.testing.assert_allclose(
        found[facts.prediction], expected, rtol=tolerance * 10, atol=tolerance * max(1, np.abs(expected).max())
    )


@quiet
@pytest.mark.parametrize("scalers", ["alone", "both"])
@pytest.mark.parametrize("member", MEMBERS, ids=ids)
def test_every_model_is_in_standard_operators_with_named_float_parameters(member, scalers):
    artifact = converted(*member, scalers)
    onnx.checker.check_model(artifact.model, full_check=True)
    assert {node.domain for node in artifact.model.graph.node} == {""}
    assert {o.domain for o in artifact.model.opset_import} == {""}
    weights = {t.name: t for t in artifact.model.graph.initializer}
    assert tuple(weights) == artifact.facts.parameters
    assert {t.data_type for t in weights.values()} == {onnx.TensorProto.FLOAT}
    last = member[0]
    if "MLP" in type(last).__name__:
        layers = len(last.hidden_layer_sizes) + 1
        expected = {f"layer{i}.{part}" for i in range(layers) for part in ("weight", "bias")}
    else:
        expected = {"coefficient", "intercept"} if last.fit_intercept else {"coefficient"}
    assert set(weights) == expected


@quiet
@pytest.mark.parametrize("member", MEMBERS, ids=ids)
def test_facts_say_what_the_model_means(member):
    estimator, labels = member
    facts = converted(estimator, labels).facts
    y = labels()[1]
    kind = labels.__name__.partition("_")[0]
    task = {"many": "regression", "one": "regression", "truths": "binary"}.get(kind, kind)
    assert facts.task == task
    assert facts.inputs == ("X",)
    if task == "regression":
        assert (facts.outputs, facts.prediction) == (("prediction",), "prediction")
        assert facts.logits is None
        assert facts.classes is None
    else:
        assert (facts.outputs, facts.prediction, facts.logits) == (
            ("label", "probabilities"),
            "probabilities",
            "logits",
        )
        assert facts.classes == (None if task == "multilabel" else tuple(np.unique(y).tolist()))
        assert {type(c) for c in facts.classes or ()} <= {int, str}


@quiet
@pytest.mark.parametrize("member", [m for m in MEMBERS if m[1] is not regression], ids=ids)
def test_probabilities_follow_from_the_logits(member):
    artifact = converted(*member, dtype="float64")
    if artifact.facts.logits is None:
        return
    model = onnx.ModelProto()
    model.CopyFrom(artifact.model)
    model.graph.output.append(next(v for v in model.graph.value_info if v.name == artifact.facts.logits))
    logits, p = Session(model).run({"X": member[1]()[0]}, ["logits", "probabilities"])
    if artifact.facts.task == "multiclass":
        expected = np.exp(logits - logits.max(axis=1, keepdims=True))
        expected /= expected.sum(axis=1, keepdims=True)
    else:
        expected = 1 / (1 + np.exp(-logits))
        expected = expected if artifact.facts.task == "multilabel" else np.hstack([1 - expected, expected])
    np.testing.assert_allclose(p, expected, rtol=1e-9, atol=1e-12)


@quiet
@pytest.mark.parametrize(("member", "scalers"), pairs(MEMBERS, ["alone", "standard"], 2), ids=ids)
def test_an_estimator_that_is_not_fitted_is_fitted_on_a_clone(member, scalers):
    estimator, labels = member
    fresh = type(estimator)(**estimator.get_params())
    given = fresh if scalers == "alone" else make_pipeline(StandardScaler(), fresh)
    data = rows(labels)
    before = data.digest()
    made = convert(given, data=data)
    for step in (given, fresh):
        with pytest.raises(NotFittedError):
            check_is_fitted(step)
    assert data.digest() == before
    expected = convert(fitted(estimator, labels, scalers), data=data)
    assert made.digest() == expected.digest()


@quiet
def test_converting_does_not_change_a_fitted_estimator():
    source = fitted(MLPClassifier(**SMALL), multiclass_words, "both")
    before = pickle.dumps(source)
    convert(source, data=rows(multiclass_words))
    assert pickle.dumps(source) == before


def test_an_estimator_without_rows_must_be_fitted():
    with pytest.raises(ConvertError, match=r"unfitted estimator needs rows(.|\n)*Ridge"):
        convert(Ridge())


@quiet
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_discrepancy_is_recorded_and_small(dtype):
    data = rows(multiclass_words)
    [record] = convert(fitted(MLPClassifier(**SMALL), multiclass_words), as_config(dtype), data=data).facts.lineage
    assert 0 <= record["discrepancy"] < (1e-5 if dtype == "float32" else 1e-12)
    assert record["data"] == data.digest()


def test_a_difference_above_the_tolerance_is_refused():
    config = dataclasses.replace(as_config("float32"), tolerance=1e-12)
    with pytest.raises(ConvertError, match=r"predict what its source predicts(.|\n)*tolerance 1e-12"):
        convert(Ridge().fit(*regression()), config, data=rows(regression))


def test_a_model_that_predicts_something_else_is_refused():
    class Shifted(Ridge):
        __module__ = "sklearn.linear_model._ridge"

        def predict(self, X):
            return super().predict(X) + 1

    Shifted.__name__ = "Ridge"
    with pytest.raises(ConvertError, match="largest difference"):
        convert(Shifted().fit(*regression()), data=rows(regression))


@pytest.mark.parametrize("tolerance", [0, -1e-3])
def test_a_tolerance_is_positive(tolerance):
    with pytest.raises(ConfigError, match="tolerance"):
        ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), tolerance=tolerance)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (RandomForestClassifier, r"RandomForestClassifier(.|\n)*leaf"),
        (OneClassSVM, r"outliers"),
        (lambda: make_pipeline(KNNImputer(), Ridge()), r"before the last(.|\n)*KNNImputer(.|\n)*SimpleImputer"),
        (lambda: make_pipeline(StandardScaler()), "StandardScaler"),
        (
            lambda: make_pipeline(make_pipeline(NMF()), Ridge()),
            r"sklearn\.decomposition\.NMF(.|\n)*PCA or TruncatedSVD",
        ),
        (lambda: make_pipeline(MiniBatchDictionaryLearning(), Ridge()), "take MiniBatchSparsePCA"),
        (lambda: Pipeline([("nothing", "passthrough")]), "end in an estimator"),
        (dict, "dict"),
        (lambda: 3, "int"),
    ],
)
def test_what_cannot_be_converted_is_named(make, message):
    with pytest.raises(ConvertError, match=message):
        convert(make(), data=rows(multiclass_words))


def test_steps_that_do_nothing_are_passed_over():
    x, y = regression()
    pipeline = Pipeline([("a", "passthrough"), ("b", StandardScaler()), ("c", Ridge())]).fit(x, y)
    found = outputs(convert(pipeline), x.astype(np.float32))["prediction"]
    np.testing.assert_allclose(found[:, 0], pipeline.predict(x), rtol=1e-4)


def test_sparse_coefficients_are_converted():
    x, y = multiclass_words()
    estimator = SGDClassifier(loss="log_loss", penalty="l1", random_state=0).fit(x, y).sparsify()
    np.testing.assert_array_equal(outputs(convert(estimator), x.astype(np.float32))["label"], estimator.predict(x))


def test_class_labels_that_are_neither_words_nor_whole_numbers_are_refused():
    x, _ = regression()
    estimator = LogisticRegression().fit(x[:8], [0, 1] * 4)
    estimator.classes_ = np.array([0.5, 1.5])
    with pytest.raises(ConvertError, match=r"strings or integers(.|\n)*0\.5"):
        convert(estimator)


def test_labels_that_an_estimator_cannot_learn_are_refused():
    with pytest.raises(ConvertError, match=r"fit the estimator(.|\n)*Ridge(.|\n)*'setosa'"):
        convert(Ridge(), data=rows(multiclass_words))


def test_an_estimator_takes_one_input():
    x, y = regression()
    with pytest.raises(ConvertError, match=r"one input(.|\n)*'X', 'Z'"):
        convert(Ridge(), data=Data(Rows({"X": x, "Z": x}, y)))


def test_images_are_fitted_as_rows():
    x, y = multiclass_words()
    flat, images = (
        convert(LogisticRegression(max_iter=500), data=Data(Rows({"X": a}, y))) for a in (x, x.reshape(-1, 2, 2))
    )
    assert flat.digest() == images.digest()


@pytest.mark.parametrize("given", [Ridge(), make_pipeline(StandardScaler(), Ridge())], ids=["alone", "pipeline"])
def test_row_weights_are_fitted_with(given):
    x, y = regression()
    weight = np.random.default_rng(0).uniform(0, 3, len(y))
    made = convert(given, data=Data(Rows({"X": x}, y, weight)))
    name = {"sample_weight": weight} if isinstance(given, Ridge) else {"ridge__sample_weight": weight}
    expected = (
        type(given)(**given.get_params()) if isinstance(given, Ridge) else make_pipeline(StandardScaler(), Ridge())
    )
    assert made.digest() == convert(expected.fit(x, y, **name), data=Data(Rows({"X": x}, y, weight))).digest()
    assert made.digest() != convert(given, data=Data(Rows({"X": x}, y))).digest()


@pytest.mark.parametrize(
    ("given", "keyword"),
    [
        (TransformedTargetRegressor(Ridge(), func=np.exp, inverse_func=np.log), "sample_weight"),
        (GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [1.0]}), "ridge__sample_weight"),
    ],
    ids=["target", "search"],
)
def test_row_weights_reach_the_estimator_inside(given, keyword):
    x, y = regression()
    y, weight = y / 100, np.random.default_rng(0).uniform(0, 3, len(y))
    data = Data(Rows({"X": x}, y, weight))
    assert (
        convert(given, data=data).digest() == convert(clone(given).fit(x, y, **{keyword: weight}), data=data).digest()
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [(TheilSenRegressor(), "takes no sample_weight"), (Lasso(), "by their mean"), (Ridge(), None)],
    ids=["none", "on average", "as they are"],
)
def test_it_is_said_what_becomes_of_row_weights(given, said):
    x, y = regression()
    [record] = convert(given, data=Data(Rows({"X": x}, y, np.arange(len(y))))).facts.lineage
    found = [note for note in record["notes"] if "takes no sample_weight" in note or "by their mean" in note]
    assert len(found) == (said is not None)
    assert all(said in note for note in found)


def test_class_weights_that_an_objective_lacks_are_named():
    x, y = binary_words()
    calibrated = CalibratedClassifierCV(LogisticRegression(class_weight="balanced"), cv=2).fit(x, y)
    notes = convert(calibrated).facts.lineage[0]["notes"]
    assert any("use it without" in note and "its class weights" in note for note in notes)
    pairs = OneVsOneClassifier(LogisticRegression(class_weight="balanced")).fit(*multiclass_words())
    assert any("class weights are not in the loss" in note for note in convert(pairs).facts.lineage[0]["notes"])
    unseen = convert(LogisticRegression(class_weight="balanced").fit(x, y)).facts.objective  # without rows to count
    assert "its class weights" in unseen["missing"]


@quiet
@pytest.mark.parametrize("path", dict.fromkeys(class_path(estimator) for estimator, _ in MEMBERS))
@pytest.mark.parametrize("scaler", [None, "standard", "minmax"])
def test_an_estimator_is_made_from_its_class_path(path, scaler):
    labels = multiclass_words if "Class" in path or "Logistic" in path else regression
    params = dict(SMALL) if "MLP" in path else dict(LOG) if "SGDC" in path else {}
    params |= {"random_state": 0} if "SGD" in path else {}
    before = dict(params)
    made = convert(None, as_config("float32", path, params=params, scaler=scaler), data=rows(labels))
    assert params == before
    steps = {None: [], "standard": [StandardScaler()], "minmax": [MinMaxScaler()]}[scaler]
    cls = next(type(e) for e, _ in MEMBERS if path.endswith(f".{type(e).__name__}"))
    x, y = labels()
    direct = make_pipeline(*steps, cls(**params)).fit(x[FIT], y[FIT])
    assert made.digest() == convert(direct, data=rows(labels)).digest()


def test_a_class_path_that_is_not_converted_is_refused_with_a_guess():
    with pytest.raises(ConvertError, match=r"Did you mean 'sklearn\.linear_model\.Ridge'"):
        convert(None, as_config("float32", "sklearn.linear_model.Rigde"), data=rows(regression))


def test_a_class_path_outside_the_table_is_never_imported():
    with pytest.raises(ConvertError, match=r"os\.system"):
        convert(None, as_config("float32", "os.system", params={"command": "false"}), data=rows(regression))


def test_an_unknown_keyword_is_refused():
    with pytest.raises(ConvertError, match=r"parameters of sklearn\.linear_model\.Ridge(.|\n)*colour"):
        convert(None, as_config("float32", params={"colour": 1}), data=rows(regression))


def test_a_keyword_of_a_wrong_value_is_refused():
    with pytest.raises(ConvertError, match=r"alpha"):
        convert(None, as_config("float32", params={"alpha": -1}), data=rows(regression))


@pytest.mark.parametrize(("estimator", "path"), [(None, None), ("sklearn.linear_model.Ridge", "a.skops")])
def test_a_source_is_a_class_path_or_a_file(estimator, path):
    with pytest.raises(ConfigError, match=r"exactly one(.|\n)*~experiment"):
        SklearnEstimator(estimator, path=path)


def test_an_unknown_scaler_is_refused():
    with pytest.raises(ConfigError, match=r"'robust'(.|\n)*minmax, standard"):
        SklearnEstimator("sklearn.linear_model.Ridge", scaler="robust")


def test_without_source_and_config_nothing_is_converted():
    with pytest.raises(ConvertError, match="needs a source"):
        convert(None)


FILES = [(member, scalers) for member in MEMBERS for scalers in ("alone", "standard")]


@quiet
@pytest.mark.parametrize(("member", "scalers"), FILES, ids=lambda v: v if isinstance(v, str) else ids(v))
def test_a_skops_file_is_opened_without_trust(tmp_path, member, scalers):
    import skops.io  # which takes seconds, of each worker at the top of a file

    source = fitted(*member, scalers)
    skops.io.dump(source, tmp_path / "a.skops")
    made = convert(None, as_config("float32", None, path=str(tmp_path / "a.skops")))
    assert made.digest() == convert(source).digest()


def test_a_skops_file_from_the_sgd_solver_is_opened(tmp_path):
    import skops.io

    x, y = binary_numbers()
    with pytest.warns(ConvergenceWarning):
        source = MLPClassifier((3,), solver="sgd", max_iter=5, random_state=0).fit(x, y)
    skops.io.dump(source, tmp_path / "a.skops")
    assert (
        convert(None, as_config("float32", None, path=str(tmp_path / "a.skops"))).digest() == convert(source).digest()
    )


@pytest.mark.parametrize("suffix", ["pkl", "joblib", "pickle"])
def test_a_pickle_is_opened_with_trust_only(tmp_path, suffix):
    source, path = Ridge().fit(*regression()), tmp_path / f"a.{suffix}"
    joblib.dump(source, path) if suffix == "joblib" else path.write_bytes(pickle.dumps(source))
    with pytest.raises(ConvertError, match=r"runs code when it is opened(.|\n)*trust=true"):
        convert(None, as_config("float32", None, path=str(path)))
    assert convert(None, as_config("float32", None, path=str(path), trust=True)).digest() == convert(source).digest()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_code_in_an_untrusted_pickle_does_not_run(tmp_path):
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(ConvertError, match="trust"):
        convert(None, as_config("float32", None, path=str(tmp_path / "bomb.pkl")))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("name", "message"), [("a.skops", "skops"), ("a.pkl", r"pickle must be readable(.|\n)*a\.pkl")]
)
def test_a_damaged_file_is_refused(tmp_path, name, message):
    (tmp_path / name).write_bytes(b"hello")
    with pytest.raises(ConvertError, match=message):
        convert(None, as_config("float32", None, path=str(tmp_path / name), trust=True))


def test_a_skops_file_of_other_types_is_refused_by_name(tmp_path):
    import skops.io

    skops.io.dump(Path, tmp_path / "a.skops")
    with pytest.raises(ConvertError, match=r"types that skops trusts(.|\n)*Path"):
        convert(None, as_config("float32", None, path=str(tmp_path / "a.skops")))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConvertError, match="must be a file"):
        convert(None, as_config("float32", None, path=str(tmp_path / "nope.skops")))


def test_an_unfitted_estimator_from_a_file_is_fitted(tmp_path):
    import skops.io

    skops.io.dump(Ridge(alpha=2), tmp_path / "a.skops")
    made = convert(None, as_config("float32", None, path=str(tmp_path / "a.skops")), data=rows(regression))
    assert made.digest() == convert(Ridge(alpha=2), data=rows(regression)).digest()
