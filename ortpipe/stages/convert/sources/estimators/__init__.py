"""The catalogue of scikit-learn's predictors with differentiable parameters, as graphs of standard operators.

Parameters have the names that scikit-learn's users know. Each function converts one kind of fitted estimator: it gets
the features [N, K] and returns the `End`, with the objective that scikit-learn fits the estimator by.
"""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ortpipe.errors import ConvertError, nearest
from ortpipe.graph.core.builder import Builder
from ortpipe.settings import Catalogue
from ortpipe.stages.convert.sources.estimators.end import End as End
from ortpipe.stages.convert.sources.estimators.end import source_values as source_values
from ortpipe.stages.convert.sources.sklearn_columns import as_floats

Ends = Callable[[Builder, Any, ir.Value, Any], End]
AROUND = "ortpipe.stages.convert.sources"
HERE = f"{AROUND}.estimators"


CONVERTED = {  # module of scikit-learn → function here → classes
    "linear_model": {
        "linear:least_squares": "LinearRegression",
        "meta:inner": "RANSACRegressor",
        "linear:sparse_features": "Lars LarsCV OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV",
        "linear:ridge": "Ridge RidgeCV",
        "linear:elastic_net": "Lasso LassoCV LassoLars LassoLarsCV LassoLarsIC ElasticNet ElasticNetCV "
        "MultiTaskLasso MultiTaskLassoCV MultiTaskElasticNet MultiTaskElasticNetCV",
        "linear:bayesian_ridge": "BayesianRidge",
        "linear:ard": "ARDRegression",
        "linear:huber": "HuberRegressor",
        "linear:quantile": "QuantileRegressor",
        "linear:sgd": "SGDRegressor",
        "linear:passive_aggressive": "PassiveAggressiveRegressor",
        "linear:theil_sen": "TheilSenRegressor",
        "linear:glm": "PoissonRegressor GammaRegressor TweedieRegressor",
        "linear_classifiers:logistic": "LogisticRegression LogisticRegressionCV",
        "linear_classifiers:sgd": "SGDClassifier Perceptron",
        "linear_classifiers:passive_aggressive": "PassiveAggressiveClassifier",
        "linear_classifiers:ridge": "RidgeClassifier RidgeClassifierCV",
    },
    "svm": {
        "linear_classifiers:linear_svc": "LinearSVC",
        "linear_classifiers:linear_svr": "LinearSVR",
        "kernel:svc": "SVC NuSVC",
        "kernel:svr": "SVR NuSVR",
    },
    "kernel_ridge": {"kernel:kernel_ridge": "KernelRidge"},
    "cross_decomposition": {"linear:pls": "PLSRegression PLSCanonical CCA"},
    "discriminant_analysis": {
        "linear_classifiers:discriminant": "LinearDiscriminantAnalysis",
        "bayes:quadratic": "QuadraticDiscriminantAnalysis",
    },
    "naive_bayes": {
        "bayes:gaussian": "GaussianNB",
        "bayes:multinomial": "MultinomialNB ComplementNB",
        "bayes:bernoulli": "BernoulliNB",
        "bayes:categorical": "CategoricalNB",
    },
    "neighbors": {"bayes:nearest_centroid": "NearestCentroid"},
    "neural_network": {"neural:mlp": "MLPClassifier MLPRegressor"},
    "model_selection": {
        "meta:searched": "GridSearchCV RandomizedSearchCV HalvingGridSearchCV HalvingRandomSearchCV",
        "meta:threshold": "FixedThresholdClassifier TunedThresholdClassifierCV",
    },
    "ensemble": {
        "meta:voting": "VotingClassifier VotingRegressor",
        "meta:bagging": "BaggingClassifier BaggingRegressor",
        "meta:stacking": "StackingClassifier StackingRegressor",
    },
    "calibration": {"meta:calibrated": "CalibratedClassifierCV"},
    "semi_supervised": {"meta:inner": "SelfTrainingClassifier"},
    "frozen": {"meta:frozen": "FrozenEstimator"},
    "multiclass": {"meta:one_vs_rest": "OneVsRestClassifier", "meta:one_vs_one": "OneVsOneClassifier"},
    "multioutput": {
        "meta:regressors": "MultiOutputRegressor RegressorChain",
        "meta:multi_output_classifier": "MultiOutputClassifier",
        "meta:classifier_chain": "ClassifierChain",
    },
}
ESTIMATORS: Catalogue[Ends] = Catalogue(
    "estimator that ortpipe converts",
    {
        **{
            f"sklearn.{module}.{name}": f"{HERE}.{function}"
            for module, members in CONVERTED.items()
            for function, names in members.items()
            for name in names.split()
        },
        "sklearn.compose.TransformedTargetRegressor": f"{AROUND}.sklearn_walk:transformed_target",
        "sklearn.pipeline.Pipeline": f"{AROUND}.sklearn_graph:predictor",
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

TREES = "trees: the choice of a leaf has no gradient"
NEIGHBOURS = "nearest neighbours: it looks up rows and has no parameters"
OUTLIERS = "unsupervised: it detects outliers"
CLUSTERS = "unsupervised: it finds clusters"
REASONS = {  # class path, or how it begins → why a predictor is not converted
    "sklearn.tree.": TREES,
    "sklearn.ensemble.IsolationForest": OUTLIERS,
    "sklearn.ensemble.AdaBoost": "votes and medians of members have no gradient",
    "sklearn.ensemble.": TREES,
    "sklearn.neighbors.LocalOutlierFactor": OUTLIERS,
    "sklearn.neighbors.KernelDensity": "unsupervised: it estimates a density",
    "sklearn.neighbors.NeighborhoodComponentsAnalysis": "ortpipe cannot convert this transformer",
    "sklearn.neighbors.": NEIGHBOURS,
    "sklearn.semi_supervised.Label": NEIGHBOURS,
    "sklearn.svm.OneClassSVM": OUTLIERS,
    "sklearn.linear_model.SGDOneClassSVM": OUTLIERS,
    "sklearn.covariance.EllipticEnvelope": OUTLIERS,
    "sklearn.covariance.": "unsupervised: it estimates a covariance",
    "sklearn.cluster.": CLUSTERS,
    "sklearn.mixture.": CLUSTERS,
    "sklearn.dummy.": "it predicts a constant and ignores the features",
    "sklearn.isotonic.IsotonicRegression": "it is a lookup table for one column",
    "sklearn.gaussian_process.": "its predictions use all training rows and arbitrary compositions of kernels",
    "sklearn.multiclass.OutputCodeClassifier": "it predicts the label of the nearest code and has no scores",
}


def end_of(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """Write the graph of a fitted final estimator behind its features, a value or a table's columns; return its end."""
    check_supported(path := class_path(estimator))
    return ESTIMATORS[path](op, estimator, x if path in PASSES_COLUMNS else as_floats(x), dtype)


def check_supported(path: str, key: str | None = None) -> None:
    """Reject the class path of a final estimator, fitted or not, that has no graph."""
    if path in ESTIMATORS:
        return
    if (why := reason(path)) is not None:
        rule = "The estimator must have parameters that a gradient moves."
        fix = "Choose one that docs/reference/estimators.md lists."
        raise ConvertError(rule, key=key, got=f"{path}: {why}", fix=fix)
    raise ConvertError(
        "The estimator must be one that ortpipe converts.", key=key, got=path, fix=nearest(path, ESTIMATORS)
    )


def reason(path: str) -> str | None:
    """Return why a class path is not converted; None if no reason is known.

    >>> reason("sklearn.ensemble.RandomForestClassifier")
    'trees: the choice of a leaf has no gradient'
    """
    return next((why for prefix, why in REASONS.items() if path.startswith(prefix)), None)


def class_path(step: Any) -> str:
    """Return the public path of a class, such as sklearn.svm.SVC."""
    return f"{'.'.join(type(step).__module__.split('.')[:2])}.{type(step).__name__}"
