import functools

import numpy as np
import pytest
from sklearn import cluster, decomposition, feature_selection, preprocessing, random_projection
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler, RBFSampler, SkewedChi2Sampler
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.neural_network import BernoulliRBM
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
)

from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.convert.sources.sklearn_transformers import FUNCTIONS, TRANSFORMERS
from ortpipe.stages.convert.stage import convert

FIT, REST = slice(0, None, 2), slice(1, None, 2)
spline = functools.partial(SplineTransformer, n_knots=4)
STEPS = [
    StandardScaler(),
    preprocessing.MinMaxScaler(),
    preprocessing.MaxAbsScaler(),
    preprocessing.RobustScaler(),
    preprocessing.RobustScaler(with_centering=False, with_scaling=False),
    *(preprocessing.Normalizer(norm) for norm in ("l1", "l2", "max")),
    preprocessing.Binarizer(threshold=0.5),
    PolynomialFeatures(2),
    PolynomialFeatures(3, interaction_only=True, include_bias=False),
    *(spline(extrapolation=e) for e in ("constant", "linear", "continue", "periodic")),
    spline(degree=2, knots="quantile", include_bias=False),
    spline(degree=1, extrapolation="continue"),
    KBinsDiscretizer(4, quantile_method="averaged_inverted_cdf"),
    KBinsDiscretizer(5, encode="ordinal", strategy="uniform"),
    QuantileTransformer(n_quantiles=50),
    QuantileTransformer(n_quantiles=50, output_distribution="normal"),
    PowerTransformer(),
    PowerTransformer("box-cox", standardize=False),
    preprocessing.FunctionTransformer(),
    *(preprocessing.FunctionTransformer(getattr(np, name)) for name in FUNCTIONS),
    decomposition.PCA(3),
    decomposition.PCA(3, whiten=True),
    decomposition.IncrementalPCA(3),
    decomposition.TruncatedSVD(3),
    decomposition.FastICA(3, random_state=0),
    decomposition.FactorAnalysis(2),
    decomposition.SparsePCA(2, max_iter=20, random_state=0),
    decomposition.MiniBatchSparsePCA(2, max_iter=20, random_state=0),
    decomposition.KernelPCA(3, kernel="rbf"),
    random_projection.GaussianRandomProjection(4, random_state=0),
    random_projection.SparseRandomProjection(4, random_state=0),
    RBFSampler(n_components=6, random_state=0),
    SkewedChi2Sampler(n_components=6, random_state=0),
    AdditiveChi2Sampler(),
    cluster.KMeans(3, random_state=0),
    cluster.MiniBatchKMeans(3, random_state=0),
    cluster.BisectingKMeans(3, random_state=0),
    cluster.Birch(n_clusters=None, threshold=0.9),
    BernoulliRBM(3, n_iter=3, random_state=0),
    feature_selection.SelectKBest(feature_selection.f_regression, k=3),
    feature_selection.VarianceThreshold(0.01),
    feature_selection.RFE(Ridge(), n_features_to_select=3),
    SimpleImputer(strategy="median", add_indicator=True),
    FeatureUnion([("pca", decomposition.PCA(2)), ("raw", "passthrough")], transformer_weights={"pca": 0.5}),
    make_pipeline(StandardScaler(), decomposition.PCA(2)),
    ColumnTransformer([("a", StandardScaler(), [0, 2]), ("b", "passthrough", slice(4, 6))], remainder="drop"),
    ColumnTransformer([("a", KBinsDiscretizer(3, quantile_method="linear"), [1])], remainder=StandardScaler()),
]
quiet = pytest.mark.filterwarnings("ignore")


def numbers():
    """Positive numbers of scales that differ, some of them equal."""
    x, y = load_diabetes(return_X_y=True)
    x = np.round(x[:, :6] * [20, 1, 20, 20, 2, 9], 2)
    return x - x.min(axis=0) + 0.01, y


def name_of(value):
    return type(value).__name__ if hasattr(value, "get_params") else None


@quiet
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_a_step_gives_in_the_graph_what_it_gives_in_scikit_learn(step, dtype):
    x, y = numbers()
    pipeline = make_pipeline(step, Ridge()).fit(x[FIT], y[FIT])
    artifact = convert(pipeline, ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), dtype=dtype))
    assert artifact.facts.parameters == ("coefficient", "intercept")
    [found] = Session(artifact.model).run({"X": x[REST].astype(dtype)}, ["prediction"])
    assert found.dtype == dtype
    expected = pipeline.predict(x[REST])
    tolerance = 1e-4 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(found[:, 0], expected.reshape(-1), atol=tolerance * np.abs(expected).max(), rtol=0)


def test_every_transformer_of_the_table_is_tried():
    tried = {type(step).__name__ for step in STEPS} | {"LinearDiscriminantAnalysis", "NeighborhoodComponentsAnalysis"}
    assert {path.rpartition(".")[2] for path in TRANSFORMERS} <= tried


@quiet
@pytest.mark.parametrize("step", [LinearDiscriminantAnalysis(), NeighborhoodComponentsAnalysis(2, max_iter=5)])
def test_steps_that_learn_from_labels_give_what_they_give_in_scikit_learn(step):
    x, y = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), step, LogisticRegression()).fit(x[FIT], y[FIT])
    [found] = Session(convert(pipeline).model).run({"X": x[REST].astype(np.float32)}, ["probabilities"])
    np.testing.assert_allclose(found, pipeline.predict_proba(x[REST]), atol=1e-4)
