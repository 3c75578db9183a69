"""The objective that scikit-learn fits an estimator by, as add_loss=auto and penalty=auto write it."""

import functools
import pkgutil
import warnings

import numpy as np
import pytest
from acceptance.estimators import objective
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, load_linnerud, make_multilabel_classification
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.linear_model import (
    LogisticRegression,
    MultiTaskLasso,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
    TweedieRegressor,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.preprocessing import scale
from sklearn.svm import SVC, NuSVC
from sklearn.utils.class_weight import compute_class_weight

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import LossError, PenaltyError
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty

FLOAT64 = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), dtype="float64")
VALUES, SEVERAL, TWO, THREE, LABELS = "values", "several values", "two classes", "three classes", "labels"


@functools.cache
def rows(kind):
    if kind == VALUES:
        x, y = load_diabetes(return_X_y=True)
        return x[:80] * 20, y[:80] / 50
    if kind == SEVERAL:
        x, y = load_linnerud(return_X_y=True)
        return scale(x), scale(y)
    if kind == LABELS:
        x, y = make_multilabel_classification(60, 5, n_classes=3, random_state=0)
        return scale(x), y
    x, y = load_iris(return_X_y=True)
    return scale(x)[::2, :3], (y[::2] == 1).astype(int) if kind == TWO else y[::2]


LONG = {"tol": 1e-10, "max_iter": 100_000}
SGD = {"alpha": 0.05, "tol": None, "max_iter": 4000, "random_state": 0}
ROUGH = 2e-3  # of what stochastic gradients leave, of the loss
CASES = [  # settings that make scikit-learn's own solver exact, rows, what it leaves, the loss
    ("linear_model.Ridge", {"alpha": 2.0}, VALUES, 1e-9, "l2"),
    ("linear_model.ElasticNet", {"alpha": 0.1, "l1_ratio": 0.4, **LONG}, VALUES, 1e-7, "l2"),
    ("linear_model.MultiTaskElasticNet", {"alpha": 0.1, "l1_ratio": 0.6, **LONG}, SEVERAL, 1e-7, "l2"),
    ("linear_model.QuantileRegressor", {"alpha": 0.02, "quantile": 0.7}, VALUES, 1e-7, "quantile"),
    ("linear_model.HuberRegressor", {"alpha": 0.3, "tol": 1e-9, "max_iter": 5000}, VALUES, 1e-6, "huber"),
    ("linear_model.BayesianRidge", {}, VALUES, 1e-9, "l2"),
    ("linear_model.PoissonRegressor", {"alpha": 0.2, "tol": 1e-9}, VALUES, 1e-7, "poisson"),
    ("linear_model.GammaRegressor", {"alpha": 0.2, "tol": 1e-9}, VALUES, 1e-7, "gamma"),
    ("linear_model.TweedieRegressor", {"alpha": 0.2, "power": 1.7, "tol": 1e-9}, VALUES, 1e-7, "tweedie"),
    ("linear_model.LogisticRegression", {"C": 0.5, **LONG}, TWO, 1e-7, "log"),
    ("linear_model.LogisticRegression", {"C": 0.5, **LONG}, THREE, 1e-7, "cross_entropy"),
    ("linear_model.LogisticRegression", {"C": np.inf, **LONG}, TWO, 1e-7, "log"),
    ("linear_model.LogisticRegression", {"solver": "saga", "l1_ratio": 0.5, **LONG}, TWO, 1e-7, "log"),
    ("linear_model.LogisticRegression", {"solver": "liblinear", "l1_ratio": 1.0, **LONG}, TWO, 1e-7, "log"),
    ("linear_model.RidgeClassifier", {"alpha": 3.0}, THREE, 1e-9, "one_vs_rest"),
    ("linear_model.RidgeClassifier", {"alpha": 3.0}, LABELS, 1e-9, "squared_margin"),
    ("svm.LinearSVC", {"C": 0.3, **LONG}, TWO, 1e-6, "squared_hinge"),
    ("svm.LinearSVC", {"C": 0.3, "intercept_scaling": 2.0, **LONG}, THREE, 1e-6, "one_vs_rest"),
    ("svm.LinearSVC", {"C": 0.3, "loss": "hinge", **LONG}, TWO, 1e-5, "hinge"),
    *(
        ("svm.LinearSVC", {"C": 0.3, "multi_class": "crammer_singer", **LONG}, kind, 1e-4, "hinge")
        for kind in (TWO, THREE)
    ),
    ("svm.LinearSVR", {"C": 0.3, "epsilon": 0.1, **LONG}, VALUES, 1e-4, "epsilon_insensitive"),
    *(
        (
            "linear_model.SGDRegressor",
            {"loss": loss, "penalty": "elasticnet", "l1_ratio": 0.5, **SGD},
            VALUES,
            ROUGH,
            ours,
        )
        for loss, ours in (("squared_error", "l2"), ("huber", "huber"), *[["epsilon_insensitive"] * 2])
    ),
    *(
        ("linear_model.SGDClassifier", {"loss": loss, **SGD}, TWO, ROUGH, ours)
        for loss, ours in (("hinge", "hinge"), ("log_loss", "log"), ("squared_error", "squared_margin"))
    ),
    ("linear_model.SGDClassifier", {"loss": "modified_huber", **SGD}, THREE, ROUGH, "one_vs_rest"),
    ("linear_model.SGDClassifier", {"loss": "log_loss", **SGD}, THREE, ROUGH, "one_vs_rest"),
    ("multiclass.OneVsRestClassifier", {"estimator": LogisticRegression(tol=1e-10)}, THREE, 1e-7, "one_vs_rest"),
    ("multioutput.MultiOutputRegressor", {"estimator": Ridge(0.5)}, SEVERAL, 1e-9, "l2"),
]


def own(artifact, reduction):
    scored = add_loss(artifact, AddLossConfig(LOSSES["auto"](), reduction=reduction))
    return penalty(scored, PenaltyConfig(auto=True))


def ids(value):
    return (
        value.rpartition(".")[2] if isinstance(value, str) else value.get("loss", "") if isinstance(value, dict) else ""
    )


@pytest.mark.parametrize(("path", "settings", "kind", "left", "loss"), CASES, ids=ids)
def test_scikit_learns_solution_is_the_least_that_training_finds_too(path, settings, kind, left, loss):
    x, y = rows(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = pkgutil.resolve_name(f"sklearn.{path}")(**settings).fit(x, y)
    data = Data(Rows({"X": x}, y))
    artifact = convert(estimator, FLOAT64, data=data)
    assert artifact.facts.objective["loss"]["name"] == loss
    model = derive(own(artifact, "mean"), DeriveConfig())
    value, solution = objective(model, data)
    least, _ = value(solution)
    size = max(1e-3, abs(least))
    exact = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 3000}
    assert minimize(value, solution, jac=True, method="L-BFGS-B", options=exact).fun >= least - left * size
    if loss in ("hinge", "quantile", "epsilon_insensitive") or "group" in str(model.facts.objective):
        return  # L-BFGS stops at kinks, which l1 has few of
    found = minimize(value, np.zeros_like(solution), jac=True, method="L-BFGS-B", options=exact).fun
    assert found <= least + 5e-3 * size


def test_strengths_are_those_of_the_losss_own_reduction():
    x, y = rows(VALUES)
    artifact = convert(Ridge(2.0).fit(x, y), FLOAT64, data=Data(Rows({"X": x}, y)))
    feed = {"X": x, "label": y[:, None]}
    values = {}
    for reduction in ("sum", "mean"):
        model = own(artifact, reduction)
        values[reduction] = Session(model.model).run(feed, [model.facts.loss])[0]
    assert values["sum"] == pytest.approx(len(x) * values["mean"], rel=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("own_class", "settings", "kind"),
    [
        (Ridge, {"alpha": 2.0}, VALUES),
        (PoissonRegressor, {"alpha": 0.2, "tol": 1e-9}, VALUES),
        (MultiTaskLasso, {"alpha": 0.1, **LONG}, SEVERAL),
        (GridSearchCV, {"estimator": TweedieRegressor(tol=1e-9), "param_grid": {"alpha": [0.2]}, "cv": 2}, VALUES),
    ],
)
def test_row_weights_leave_the_solution_where_it_is(own_class, settings, kind, reduction):
    x, y = rows(kind)
    weight = np.random.default_rng(0).uniform(1, 5, len(x))  # not 1 on average
    data = Data(Rows({"X": x}, y, weight))
    artifact = convert(own_class(**settings).fit(x, y, sample_weight=weight), FLOAT64, data=data)
    scored = add_loss(artifact, AddLossConfig(LOSSES["auto"](), reduction, sample_weight=True))
    value, solution = objective(derive(penalty(scored, PenaltyConfig(auto=True)), DeriveConfig()), data)
    assert np.abs(value(solution)[1]).max() < 1e-4 * np.abs(value(np.zeros_like(solution))[1]).max()


WEIGHTED = [  # class weights are of rows, or of a class's rows against the rest
    ("linear_model.LogisticRegression", {"C": 0.5, **LONG}, 1e-7),
    ("linear_model.LogisticRegressionCV", {"Cs": [0.5], "cv": 2, **LONG}, 1e-7),
    ("linear_model.RidgeClassifier", {"alpha": 3.0}, 1e-9),
    ("linear_model.RidgeClassifierCV", {"alphas": [3.0, 0.5]}, 1e-9),
    ("svm.LinearSVC", {"C": 0.3, **LONG}, 1e-6),
    ("svm.LinearSVC", {"C": 0.3, "multi_class": "crammer_singer", **LONG}, 1e-4),
    ("linear_model.SGDClassifier", {"loss": "log_loss", **SGD}, 1e-5),
]


@pytest.mark.parametrize("weighted", [False, True], ids=["rows count once", "row weights"])
@pytest.mark.parametrize(("path", "settings", "left"), WEIGHTED, ids=ids)
def test_class_weights_of_the_estimator_count(path, settings, left, weighted):
    for kind, setting in ((TWO, {1: 5.0}), (THREE, "balanced")):
        x, y = (array[:60] for array in rows(kind))  # of classes of unequal size
        weight = np.random.default_rng(0).uniform(1, 5, len(x)) if weighted else None
        estimator = pkgutil.resolve_name(f"sklearn.{path}")(**settings, class_weight=setting)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit(x, y, sample_weight=weight)
        check_least(estimator, Data(Rows({"X": x}, y, weight)), left)


@pytest.mark.parametrize("setting", ["balanced", {1: 5.0}])
@pytest.mark.parametrize("kind", [TWO, THREE, LABELS])
def test_class_weights_of_members_count(kind, setting):
    x, y = (array[:60] for array in rows(kind))
    outer = MultiOutputClassifier if kind == LABELS else OneVsRestClassifier
    check_least(outer(LogisticRegression(tol=1e-10, class_weight=setting)).fit(x, y), Data(Rows({"X": x}, y)), 1e-7)


UNPENALIZED = {"C": np.inf, "tol": 1e-10}


@pytest.mark.parametrize("setting", ["balanced", {1: 5.0}])
@pytest.mark.parametrize("kind", ["bagged", "voting", "other members"])
def test_class_weights_that_all_members_have_count_in_the_joint_loss(kind, setting):
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 2))
    y = np.digitize(x[:, 0] + random.normal(size=80), [0, 1])
    own = LogisticRegression(**UNPENALIZED, class_weight=setting)
    other = LogisticRegression(**UNPENALIZED, class_weight={2: 3.0}) if kind == "other members" else clone(own)
    weight = None if kind == "bagged" else random.uniform(1, 5, 80)
    data = Data(Rows({"X": x}, y, weight))
    outer = VotingClassifier([("a", own), ("b", other)], voting="soft")
    fitted = (BaggingClassifier(own, 2, bootstrap=False) if kind == "bagged" else outer).fit(x, y, sample_weight=weight)
    if kind == "other members":
        objective = convert(fitted, FLOAT64, data=data).facts.objective
        assert objective["missing"].endswith("its class weights")
        assert "class_weight" not in objective
    else:  # equal members: the maximum of their joint likelihood is that of one
        check_least(fitted, data, 1e-7)


@pytest.mark.parametrize("own_class", [SVC, NuSVC])
@pytest.mark.parametrize("kind", [TWO, THREE])
def test_class_weights_of_a_support_vector_machine_count_as_in_libsvm(own_class, kind):
    x, y = (array[:60] for array in rows(kind))
    settings = {"nu": 0.1} if own_class is NuSVC else {}
    fits = [own_class(**settings, class_weight=weights).fit(x, y) for weights in (None, {1: 5.0})]
    weights = convert(fits[1], FLOAT64, data=Data(Rows({"X": x}, y))).facts.objective.get("class_weight")
    same = np.allclose(fits[0].decision_function(x), fits[1].decision_function(x))  # NuSVC ignores them
    assert weights == (None if same else [1.0, 5.0, 1.0][: len(fits[0].classes_)])


def check_least(estimator, data, left):
    """Check that training finds nothing lower than scikit-learn's solution."""
    scored = add_loss(
        convert(estimator, FLOAT64, data=data), AddLossConfig(LOSSES["auto"](), sample_weight=data.weighted), data=data
    )
    value, solution = objective(derive(penalty(scored, PenaltyConfig(auto=True)), DeriveConfig()), data)
    exact = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 3000}
    least, _ = value(solution)
    found = minimize(value, solution, jac=True, method="L-BFGS-B", options=exact).fun
    assert found >= least - left * max(1e-3, abs(least))


@pytest.mark.parametrize("explicit", ["cross_entropy", "hinge"])
def test_class_weights_of_one_vs_rest_are_those_of_rows_in_another_loss(explicit):
    x, y = (array[:60] for array in rows(THREE))
    data = Data(Rows({"X": x}, y))
    losses = {}
    for setting in (None, "balanced"):
        estimator = SGDClassifier(random_state=0, class_weight=setting, max_iter=5, tol=None).fit(x, y)
        estimator.coef_, estimator.intercept_ = np.ones((3, 3)) * [[1], [2], [3]], np.arange(3.0)
        scored = add_loss(convert(estimator, FLOAT64, data=data), AddLossConfig(LOSSES[explicit](), reduction="sum"))
        session = Session(scored.model)
        losses[setting] = [
            session.run({"X": x[y == k], scored.facts.label: y[y == k, None]}, [scored.facts.loss])[0] for k in range(3)
        ]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=y)
    np.testing.assert_allclose(np.array(losses["balanced"]), expected * losses[None], rtol=1e-12)


def test_strengths_for_a_sum_need_the_number_of_rows_beside_a_mean():
    artifact = convert(Ridge().fit(*rows(VALUES)))
    with pytest.raises(PenaltyError, match=r"number of rows(.|\n)*reduction=sum"):
        own(artifact, "mean")
    assert own(artifact, "sum").facts.loss == "loss"


def test_what_is_chosen_is_said_and_what_is_left_out():
    artifact = convert(SVC().fit(*rows(TWO)))
    assert any("hinge" in note and "use it without" in note for note in artifact.facts.lineage[0]["notes"])
    scored = add_loss(artifact, AddLossConfig(LOSSES["auto"]()))
    assert scored.facts.lineage[-1]["notes"] == ["the automatic loss is hinge"]
    assert artifact.facts.prediction == artifact.facts.logits == "scores"


def test_a_model_that_no_estimator_made_is_scored_by_its_task(from_text):
    text = "g (float[N,2] X) => (float[N,1] y) <float[2,1] w = {1, 2}> { y = MatMul(X, w) }"
    scored = add_loss(from_text(text), AddLossConfig(LOSSES["auto"]()))
    assert scored.digest() == add_loss(from_text(text), AddLossConfig(LOSSES["l2"]())).digest()


def test_an_import_path_in_a_models_facts_is_never_imported():
    import dataclasses

    artifact = convert(Ridge().fit(*rows(VALUES)))
    facts = dataclasses.replace(artifact.facts, objective={"loss": {"name": "os:system"}})
    with pytest.raises(LossError, match="one of ortpipe's"):
        add_loss(type(artifact)(artifact.model, facts), AddLossConfig(LOSSES["auto"]()))
