"""Reasons why predictors of scikit-learn are not converted, by class path."""

TREES = "trees: which leaf a row falls into has no gradient"
NEIGHBOURS = "neighbours: it looks rows up, and has no parameters"
OUTLIERS = "it finds outliers among rows without labels"
CLUSTERS = "it finds clusters among rows without labels"
REASONS = {
    "sklearn.tree.": TREES,
    "sklearn.ensemble.IsolationForest": OUTLIERS,
    "sklearn.ensemble.AdaBoost": "its members vote, or their median is taken: neither has a gradient",
    "sklearn.ensemble.": TREES,
    "sklearn.neighbors.LocalOutlierFactor": OUTLIERS,
    "sklearn.neighbors.KernelDensity": "it estimates a density of rows without labels",
    "sklearn.neighbors.NeighborhoodComponentsAnalysis": "a transformer that is not written as a graph",
    "sklearn.neighbors.": NEIGHBOURS,
    "sklearn.semi_supervised.Label": NEIGHBOURS,
    "sklearn.svm.OneClassSVM": OUTLIERS,
    "sklearn.linear_model.SGDOneClassSVM": OUTLIERS,
    "sklearn.covariance.EllipticEnvelope": OUTLIERS,
    "sklearn.covariance.": "it estimates a covariance of rows without labels",
    "sklearn.cluster.": CLUSTERS,
    "sklearn.mixture.": CLUSTERS,
    "sklearn.dummy.": "it predicts a constant, whatever the features",
    "sklearn.isotonic.IsotonicRegression": "a table of steps of one column, looked up by rows",
    "sklearn.gaussian_process.": "its predictions go through all training rows and kernels that are composed freely",
    "sklearn.multiclass.OutputCodeClassifier": "it gives the label of the nearest code, and no scores",
}


def reason(path: str) -> str | None:
    """Return why a class path is not converted; None if no reason is known.

    >>> reason("sklearn.ensemble.RandomForestClassifier")
    'trees: which leaf a row falls into has no gradient'
    """
    return next((why for prefix, why in REASONS.items() if path.startswith(prefix)), None)
