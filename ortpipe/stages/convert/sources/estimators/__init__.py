"""The catalogue of scikit-learn's predictors with differentiable parameters, as graphs of standard operators.

Parameters have the names that scikit-learn's users know. Each function converts one kind of fitted estimator: it gets
the features [N, K] and returns the `End`, with the objective that scikit-learn fits the estimator by.
"""

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from ortpipe.errors import ConvertError, nearest
from ortpipe.graph.core.builder import Builder
from ortpipe.settings import Catalogue
from ortpipe.stages.convert.sources.estimators.end import End as End
from ortpipe.stages.convert.sources.estimators.end import label_of as label_of
from ortpipe.stages.convert.sources.estimators.end import plain_classes as plain_classes
from ortpipe.stages.convert.sources.estimators.end import source_values as source_values
from ortpipe.stages.convert.sources.estimators.end import two_columns as two_columns
from ortpipe.stages.convert.sources.estimators.unsupported import reason
from ortpipe.stages.convert.sources.sklearn_columns import as_floats

Ends = Callable[[Builder, Any, ir.Value, Any], End]
AROUND = "ortpipe.stages.convert.sources"
HERE = f"{AROUND}.estimators"


def _paths(module: str, members: Mapping[str, str]) -> dict[str, str | Ends]:
    """Return class path → function, given function → classes of a scikit-learn module."""
    functions = {name: function for function, names in members.items() for name in names.split()}
    return {f"sklearn.{module}.{name}": f"{HERE}.{function}" for name, function in functions.items()}


ESTIMATORS: Catalogue[Ends] = Catalogue(
    "estimator that ortpipe converts",
    {
        **_paths(
            "linear_model",
            {
                "linear:least_squares": "LinearRegression",
                "meta:inner": "RANSACRegressor",
                "linear:sparse_features": "Lars LarsCV OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV",
                "linear:ridge": "Ridge RidgeCV",
                "linear:elastic_net": "Lasso LassoCV LassoLars LassoLarsCV LassoLarsIC ElasticNet ElasticNetCV",
                "linear:multi_task": "MultiTaskLasso MultiTaskLassoCV MultiTaskElasticNet MultiTaskElasticNetCV",
                "linear:bayesian_ridge": "BayesianRidge",
                "linear:ard": "ARDRegression",
                "linear:huber": "HuberRegressor",
                "linear:quantile": "QuantileRegressor",
                "linear:sgd": "SGDRegressor",
                "linear:passive_aggressive": "PassiveAggressiveRegressor",
                "linear:theil_sen": "TheilSenRegressor",
                "linear:glm": "PoissonRegressor GammaRegressor TweedieRegressor",
                "linear_classifiers:logistic": "LogisticRegression LogisticRegressionCV",
                "linear_classifiers:sgd": "SGDClassifier",
                "linear_classifiers:perceptron": "Perceptron",
                "linear_classifiers:passive_aggressive": "PassiveAggressiveClassifier",
                "linear_classifiers:ridge": "RidgeClassifier RidgeClassifierCV",
            },
        ),
        **_paths(
            "svm",
            {
                "linear_classifiers:linear_svc": "LinearSVC",
                "linear_classifiers:linear_svr": "LinearSVR",
                "kernel:svc": "SVC NuSVC",
                "kernel:svr": "SVR NuSVR",
            },
        ),
        **_paths("kernel_ridge", {"kernel:kernel_ridge": "KernelRidge"}),
        **_paths("cross_decomposition", {"linear:pls": "PLSRegression PLSCanonical CCA"}),
        **_paths(
            "discriminant_analysis",
            {
                "linear_classifiers:discriminant": "LinearDiscriminantAnalysis",
                "bayes:quadratic": "QuadraticDiscriminantAnalysis",
            },
        ),
        **_paths(
            "naive_bayes",
            {
                "bayes:gaussian": "GaussianNB",
                "bayes:multinomial": "MultinomialNB ComplementNB",
                "bayes:bernoulli": "BernoulliNB",
                "bayes:categorical": "CategoricalNB",
            },
        ),
        **_paths("neighbors", {"bayes:nearest_centroid": "NearestCentroid"}),
        **_paths("neural_network", {"neural:mlp": "MLPClassifier MLPRegressor"}),
        **_paths(
            "model_selection",
            {
                "meta:searched": "GridSearchCV RandomizedSearchCV HalvingGridSearchCV HalvingRandomSearchCV",
                "meta:threshold": "FixedThresholdClassifier TunedThresholdClassifierCV",
            },
        ),
        **_paths(
            "ensemble",
            {
                "meta:voting": "VotingClassifier VotingRegressor",
                "meta:bagging": "BaggingClassifier BaggingRegressor",
                "meta:stacking": "StackingClassifier StackingRegressor",
            },
        ),
        "sklearn.compose.TransformedTargetRegressor": f"{AROUND}.sklearn_target:transformed_target",
        "sklearn.pipeline.Pipeline": f"{AROUND}.sklearn_graph:predictor",
        **_paths("calibration", {"calibration:calibrated": "CalibratedClassifierCV"}),
        **_paths("semi_supervised", {"meta:inner": "SelfTrainingClassifier"}),
        **_paths("frozen", {"meta:frozen": "FrozenEstimator"}),
        **_paths(
            "multiclass",
            {"several:one_vs_rest": "OneVsRestClassifier", "several:one_vs_one": "OneVsOneClassifier"},
        ),
        **_paths(
            "multioutput",
            {
                "several:multi_output_regressor": "MultiOutputRegressor",
                "several:multi_output_classifier": "MultiOutputClassifier",
                "several:regressor_chain": "RegressorChain",
                "several:classifier_chain": "ClassifierChain",
            },
        ),
    },
)
# estimators that pass a table's columns on to their members unchanged
PASSES_COLUMNS = {
    *(
        path
        for path in ESTIMATORS
        if path.split(".")[1] in ("pipeline", "compose", "model_selection", "calibration", "frozen")
    ),
    *(f"sklearn.ensemble.{kind}{what}" for kind in ("Voting", "Stacking") for what in ("Classifier", "Regressor")),
    *(f"sklearn.multiclass.{kind}Classifier" for kind in ("OneVsRest", "OneVsOne")),
    *(f"sklearn.multioutput.MultiOutput{what}" for what in ("Classifier", "Regressor")),
}


def check_estimator(estimator: Any) -> None:
    """Reject a final estimator, fitted or not, that has no graph."""
    check_supported(ESTIMATORS, class_path(estimator), "The estimator")


def end_of(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """Write the graph of a fitted final estimator behind its features, a value or a table's columns; return its end."""
    check_estimator(estimator)
    path = class_path(estimator)
    return ESTIMATORS[path](op, estimator, x if path in PASSES_COLUMNS else as_floats(x), dtype)


def check_supported(table: Mapping[str, Any], path: str, role: str, key: str | None = None) -> None:
    """Reject a class path, named by a setting `key`, that is not in a table."""
    if path in table:
        return
    if (why := reason(path)) is not None and table is ESTIMATORS:
        rule, fix = f"{role} must have parameters that a gradient moves.", "Choose one that docs/estimators.md lists."
        raise ConvertError(rule, key=key, got=f"{path}: {why}", fix=fix)
    rule = f"{role} must be one that ortpipe converts."
    raise ConvertError(rule, key=key, got=path, fix=nearest(path, table))


def class_path(step: Any) -> str:
    """Return the public path of a class, such as sklearn.svm.SVC."""
    return f"{'.'.join(type(step).__module__.split('.')[:2])}.{type(step).__name__}"
