"""Every predictor of scikit-learn that is converted, beside scikit-learn's own predictions."""

import collections
import copy
import functools
import pkgutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from acceptance.estimators import path_of, row_of
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, load_linnerud, make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.svm import SVR, LinearSVC

from ortpipe.errors import ConvertError
from ortpipe.graph.core.origins import put
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.estimators import ESTIMATORS, REASONS, reason
from ortpipe.stages.convert.sources.estimators.end import array_of
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.convert.stage import convert

FLOAT64 = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), dtype="float64")
pytestmark = pytest.mark.filterwarnings("ignore:Class Passive:FutureWarning")  # deprecated, and still in files
FITTED = slice(0, None, 2)  # every second row, the others are predicted


@functools.cache
def rows(kind):
    if kind in ("values", "positive"):
        x, y = load_diabetes(return_X_y=True)
        return x[:120] * 10, y[:120] / 50
    if kind == "several values":
        x, y = load_linnerud(return_X_y=True)
        return scale(x), scale(y)
    if kind == "labels":
        x, y = make_multilabel_classification(90, 6, n_classes=3, random_state=0)
        return x / 4, y
    x, y = load_iris(return_X_y=True)
    if kind == "unlabelled":
        return x, np.where(np.arange(len(y)) % 5 == 2, -1, y)
    x = np.floor(x) if kind == "categories" else x
    return x, np.where(y == 1, "yes", "no") if kind == "two classes" else load_iris().target_names[y]


LOGISTIC, SEED = LogisticRegression(max_iter=300), {"random_state": 0}
PAIR = {"estimators": [("a", LOGISTIC), ("b", GaussianNB())]}
TWO, THREE, VALUES, SEVERAL, LABELS = "two classes", "three classes", "values", "several values", "labels"
CASES = [  # path without sklearn, settings, the kinds of rows
    *((f"linear_model.{name}", {}, VALUES) for name in ("LinearRegression", "Ridge", "RidgeCV", "Lars", "LarsCV")),
    *((f"linear_model.Lasso{name}", {}, VALUES) for name in ("", "CV", "Lars", "LarsCV", "LarsIC")),
    *((f"linear_model.ElasticNet{name}", {}, VALUES) for name in ("", "CV")),
    *((f"linear_model.MultiTaskLasso{name}", {}, SEVERAL) for name in ("", "CV")),
    *((f"linear_model.MultiTaskElasticNet{name}", {}, SEVERAL) for name in ("", "CV")),
    *((f"linear_model.OrthogonalMatchingPursuit{name}", {}, VALUES) for name in ("", "CV")),
    *((f"linear_model.{name}", {}, VALUES) for name in ("BayesianRidge", "ARDRegression", "HuberRegressor")),
    *((f"linear_model.{name}", SEED, VALUES) for name in ("TheilSenRegressor", "SGDRegressor")),
    ("linear_model.RANSACRegressor", {"min_samples": 0.5, **SEED}, VALUES),
    *((f"linear_model.{name}", {}, VALUES) for name in ("QuantileRegressor", "PassiveAggressiveRegressor")),
    *((f"linear_model.{name}", {}, VALUES) for name in ("PoissonRegressor", "GammaRegressor")),
    ("linear_model.TweedieRegressor", {"power": 1.5}, VALUES),
    ("linear_model.TweedieRegressor", {"power": 0}, VALUES),
    ("linear_model.LogisticRegression", {}, TWO, THREE),
    ("linear_model.LogisticRegression", {"solver": "liblinear", "fit_intercept": False}, TWO),
    ("linear_model.LogisticRegressionCV", {"Cs": 2, "use_legacy_attributes": False}, TWO),
    *(("linear_model.SGDClassifier", {"loss": loss, **SEED}, TWO) for loss in ("hinge", "squared_error", "huber")),
    ("linear_model.SGDClassifier", {"loss": "modified_huber", **SEED}, THREE),
    ("linear_model.SGDClassifier", {"loss": "log_loss", **SEED}, TWO, THREE),
    *((f"linear_model.{name}", {}, TWO, THREE) for name in ("Perceptron", "PassiveAggressiveClassifier")),
    ("linear_model.RidgeClassifier", {}, TWO, THREE, LABELS),
    ("linear_model.RidgeClassifierCV", {}, THREE),
    ("svm.LinearSVC", {}, TWO, THREE),
    ("svm.LinearSVC", {"multi_class": "crammer_singer"}, THREE),
    ("svm.LinearSVR", {}, VALUES),
    *(("svm.SVC", {"kernel": kernel}, TWO, THREE) for kernel in ("rbf", "poly")),
    ("svm.NuSVC", {"kernel": "linear"}, TWO, THREE),
    *(("svm.SVR", {"kernel": kernel}, VALUES) for kernel in ("rbf", "sigmoid", "linear")),
    ("svm.NuSVR", {}, VALUES),
    ("kernel_ridge.KernelRidge", {"kernel": "rbf"}, VALUES),
    ("kernel_ridge.KernelRidge", {"kernel": "poly"}, SEVERAL),
    *((f"cross_decomposition.{name}", {}, SEVERAL) for name in ("PLSRegression", "PLSCanonical", "CCA")),
    ("discriminant_analysis.LinearDiscriminantAnalysis", {}, TWO, THREE),
    ("discriminant_analysis.QuadraticDiscriminantAnalysis", {}, TWO, THREE),
    *((f"naive_bayes.{name}NB", {}, TWO, THREE) for name in ("Gaussian", "Multinomial", "Complement")),
    ("naive_bayes.BernoulliNB", {"binarize": 3}, TWO, THREE),
    ("naive_bayes.CategoricalNB", {}, "categories"),
    ("neighbors.NearestCentroid", {}, TWO, THREE),
    ("neighbors.NearestCentroid", {"priors": "empirical"}, THREE),
    ("neural_network.MLPClassifier", {"hidden_layer_sizes": (4,), **SEED}, TWO, THREE, LABELS),
    ("neural_network.MLPRegressor", {"hidden_layer_sizes": (4,), "loss": "poisson", **SEED}, VALUES),
    *((f"model_selection.{name}", {"param_grid": {"alpha": [1, 2]}}, VALUES) for name in ("GridSearchCV",)),
    ("model_selection.HalvingGridSearchCV", {"param_grid": {"alpha": [1, 2]}}, VALUES),
    ("model_selection.RandomizedSearchCV", {"param_distributions": {"alpha": [1, 2]}, "n_iter": 2}, VALUES),
    ("model_selection.HalvingRandomSearchCV", {"param_distributions": {"alpha": [1, 2]}, **SEED}, VALUES),
    ("model_selection.FixedThresholdClassifier", {"threshold": 0.3}, TWO),
    (
        "model_selection.FixedThresholdClassifier",
        {"estimator": LinearSVC(), "threshold": 0.2, "pos_label": "no"},
        TWO,
    ),
    ("model_selection.TunedThresholdClassifierCV", {"cv": 2, "thresholds": 10}, TWO),
    ("ensemble.VotingClassifier", {**PAIR, "voting": "soft", "weights": [1, 2]}, TWO, THREE),
    ("ensemble.VotingRegressor", {"estimators": [("a", Ridge()), ("b", SVR())]}, VALUES),
    ("ensemble.BaggingClassifier", {"n_estimators": 2, "max_features": 0.6, **SEED}, TWO, THREE),
    ("ensemble.BaggingRegressor", {"estimator": Ridge(), "n_estimators": 2, **SEED}, VALUES),
    ("ensemble.StackingClassifier", {"estimators": [("a", LOGISTIC), ("b", LinearSVC())], "cv": 2}, TWO, THREE),
    ("ensemble.StackingRegressor", {"estimators": [("a", Ridge()), ("b", SVR())], "passthrough": True}, VALUES),
    ("calibration.CalibratedClassifierCV", {"estimator": LinearSVC(), "cv": 2}, TWO, THREE),
    ("pipeline.Pipeline", {"steps": [("scale", StandardScaler()), ("svc", LinearSVC())]}, TWO),
    ("ensemble.VotingRegressor", {"estimators": [("a", make_pipeline(StandardScaler(), Ridge()))]}, VALUES),
    ("calibration.CalibratedClassifierCV", {"estimator": GaussianNB(), "cv": 2, "ensemble": False}, THREE),
    ("calibration.CalibratedClassifierCV", {"method": "temperature", "cv": 2}, TWO, THREE),
    ("semi_supervised.SelfTrainingClassifier", {}, "unlabelled"),
    ("frozen.FrozenEstimator", {"estimator": Ridge().fit(*rows(VALUES))}, VALUES),
    ("multiclass.OneVsRestClassifier", {}, TWO, THREE, LABELS),
    ("multiclass.OneVsRestClassifier", {"estimator": LinearSVC()}, THREE, LABELS),
    ("multiclass.OneVsOneClassifier", {}, TWO, THREE),
    ("multiclass.OneVsOneClassifier", {"estimator": GaussianNB()}, THREE),
    ("multioutput.MultiOutputRegressor", {"estimator": Ridge()}, SEVERAL),
    ("multioutput.RegressorChain", {"estimator": Ridge(), "order": [2, 0, 1]}, SEVERAL),
    ("multioutput.MultiOutputClassifier", {}, LABELS),
    ("multioutput.ClassifierChain", {"order": [1, 2, 0]}, LABELS),
    ("multioutput.ClassifierChain", {"chain_method": "predict_proba"}, LABELS),
]
FITS = [(path, settings, kind) for path, settings, *kinds in CASES for kind in kinds]


@functools.cache
def fitted(place):
    path, settings, kind = FITS[place]
    cls = pkgutil.resolve_name(f"sklearn.{path}")
    required = {"estimator": Ridge() if kind == VALUES else LOGISTIC} if needs_one(cls) else {}
    x, y = rows(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = cls(**{**required, **settings})
        return (estimator if path.startswith("frozen") else clone(estimator)).fit(x[FITTED], y[FITTED])


def needs_one(cls):
    return "estimator" in cls.__init__.__code__.co_varnames[1 : cls.__init__.__code__.co_argcount]


def predicted(estimator, facts, x):
    if facts.task == "regression":
        values = estimator.predict(x)
    elif facts.logits == facts.prediction:
        values = estimator.decision_function(x)
    else:
        values = estimator.predict_proba(x)
    return np.stack([p[:, 1] for p in values], axis=1) if isinstance(values, list) else values


def outputs(artifact, x):
    session = Session(artifact.model)
    return dict(zip(session.outputs, session.run({"X": x}), strict=True))


def identity(place):
    path, settings, kind = FITS[place]
    return "-".join([path.rpartition(".")[2], *map(str, (v for v in settings.values() if isinstance(v, str))), kind])


every = pytest.mark.parametrize("place", range(len(FITS)), ids=identity)


def test_there_is_a_case_of_every_estimator():
    elsewhere = {"sklearn.compose.TransformedTargetRegressor"}  # test_pipelines.py
    assert {f"sklearn.{path}" for path, *_ in CASES} == set(ESTIMATORS) - elsewhere


@every
def test_the_graph_predicts_what_scikit_learn_predicts_on_other_rows(place):
    estimator, x = fitted(place), rows(FITS[place][2])[0][1::2]
    artifact = convert(estimator, FLOAT64)
    found = outputs(artifact, x)
    expected = predicted(estimator, artifact.facts, x)
    got = found[artifact.facts.prediction]
    np.testing.assert_allclose(got, np.reshape(expected, got.shape), atol=1e-9 * max(1, np.abs(expected).max()))
    if artifact.facts.task != "regression":
        np.testing.assert_array_equal(found["label"], estimator.predict(x))
        classes = artifact.facts.classes or ()  # several labels have none
        assert (artifact.facts.task == "binary") == (len(classes) == 2)


def trained_into(estimator, origin, array):
    """Write one parameter back, by what its origin says."""
    for place in (origin, *origin.get("also", ())):
        holder = estimator
        for step in origin["step"]:
            named = isinstance(step, int) or isinstance(holder, Pipeline)
            holder = holder[step] if named else getattr(holder, step)
        name, index = place["attribute"], origin.get("index")
        old = array_of(holder, name, index)
        new = put(old, array, place.get("transform", []), {}.__getitem__)
        if index is None:
            setattr(holder, name, new)
        else:
            getattr(holder, name)[index] = new


@every
def test_other_weights_go_back_to_the_attributes_that_they_come_from(place):
    estimator, x = copy.deepcopy(fitted(place)), rows(FITS[place][2])[0][1::2]
    artifact = convert(estimator, FLOAT64)
    [record] = artifact.facts.lineage
    random = np.random.default_rng(0)
    assert set(record["origins"]) == set(artifact.facts.parameters) == set(artifact.initializers)
    for name, array in artifact.initializers.items():
        other = array * (1 + 0.01 * random.standard_normal(array.shape))
        trained_into(estimator, record["origins"][name], other)
    again = convert(estimator, FLOAT64)
    for name, array in artifact.initializers.items():
        assert again.initializers[name].shape == array.shape
        assert not np.array_equal(again.initializers[name], array) or not array.any()
    found = outputs(again, x)[again.facts.prediction]
    expected = predicted(estimator, again.facts, x)
    np.testing.assert_allclose(found, np.reshape(expected, found.shape), atol=1e-8 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("kind", [TWO, THREE])
def test_probabilities_by_platt_are_within_what_scikit_learns_iteration_leaves(kind):
    from sklearn.svm import SVC

    x, y = rows(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        estimator = SVC(probability=True, random_state=0).fit(x[FITTED], y[FITTED])
    found = outputs(convert(estimator, FLOAT64), x[1::2])
    np.testing.assert_allclose(found["probabilities"], estimator.predict_proba(x[1::2]), atol=5e-3)
    np.testing.assert_array_equal(found["label"], estimator.predict(x[1::2]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("path", "settings", "kind", "message"),
    [
        ("ensemble.VotingClassifier", PAIR, TWO, "vote has no gradient"),
        ("ensemble.BaggingClassifier", {"estimator": LinearSVC(), "n_estimators": 2}, TWO, "predict_proba"),
        ("svm.SVC", {"decision_function_shape": "ovo"}, THREE, "decision_function_shape='ovr'"),
        ("kernel_ridge.KernelRidge", {"kernel": "laplacian"}, VALUES, "linear, poly, rbf or sigmoid"),
        ("neighbors.NearestCentroid", {"metric": "manhattan"}, TWO, "metric='euclidean'"),
        ("calibration.CalibratedClassifierCV", {"method": "isotonic", "cv": 2}, TWO, "method='sigmoid'"),
        ("ensemble.BaggingRegressor", {"n_estimators": 2}, VALUES, "leaf"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_has_no_gradient_is_refused_with_a_way_out(path, settings, kind, message):
    x, y = rows(kind)
    estimator = pkgutil.resolve_name(f"sklearn.{path}")(**settings).fit(x, y)
    with pytest.raises(ConvertError, match=message):
        convert(estimator, FLOAT64)


def test_every_class_of_scikit_learn_is_converted_or_refused_with_a_reason():
    from sklearn.utils import all_estimators

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        predictors = [cls for kind in ("classifier", "regressor") for _, cls in all_estimators(kind)]
    paths = [f"{'.'.join(cls.__module__.split('.')[:2])}.{cls.__name__}" for cls in predictors]
    unknown = [path for path in paths if path not in ESTIMATORS and reason(path) is None]
    assert unknown == []
    assert all(
        any(path.startswith(prefix) for prefix in REASONS) or path in ESTIMATORS for path in set(paths) - set(unknown)
    )


def test_the_table_of_estimators_says_what_is_converted_and_what_is_refused():
    import sklearn
    from sklearn.utils import all_estimators

    page = (Path(__file__).parents[4] / "docs" / "reference" / "estimators.md").read_text(encoding="utf-8")
    if f"scikit-learn {sklearn.__version__}" not in page:
        pytest.skip("written with another version of scikit-learn")
    told = dict(line.strip("| ").split(" | ")[:2] for line in page.splitlines() if line.startswith("| sklearn."))
    assert {path for path, outcome in told.items() if outcome == "converted"} == set(ESTIMATORS)
    others = (row_of(name, cls) for name, cls in all_estimators() if told.get(path_of(name, cls)) != "converted")
    assert {row.path: row.outcome for row in others} == {path: t for path, t in told.items() if t != "converted"}
    count = collections.Counter(told.values())
    catalogues = (Path(__file__).parents[4] / "docs" / "reference" / "catalogues.md").read_text(encoding="utf-8")
    assert f"{count['converted']} of {len(told)}; {count['step']} more are steps" in catalogues
