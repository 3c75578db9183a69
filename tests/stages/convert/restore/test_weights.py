"""Trained weights go back into the estimator, or the state_dict, that they come from."""

import base64
import pickle
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import StackingRegressor, VotingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.multiclass import OneVsOneClassifier
from sklearn.naive_bayes import CategoricalNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from ortpipe import Artifact, Data, Rows, convert, restore
from ortpipe.errors import ModelError
from ortpipe.graph.core.edit import set_initializers
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.restore import convert_record, named_as_in_state_dict, weights_of
from ortpipe.stages.convert.sources.sklearn_estimator import read_estimator
from ortpipe.stages.convert.sources.stored_estimator import ELEMENTS, check_only_predicts, estimator_of, record_of

X = np.random.default_rng(0).normal(100, 10, (30, 3)).astype(np.float32)
TWO, THREE, VALUES = np.arange(30) % 2, np.arange(30) % 3, X[:, 0] / 10
CASES = [
    (LinearRegression(), VALUES),
    (Ridge(), X[:, :2]),
    (LogisticRegression(), TWO),
    (LogisticRegression(fit_intercept=False), THREE),
    (SGDRegressor(), VALUES),
    (SGDClassifier(loss="log_loss"), THREE),
    (MLPRegressor(hidden_layer_sizes=(4,), max_iter=1), VALUES),
    (MLPClassifier((4,), max_iter=1), np.array(["no", "yes"])[TWO]),
]
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::sklearn.exceptions.{name}Warning")
    for name in ("Convergence", "DataConversion")
]


def _moved(artifact: Artifact) -> Artifact:
    """Return what training might: other parameters."""
    model, generator = artifact.ir_model(), np.random.default_rng(1)
    arrays = {name: artifact.initializers[name] for name in artifact.facts.parameters}
    noise = {name: generator.normal(0, 0.1, a.shape).astype(a.dtype) for name, a in arrays.items()}
    set_initializers(model, {name: array + noise[name] for name, array in arrays.items()})
    return Artifact(model, artifact.facts, artifact.tensors)


@pytest.mark.parametrize("fitted", [True, False], ids=["fitted before", "fitted by convert"])
@pytest.mark.parametrize(("estimator", "label"), CASES, ids=[type(case[0]).__name__ for case in CASES])
def test_the_estimator_predicts_what_the_trained_model_does(estimator, label, fitted: bool) -> None:
    pipeline = make_pipeline(StandardScaler(), clone(estimator))
    if fitted:
        pipeline.fit(X, label)
    rows = label if label.dtype.kind in "iU" else label.reshape(30, -1).astype(np.float32)
    source = convert(pipeline, data=Data(train=Rows({"X": X}, rows)))
    trained = _moved(source)
    again = restore(trained, pipeline) if fitted else restore(trained)
    predicted = again.predict(X) if source.facts.task == "regression" else again.predict_proba(X)
    [expected] = Session(trained.model).run({"X": X}, [source.facts.prediction])
    np.testing.assert_allclose(predicted.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    assert type(again) is type(pipeline)
    if fitted:
        same = restore(source, pipeline)[-1]
        for name, array in vars(pipeline[-1]).items():
            if isinstance(array, np.ndarray):
                np.testing.assert_array_equal(getattr(same, name), array)


def test_what_training_did_not_move_stays_as_finely_as_it_was() -> None:
    estimator = LinearRegression().fit(X.astype(np.float64), VALUES.astype(np.float64))
    assert restore(convert(estimator), estimator).coef_.tobytes() == estimator.coef_.tobytes()


def test_a_sparse_estimator_stays_sparse() -> None:
    estimator = LogisticRegression().fit(X, TWO).sparsify()
    trained = _moved(convert(estimator))
    again = restore(trained, estimator)
    assert type(again.coef_) is type(estimator.coef_)
    np.testing.assert_array_equal(again.coef_.toarray().T, trained.initializers["coefficient"])


def test_a_second_copy_that_predict_reads_is_written_too() -> None:
    estimator = LinearRegression().fit(X, VALUES)
    estimator.copy_ = -estimator.coef_
    source = convert(estimator)
    [record] = source.facts.lineage
    steps = [["scale", -1.0], *record["origins"]["coefficient"]["transform"]]
    record["origins"]["coefficient"]["also"] = [{"attribute": "copy_", "transform": steps}]
    again = restore(_moved(source), estimator)
    np.testing.assert_array_equal(again.copy_, -again.coef_)
    assert np.abs(again.coef_ - estimator.coef_).min() > 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (make_pipeline(StandardScaler(), Ridge()).fit(X + 5, VALUES), "must predict what the trained model predicts"),
        (make_pipeline(StandardScaler(), Ridge()).fit(X[:, :2], VALUES), "must fit its place"),
        (make_pipeline(StandardScaler(), StandardScaler()).fit(X), "has none for coefficient"),
        (Ridge().fit(X, VALUES), "has none for coefficient"),
    ],
    ids=["another scaler", "another width", "another kind", "no Pipeline"],
)
def test_another_estimator_is_refused(other, message: str) -> None:
    source = convert(make_pipeline(StandardScaler(), Ridge()).fit(X, VALUES))
    with pytest.raises(ModelError, match=message):
        restore(_moved(source), other)


def test_estimators_inside_of_others_get_theirs() -> None:
    estimator = OneVsOneClassifier(SVC()).fit(X, THREE)
    trained = _moved(convert(estimator))
    again = restore(trained, estimator)
    np.testing.assert_array_equal(again.estimators_[1].support_vectors_, trained.initializers["0_2.support_vectors"])


def test_rows_are_wanted_where_drawn_ones_are_none_that_the_estimator_takes() -> None:
    counts = np.random.default_rng(0).integers(0, 3, (30, 3)).astype(np.float32)
    estimator = CategoricalNB().fit(counts, TWO)
    with pytest.raises(ModelError, match=r"(?s)needs rows that the estimator accepts.*Negative values.*Give data"):
        restore(convert(estimator), estimator)
    data = Data(train=Rows({"X": counts}, TWO))
    assert type(restore(_moved(convert(estimator, data=data)), estimator, data=data)) is CategoricalNB


def test_an_estimator_that_was_given_fitted_is_not_kept() -> None:
    with pytest.raises(ModelError, match=r"(?s)must hold the estimator that convert fitted.*give the fitted estimator"):
        restore(convert(Ridge().fit(X, VALUES)))


class _Own(Ridge):
    pass


def test_of_a_record_only_scikit_learns_own_estimators_are_opened_without_trust() -> None:
    for estimator, label in CASES:
        record = record_of(make_pipeline(StandardScaler(), clone(estimator)).fit(X, label))
        assert estimator_of(record, trust=False)[-1].get_params() == estimator.get_params()
    record = record_of(make_pipeline(SimpleImputer(), OneHotEncoder(), Ridge()).fit(X, VALUES))
    assert len(estimator_of(record, trust=False)) == 3
    everything = make_column_transformer((StandardScaler(), make_column_selector()))
    record = record_of(make_pipeline(everything, VotingRegressor([("a", Ridge())])).fit(pd.DataFrame(X), VALUES))
    assert len(estimator_of(record, trust=False)) == 2
    (wide := Ridge()).coef_ = np.broadcast_to(0.0, 2 * ELEMENTS)  # numbers take no time
    check_only_predicts(wide)
    record = record_of(_Own().fit(X, VALUES))
    with pytest.raises(ModelError, match=r"(?s)_Own.*--trust"):
        estimator_of(record, trust=False)
    assert type(estimator_of(record, trust=True)) is _Own
    assert record_of(Ridge(solver=lambda: None)) == {}


class _As:
    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def _caching():
    return Pipeline([("s", StandardScaler()), ("r", Ridge())], memory="cache").fit(X, VALUES)


def _stack(method):
    stack = StackingRegressor([("a", Ridge())]).fit(X, VALUES)
    stack.stack_method_ = [method]
    return stack


def _with(**attributes):
    vars(ridge := Ridge()).update(attributes)
    return ridge


def _sparse(columns):
    lasso = Lasso(alpha=0.01).fit(X, VALUES)
    lasso.sparse = scipy.sparse.csr_matrix((np.ones(2), np.arange(2), [0, 2]), shape=(1, 3))
    lasso.sparse.indices[:] = columns
    return lasso


TRICKS = {  # what a predict would then do
    "open a folder of pickles": (_caching, r"memory 'cache'"),
    "fit": (lambda: _stack("fit"), "stack_method_ 'fit'"),
    "call another's": (lambda: _with(predict=np.float64), "predict"),
    "copy by its own": (lambda: _with(__deepcopy__=Ridge), "__deepcopy__"),
    "read numbers as pointers": (
        lambda: _As(np.dtype, ("O", False, True), (3, "|", None, None, None, -1, -1, 0)),
        "a state for dtype",
    ),
    "read bytes as pointers": (lambda: _As(np.ndarray, ((1,), np.dtype("O"), b"x" * 8)), "numpy.ndarray over a buffer"),
    "read beside a sparse matrix": (lambda: _sparse([0, 9]), "csr_matrix with invalid indices"),
    "change a class for everybody": (
        lambda: b"\x80\x02csklearn.linear_model._ridge\nRidge\nN}X\x01\0\0\0aK\x01s\x86b.",
        "a state for",
    ),
}


@pytest.mark.parametrize(("made", "said"), TRICKS.values(), ids=TRICKS)
def test_an_estimator_that_would_do_more_than_predict_is_not_opened(made, said: str, tmp_path: Path) -> None:
    estimator = made()
    pickled = estimator if isinstance(estimator, bytes) else pickle.dumps(estimator)
    with pytest.raises(ModelError, match=rf"(?s)An untrusted .* must .*{said}.*--trust"):
        estimator_of({"fitted": base64.b85encode(zlib.compress(pickled)).decode()}, trust=False)
    if hasattr(estimator, "n_features_in_"):
        import skops.io

        (file := tmp_path / "e.skops").write_bytes(skops.io.dumps(estimator))
        with pytest.raises(ModelError, match=rf"(?s)An untrusted .* must .*{said}"):
            read_estimator(file, trust=False)


MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y)
    <float[2,2] fc_weight = {1, 2, 3, 4}, float[2] fc_bias = {0, 1}> { y = Gemm<transB = 1>(X, fc_weight, fc_bias) }"""


def _from_torch() -> Artifact:
    import onnx

    return convert(onnx.parser.parse_model(MODEL))


def test_a_state_dict_gets_the_weights_of_its_names() -> None:
    trained = _moved(_from_torch())
    state = {"fc_weight": np.array([[1, 2], [3, 4]], np.float16), "fc_bias": np.float64([0, 1]), "steps": np.int64(3)}
    new = restore(trained, state)
    assert {name: value.dtype.name for name, value in new.items()} == {k: v.dtype.name for k, v in state.items()}
    np.testing.assert_array_equal(new["fc_weight"], trained.initializers["fc_weight"].astype(np.float16))
    np.testing.assert_array_equal(new["fc_bias"], trained.initializers["fc_bias"])
    assert new["steps"] == 3
    assert state["fc_bias"].tolist() == [0, 1]
    arrays = named_as_in_state_dict(
        weights_of(trained.model, trained.initializers, trained.facts.as_json(), trained.tensors)
    )
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: trained.initializers[name].tolist() for name in ("fc_weight", "fc_bias")
    }


def test_names_and_shapes_that_do_not_fit_and_turned_squares_are_refused() -> None:
    trained = _moved(_from_torch())
    state = {"fc_weight": np.float32([[1, 2], [3, 4]]), "fc_bias": np.float32([0, 1])}
    with pytest.raises(ModelError, match=r"has none for fc_bias; it has fc_weight, module.fc_bias"):
        restore(trained, {"fc_weight": state["fc_weight"], "module.fc_bias": state["fc_bias"]})
    with pytest.raises(ModelError, match=r"fc_bias: shape \(2,\) instead of \(3,\)"):
        restore(trained, {**state, "fc_bias": np.zeros(3, np.float32)})
    with pytest.raises(ModelError, match=r"(?s)same layout in the state_dict as in the model.*fc_weight transposed"):
        restore(trained, {**state, "fc_weight": state["fc_weight"].T})


def test_weights_that_an_exporter_multiplied_by_a_normalization_are_refused_where_that_is_gone() -> None:
    trained = _moved(_from_torch())
    folded = {"fc_weight": np.float32([[1, 2], [3, 5]]), "fc_bias": np.float32([0, 1])}
    statistics = {"bn.running_mean": np.zeros(2, np.float32), "bn.running_var": np.ones(2, np.float32)}
    assert restore(trained, folded).keys() == folded.keys()  # another start of the same net is as good
    with pytest.raises(
        ModelError, match=r"(?s)no bn.running_var; the run started from another fc_weight.*convert=torch"
    ):
        restore(trained, {**folded, **statistics})


@pytest.mark.parametrize("into", ["net.pt", SimpleNamespace(state_dict=dict)])
def test_a_module_or_a_file_is_no_state_dict(into: object) -> None:
    with pytest.raises(ModelError, match=r"module.state_dict\(\).*ortpipe restore"):
        restore(_from_torch(), into)


def test_tied_weights_are_written_under_each_name_that_the_state_dict_has() -> None:
    source = _from_torch()
    [record] = source.facts.lineage
    record["origins"] = {"fc_weight": {"state_dict": ["fc_weight", "head.weight", "nowhere"]}}
    trained, weight = _moved(source), np.float32([[1, 2], [3, 4]])
    new = restore(trained, {"fc_weight": weight, "head.weight": weight, "fc_bias": np.float32([0, 1])})
    np.testing.assert_array_equal(new["fc_weight"], new["head.weight"])
    np.testing.assert_array_equal(new["head.weight"], trained.initializers["fc_weight"])
    assert "origins" in convert_record(trained.facts.as_json())
