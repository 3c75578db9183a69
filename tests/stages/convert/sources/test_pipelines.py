import functools
import sys

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn import cluster, decomposition, feature_selection, preprocessing, random_projection
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler, Nystroem, RBFSampler, SkewedChi2Sampler
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.neural_network import BernoulliRBM
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

from ortpipe.data.feeds import feed_inputs
from ortpipe.data.raw_columns import RawColumn
from ortpipe.data.rows import Data, Rows
from ortpipe.data.sources.csv import Csv
from ortpipe.errors import ConvertError
from ortpipe.pipeline.digest import identity
from ortpipe.runtime.session import Session
from ortpipe.sklearn.parts import GivenEstimator
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
    make_pipeline(preprocessing.FunctionTransformer(np.negative), preprocessing.MaxAbsScaler(clip=True)),
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
    *(Nystroem(kernel, n_components=5, random_state=0) for kernel in ("rbf", "linear", "poly", "sigmoid")),
    cluster.FeatureAgglomeration(2),
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


def splines(**settings):
    x, y = numbers()
    return x, make_pipeline(SplineTransformer(**settings), Ridge()).fit(x, y)


def test_splines_of_no_rows_are_no_rows():
    x, pipeline = splines()
    [found] = Session(convert(pipeline).model).run({"X": x[:0].astype(np.float32)}, ["prediction"])
    assert found.shape == (0, 1)


def test_splines_that_are_constant_beyond_the_knots_are_so_up_to_infinity():
    x, pipeline = splines(extrapolation="constant")
    rows = np.repeat(x[:1].astype(np.float32), 4, axis=0)
    rows[:, 2] = [-np.inf, -1e3, np.inf, 1e3]
    [found] = Session(convert(pipeline).model).run({"X": rows}, ["prediction"])
    np.testing.assert_allclose(found[:, 0], pipeline.predict(np.clip(rows, -1e3, 1e3).astype(float)), rtol=1e-4)


@quiet
def test_the_size_of_splines_is_linear_in_their_knots():
    sizes = [convert(splines(n_knots=count)[1]).model.ByteSize() for count in (100, 400)]
    assert sizes[1] < 4.1 * sizes[0]


def test_splines_of_repeated_knots_give_what_they_give_in_scikit_learn():
    x, y = np.repeat([[0.0], [1], [2], [5]], [9, 1, 5, 4], axis=0), np.arange(19.0)
    pipeline = make_pipeline(SplineTransformer(6, knots="quantile"), Ridge()).fit(x, y)
    new = np.array([[-0.5], [0], [0.5], [1], [1.5], [2], [3], [5], [5.5]])
    [found] = Session(convert(pipeline).model).run({"X": new.astype(np.float32)}, ["prediction"])
    np.testing.assert_allclose(found[:, 0], pipeline.predict(new), rtol=1e-4)


@quiet
@pytest.mark.parametrize(
    ("degree", "extrapolation", "columns", "got"),
    [
        (1, "linear", 2, "degree=1 and extrapolation='linear' for 2 columns"),
        (0, "linear", 2, "degree=0 and extrapolation='linear' for 2 columns"),
        (3, "continue", 1, "degree=3 and extrapolation='continue' with two equal knots at an end"),
        (1, "constant", 1, "degree=1 and extrapolation='constant' with two equal knots at an end"),
    ],
)
def test_splines_that_scikit_learn_extends_in_its_own_way_are_rejected(degree, extrapolation, columns, got):
    x, y = np.repeat([[0.0], [1], [2], [5]], [9, 1, 5, 4], axis=0).repeat(columns, axis=1), np.arange(19.0)
    step = SplineTransformer(6, degree=degree, knots="quantile", extrapolation=extrapolation)
    with pytest.raises(ConvertError, match=got):
        convert(make_pipeline(step, Ridge()).fit(x, y))


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


def table(count=240):
    """An adult-like table: numbers, words and missing ones of both."""
    x, y = load_breast_cancer(return_X_y=True)
    x, y = x[:count], y[:count]
    random = np.random.default_rng(0)
    size = np.array(["small", "middle", "large"], object)[np.digitize(x[:, 0], [12, 15])]
    frame = pd.DataFrame(
        {"radius": x[:, 0], "texture": x[:, 1].round(), "size": size, "site": random.choice(list("abc"), count)}
    )
    frame.loc[random.random(count) < 0.1, "texture"] = np.nan
    frame.loc[random.random(count) < 0.1, "size"] = None
    frame["note"] = "free text"
    return frame, np.where(y, "benign", "malignant")


def kept(frame, label):
    """Rows as a table gives them."""
    inputs = {name: frame[name].to_numpy() for name in frame}
    inputs = {n: a if a.dtype.kind == "f" else frame[n].fillna("").to_numpy(object) for n, a in inputs.items()}
    kinds = {n: RawColumn("number" if a.dtype.kind == "f" else "word", 1) for n, a in inputs.items()}
    return Rows(inputs, label, kept=kinds)


def on_columns():
    return ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), ["radius", "texture"]),
            ("words", OneHotEncoder(handle_unknown="ignore", drop="if_binary", min_frequency=70), ["size", "site"]),
            ("filled", make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["size"]),
            (
                "codes",
                OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2),
                ["size"],
            ),
            ("means", TargetEncoder(random_state=0), make_column_selector("si")),
            ("gaps", MissingIndicator(features="all"), ["texture"]),
            (
                "counted",
                make_pipeline(SimpleImputer(), OneHotEncoder(handle_unknown="ignore", max_categories=5)),
                ["texture"],
            ),
        ]
    )


@quiet
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_pipeline_over_named_columns_reads_the_tables_own_columns(dtype):
    frame, label = table()
    pipeline = Pipeline([("columns", on_columns()), ("model", LogisticRegression(max_iter=300))])
    rows = Data(kept(frame[FIT], label[FIT]))
    config = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), dtype=dtype)
    artifact = convert(pipeline, config, data=rows)
    assert artifact.facts.inputs == ("radius", "texture", "size", "site")
    [record] = artifact.facts.lineage
    assert "does not read note of the data" in record["notes"]
    assert record["origins"]["coefficient"]["step"] == ["model"]
    new = frame[REST].assign(site="elsewhere")
    fitted = pipeline.fit(frame[FIT], label[FIT])
    feeds = {n: a for n, a in kept(new, label[REST]).inputs.items() if n != "note"}
    feeds = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    labels, found = Session(artifact.model).run(feeds, ["label", "probabilities"])
    np.testing.assert_allclose(found, fitted.predict_proba(new), atol=1e-5)
    assert (labels == fitted.predict(new)).mean() > 0.99
    assert convert(fitted, config).model.graph == convert(fitted, config, data=rows).model.graph


@quiet
def test_an_unknown_category_that_scikit_learn_raises_for_becomes_nan_and_is_told():
    frame, label = table()
    pipeline = make_pipeline(ColumnTransformer([("words", OneHotEncoder(), ["site"])]), LogisticRegression())
    artifact = convert(pipeline, data=Data(kept(frame, label)))
    assert any("unknown category becomes nan" in note for note in artifact.facts.lineage[0]["notes"])
    [found] = Session(artifact.model).run({"site": np.array(["a", "elsewhere"], object)}, ["probabilities"])
    np.testing.assert_array_equal(np.isnan(found).all(axis=1), [False, True])


@pytest.mark.parametrize(("keywords", "named"), [(None, "none"), ({"axis": 1}, "{'axis': 1}")])
def test_a_function_without_an_operator_is_rejected_with_its_keywords(keywords, named):
    x, y = numbers()
    step = preprocessing.FunctionTransformer(np.flip, kw_args=keywords)
    with pytest.raises(ConvertError, match=f"flip with keywords {named}"):
        convert(make_pipeline(step, Ridge()), data=Data(Rows({"X": x}, y)))


def test_words_where_numbers_were_fitted_are_refused():
    frame, label = table()
    words = ColumnTransformer([("words", OneHotEncoder(), ["site"])])
    fitted = make_pipeline(words, LogisticRegression()).fit(frame, label)
    with pytest.raises(ConvertError, match=r"words or numbers(.|\n)*numbers in column 'site'"):
        convert(fitted, data=Data(kept(frame.assign(site=1.0), label)))


def by_steps(text, **source):
    return ConvertConfig(SklearnEstimator(steps=yaml.safe_load(text), **source))


@quiet
def test_steps_of_a_config_make_the_pipeline_that_python_makes():
    frame, label = table()
    steps = """
    - ColumnTransformer:
        transformers:
          numbers: {columns: [radius, texture], steps: [SimpleImputer: {strategy: median}, StandardScaler]}
          logs: {columns: [radius], steps: [SimpleImputer, FunctionTransformer: {func: numpy.log1p}]}
          words: {columns: {dtype_include: object}, steps: [OneHotEncoder: {handle_unknown: ignore}]}
    - FeatureUnion:
        transformer_list:
          some: {SelectKBest: {k: 4, score_func: f_classif}}
          pca: [StandardScaler, PCA: {n_components: 2}]
    - LogisticRegression: {C: 0.5}
    """
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["radius", "texture"]),
            ("logs", make_pipeline(SimpleImputer(), preprocessing.FunctionTransformer(np.log1p)), ["radius"]),
            ("words", OneHotEncoder(handle_unknown="ignore"), ["size", "site", "note"]),
        ]
    )
    best, pca = feature_selection.SelectKBest(k=4), make_pipeline(StandardScaler(), decomposition.PCA(2))
    pipeline = make_pipeline(columns, FeatureUnion([("some", best), ("pca", pca)]), LogisticRegression(C=0.5))
    data = Data(kept(frame, label))
    assert convert(None, by_steps(steps), data=data).digest() == convert(pipeline, data=data).digest()


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("[StandardScalar, Ridge]", r"source\.steps\.0(.|\n)*StandardScalar(.|\n)*Did you mean 'StandardScaler'"),
        ("[os.system, Ridge]", r"source\.steps\.0(.|\n)*os\.system"),
        ("[sklearn.utils.os.system, Ridge]", r"class of scikit-learn"),
        ("[{Ridge: {alpha: 1, beta: 2}}]", r"source\.steps\.0 must be parameters of Ridge(.|\n)*beta"),
        ("[{PCA: {}, Ridge: {}}]", r"a class with its parameters"),
        ("[{ColumnTransformer: {transformers: {a: [x]}}}, Ridge]", r"transformers\.a(.|\n)*columns and steps"),
        ("[{FunctionTransformer: {func: numpy.fft}}, Ridge]", r"has an ONNX operator(.|\n)*numpy\.fft"),
        ("[sklearn.impute.KNNImputer, Ridge]", "KNNImputer"),
    ],
)
def test_steps_that_are_not_known_are_refused_by_their_place(steps, message):
    x, y = numbers()
    with pytest.raises(ConvertError, match=message) as caught:
        convert(None, by_steps(steps), data=Data(Rows({"X": x}, y)))
    assert "(.|" not in str(caught.value)


def test_the_seed_is_the_random_state_of_parts_without_one():
    x, y = numbers()
    data = Data(Rows({"X": x}, y))
    steps = "[{RBFSampler: {n_components: 4}}, Ridge]"
    first, again, other = (convert(None, by_steps(steps, seed=seed), data=data).digest() for seed in (1, 1, 2))
    assert first == again != other


def test_a_function_of_the_users_own_makes_the_pipeline(tmp_path, monkeypatch):
    (tmp_path / "own_pipeline.py").write_text(
        "from sklearn.linear_model import Ridge\nfrom sklearn.pipeline import make_pipeline\n"
        "from sklearn.preprocessing import StandardScaler\n"
        "def make(alpha):\n    return make_pipeline(StandardScaler(), Ridge(alpha))\n"
        "def broken(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    x, y = numbers()
    data = Data(Rows({"X": x}, y))
    source = SklearnEstimator(function="own_pipeline:make", params={"alpha": 0.5})
    made = convert(None, ConvertConfig(source), data=data)
    assert made.digest() == convert(make_pipeline(StandardScaler(), Ridge(0.5)), data=data).digest()
    assert "code" in identity(source)["function"]
    with pytest.raises(ConvertError, match=r"must return an estimator or a Pipeline(.|\n)*returned 3"):
        convert(None, ConvertConfig(SklearnEstimator(function="own_pipeline:broken")), data=data)


@quiet
def test_a_fitted_pipeline_from_a_file_is_what_it_was(tmp_path):
    frame, label = table()
    best = feature_selection.SelectKBest(k=9)
    fitted = make_pipeline(on_columns(), best, LogisticRegression()).fit(frame, label)
    import skops.io

    skops.io.dump(fitted, tmp_path / "p.skops")
    read = convert(None, ConvertConfig(SklearnEstimator(path=str(tmp_path / "p.skops"))))
    assert read.digest() == convert(fitted).digest()


TARGETS = [
    *(preprocessing.StandardScaler(), preprocessing.MinMaxScaler(), preprocessing.MaxAbsScaler()),
    *(preprocessing.RobustScaler(), PowerTransformer(), PowerTransformer("box-cox", standardize=False)),
    preprocessing.FunctionTransformer(np.log1p, np.expm1),
    make_pipeline(preprocessing.FunctionTransformer(np.log, np.exp), StandardScaler()),
]


@pytest.mark.parametrize("transformer", TARGETS, ids=name_of)
def test_a_transformed_target_is_predicted_on_its_own_scale(transformer):
    x, y = numbers()
    inner = make_pipeline(PolynomialFeatures(), StandardScaler(), Ridge())
    estimator = TransformedTargetRegressor(inner, transformer=transformer, check_inverse=False).fit(x[FIT], y[FIT])
    config = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), dtype="float64")
    artifact = convert(estimator, config, data=Data(Rows({"X": x[REST]}, y[REST])))
    [record] = artifact.facts.lineage
    assert record["discrepancy"] < 1e-9
    assert record["origins"]["coefficient"]["step"] == ["regressor_", "ridge"]
    assert any("on its own scale" in note for note in record["notes"])


@pytest.mark.parametrize(("method", "power"), [("box-cox", 0), ("yeo-johnson", 0), ("yeo-johnson", 2)])
def test_a_power_of_zero_has_an_exponential_as_its_inverse(method, power):
    x, y = numbers()
    y = y / y.max()
    estimator = TransformedTargetRegressor(Ridge(), transformer=PowerTransformer(method), check_inverse=False).fit(x, y)
    estimator.transformer_.lambdas_[:] = power
    [record] = convert(
        estimator,
        ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), dtype="float64"),
        data=Data(Rows({"X": x}, y)),
    ).facts.lineage
    assert record["discrepancy"] < 1e-9


@quiet
def test_a_search_over_a_pipeline_of_named_columns_reads_the_tables_own_columns():
    frame, label = table()
    pipeline = make_pipeline(on_columns(), LogisticRegression())
    search = GridSearchCV(pipeline, {"logisticregression__C": [0.1, 1]}, cv=2)
    artifact = convert(search, data=Data(kept(frame, label)))
    assert artifact.facts.inputs == ("radius", "texture", "size", "site")
    assert artifact.facts.lineage[0]["discrepancy"] < 1e-5


@quiet
def test_the_usual_steps_need_no_other_converter(monkeypatch):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    frame, label = table()
    convert(make_pipeline(on_columns(), LogisticRegression()), data=Data(kept(frame, label)))


@quiet
def test_texts_are_counted_by_what_skl2onnx_makes_of_the_vectorizer():
    words = np.random.default_rng(0).choice(["The", "cat", "dog", "runs", "fast", "slow", "red", "blue"], (60, 6))
    texts = np.array([" ".join(row) for row in words], object)
    data = Data(Rows({"text": texts}, (words == "dog").any(axis=1), kept={"text": RawColumn("word")}))
    vectorizer = ColumnTransformer([("text", TfidfVectorizer(ngram_range=(1, 2)), "text")])
    assert convert(make_pipeline(vectorizer, LogisticRegression()), data=data).facts.lineage[0]["discrepancy"] < 1e-5


@pytest.mark.parametrize(
    "encoder",
    [
        OneHotEncoder(handle_unknown="ignore"),
        OrdinalEncoder(),
        make_pipeline(SimpleImputer(missing_values=None, strategy="most_frequent"), OneHotEncoder()),
    ],
    ids=["one_hot", "ordinal", "imputer"],
)
def test_none_is_the_missing_word_of_an_estimator_that_was_fitted_on_it(encoder):
    words = np.array(["p", "q", None, "q"] * 5, object)
    given = pd.DataFrame({"word": pd.Series(words, dtype=object)})
    pipeline = make_pipeline(ColumnTransformer([("w", encoder, ["word"])]), Ridge()).fit(given, np.arange(20.0))
    rows = Rows({"word": np.where(words == None, "", words)}, np.arange(20.0), kept={"word": RawColumn("word", 5)})  # noqa: E711
    made = convert(pipeline, data=Data(rows))
    [predicted] = Session(made.model).run(rows.inputs, ["prediction"])
    np.testing.assert_allclose(predicted[:, 0], pipeline.predict(given), rtol=1e-5)


def test_a_table_may_have_one_column_of_numbers():
    rows = Rows({"size": np.arange(9.0)}, np.arange(9.0) ** 2, kept={"size": RawColumn("number")})
    steps = "[{ColumnTransformer: {transformers: {n: {columns: [size], steps: [StandardScaler]}}}}, Ridge]"
    assert convert(None, by_steps(steps), data=Data(rows)).facts.inputs == ("size",)
    assert convert(Ridge(), data=Data(rows)).facts.inputs == ("size",)


@pytest.mark.parametrize(
    ("encoder", "gaps"),
    [
        (OneHotEncoder(), False),
        (OneHotEncoder(), True),
        (SimpleImputer(strategy="most_frequent"), True),  # of scikit-learn, it reads no booleans
        (None, False),
    ],
)
def test_truth_values_of_a_table_are_booleans_for_a_pipeline_and_words_for_its_graph(encoder, gaps, tmp_path):
    """The oracle is scikit-learn's own prediction for a frame of booleans, or of 1 and 0 beside gaps."""
    vip = np.array([True, False, True, False, False] * 20)
    words = np.where(vip, "true", "false").astype(object)
    words[[7, 8]] = ["", ""] if gaps else words[[7, 8]]
    x = np.random.default_rng(0).normal(size=100).round(3)
    lines = [f"{a},{word},{a + 2 * v:.3f}" for a, word, v in zip(x, words, vip, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,vip,y", *lines]))
    steps = [] if encoder is None else [ColumnTransformer([("vip", encoder, ["vip"])], remainder="passthrough")]
    pipeline = make_pipeline(*steps, Ridge())
    data = Data(Csv(path=str(tmp_path / "rows.csv"), label="y")())
    model = convert(None, ConvertConfig(GivenEstimator(pipeline), "float64"), data=data)
    frame = pd.DataFrame({"a": x, "vip": vip if not gaps else np.where(words == "", np.nan, vip)})
    expected = pipeline.fit(frame, data.train.label).predict(frame)
    [made] = Session(model.model).run({"a": x, "vip": words}, ["prediction"])
    np.testing.assert_allclose(made.ravel(), expected, rtol=1e-9)


def test_words_in_front_of_an_estimator_are_columns_of_0_and_1(tmp_path):
    """OneHotEncoder and LinearRegression of scikit-learn 1.9."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"city": rng.choice(["Rome", "Oslo", ""], 60), "size": rng.normal(size=60)})
    frame = frame.assign(vip=rng.random(60) < 0.5, y=frame["size"] + (frame.city == "Oslo"))
    frame.to_csv(tmp_path / "rows.csv", index=False)
    rows = Csv(path=str(tmp_path / "rows.csv"), label="y")()
    config = ConvertConfig(SklearnEstimator("sklearn.linear_model.LinearRegression", scaler="standard"))
    artifact = convert(None, config, data=Data(rows))
    assert "words are columns of 0 and 1: city 3; an unknown word is 0 in all of them" in str(artifact.facts.lineage)
    [found] = Session(artifact.model).run(feed_inputs(artifact.model, artifact.facts, rows), ["prediction"])
    table = np.column_stack([pd.get_dummies(frame.city), frame["size"], frame.vip]).astype(float)
    np.testing.assert_allclose(found.ravel(), LinearRegression().fit(table, frame.y).predict(table), atol=1e-5)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([f"r{i}" for i in range(10_001)], "10,001 words in one column"),
        (["2013-01-31"] * 10_001, "dates in column 'new'"),
        ([1.0, None] + [2.0] * 9_999, "1 row without a value in column 'new'"),
    ],
    ids=["too many words", "dates", "a missing number"],
)
def test_columns_that_an_estimator_cannot_read_are_named(column, message, tmp_path):
    pd.DataFrame({"new": column, "y": 1.0}).to_csv(tmp_path / "rows.csv", index=False)
    data = Data(Csv(path=str(tmp_path / "rows.csv"), label="y")())
    with pytest.raises(ConvertError, match=message):
        convert(None, ConvertConfig(SklearnEstimator("sklearn.linear_model.LinearRegression")), data=data)
