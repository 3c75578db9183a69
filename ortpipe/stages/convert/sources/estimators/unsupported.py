"""Reasons why predictors of scikit-learn are not converted, by class path."""

TREES = "trees: the choice of a leaf has no gradient"
NEIGHBOURS = "nearest neighbours: it looks up rows and has no parameters"
OUTLIERS = "unsupervised: it detects outliers"
CLUSTERS = "unsupervised: it finds clusters"
REASONS = {
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


def reason(path: str) -> str | None:
    """Return why a class path is not converted; None if no reason is known.

    >>> reason("sklearn.ensemble.RandomForestClassifier")
    'trees: the choice of a leaf has no gradient'
    """
    return next((why for prefix, why in REASONS.items() if path.startswith(prefix)), None)
