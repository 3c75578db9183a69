from __future__ import annotations

import inspect
import logging
import pickle
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV

from ortpipe.compat import (
    AbsoluteLearningLoss,
    ElasticLearningLoss,
    ElasticLearningPenalty,
    LearningRateSGD,
    LearningRateSGDNesterov,
    NegLogLearningLoss,
    NoLearningPenalty,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    SquareLearningLoss,
)
from ortpipe.errors import ConfigError, ConvergenceError, DataError, LossError, NotFittedError, TrainError

HEAD = '<ir_version: 10, opset_import: ["": 21]> '
LINEAR = """g (double[N,3] X) => (double[N,K] y)
 <double[3,K] w = {W}, double[K] b = {B}> { z = MatMul(X, w) y = Add(z, b) }"""
RNG = np.random.default_rng(0)
X = RNG.normal(size=(53, 3))
Y = X @ [[1.0], [-2.0], [0.5]] + 1.5
WEIGHTS = RNG.uniform(0.5, 2, len(X))
CONSTANT = LearningRateSGD(0.05, learning_rate="constant")


def linear(columns=1):
    values = np.random.default_rng(1).normal(size=4 * columns).round(2)
    w, b = (", ".join(str(v) for v in part) for part in (values[: 3 * columns], values[3 * columns :]))
    return onnx.parser.parse_model(
        HEAD + LINEAR.replace("K", str(columns)).replace("{W", "{" + w).replace("{B", "{" + b)
    )


def optimizer(columns=1, **arguments):
    return OrtGradientForwardBackwardOptimizer(linear(columns), **{"max_iter": 5, **arguments})


def log_loss(s, y):
    return -np.log(expit(s)) * y - np.log(expit(-s)) * (1 - y)


LOSSES = {
    "square_error": (lambda s, y: 0.5 * (s - y) ** 2, SquareLearningLoss),
    "absolute_error": (lambda s, y: abs(s - y), AbsoluteLearningLoss),
    "elastic_error": (lambda s, y: 0.5 * abs(s - y) + 0.5 * (s - y) ** 2, ElasticLearningLoss),
    "log": (log_loss, NegLogLearningLoss),
}


def test_the_signature_is_the_documented_one():
    parameters = inspect.signature(OrtGradientForwardBackwardOptimizer).parameters
    names = [
        *("model_onnx", "weights_to_train", "loss_output_name", "max_iter", "training_optimizer_name", "batch_size"),
        *("learning_rate", "device", "warm_start", "verbose", "validation_every", "learning_loss", "enable_logging"),
        *("weight_name", "learning_penalty", "exc"),
    ]
    assert list(parameters) == names
    assert parameters["weights_to_train"].default is parameters["learning_penalty"].default is None
    assert (parameters["learning_loss"].default, parameters["exc"].default) == ("square_error", True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_the_formulas_in_row_order(name, columns, weighted):
    formula, cls = LOSSES[name]
    y = np.hstack([Y, -Y])[:, :columns]
    y = (y > 0).astype(np.int64) if name == "log" else y
    given = WEIGHTS if weighted else None
    for loss in (name, cls()):
        model = optimizer(columns, learning_loss=loss).fit(X, y, given)
        w, b = model.get_state()
        expected = formula(X @ w + b, y).sum(axis=1) * (WEIGHTS if weighted else 1)
        expected *= 2 if name == "square_error" else 1  # scored without the half, as in the original
        got = model.losses(X, y, given)
        assert got.shape == (53,)
        np.testing.assert_allclose(got, expected, rtol=1e-9)
        assert model.score(X, y, given) == pytest.approx(-expected.mean())


@pytest.mark.parametrize("penalty", [None, {"l1": 0.3, "l2": 0.2}])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_one_step_is_the_gradient_by_central_differences(name, weighted, penalty):
    formula, _ = LOSSES[name]
    y = (Y > 0).astype(np.int64) if name == "log" else Y
    v = WEIGHTS if weighted else np.ones(53)
    start = [np.array(onnx.numpy_helper.to_array(t)) for t in linear().graph.initializer]

    def total(w, b):
        charged = penalty or {"l1": 0, "l2": 0}
        charge = sum(charged["l1"] * abs(p).sum() + charged["l2"] * (p**2).sum() for p in (w, b))
        return (v * formula(X @ w + b, y).sum(axis=1)).sum() + charge

    expected = []
    for k, array in enumerate(start):
        gradient = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            moved = [[p.copy() for p in start] for _ in range(2)]
            moved[0][k][place] += 1e-6
            moved[1][k][place] -= 1e-6
            gradient[place] = (total(*moved[0]) - total(*moved[1])) / 2e-6
        expected.append(array - 0.05 / 53 * gradient)
    model = optimizer(
        max_iter=1,
        batch_size=53,
        learning_rate=CONSTANT,
        learning_loss=name,
        learning_penalty=ElasticLearningPenalty(**penalty) if penalty else None,
        warm_start=True,
    ).fit(X, y, WEIGHTS if weighted else None)
    for got, wanted in zip(model.get_state(), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-7)
    assert model.train_losses_ == [pytest.approx(total(*start) / 53)]


def test_it_trains_as_the_optimizer_of_a_loss_model_does():
    text = """g (double[N,3] X, double[N,1] label) => (double loss) <double[3,1] w = {W}, double[1] b = {B}>
     { z = MatMul(X, w) y = Add(z, b) e = Sub(y, label) s = Mul(e, e) two = ReduceSum<keepdims=0>(s)
       half = Constant<value=double {0.5}>() loss = Mul(two, half) }"""
    w, b = (onnx.numpy_helper.to_array(t).ravel() for t in linear().graph.initializer)
    text = text.replace("W}", ", ".join(map(str, w)) + "}").replace("B}", ", ".join(map(str, b)) + "}")
    for rate in (CONSTANT, LearningRateSGDNesterov(0.01)):
        loss_model = OrtGradientOptimizer(onnx.parser.parse_model(HEAD + text), ["w", "b"], learning_rate=rate)
        expected, got = loss_model.fit(X, Y), optimizer(max_iter=100, learning_rate=clone(rate)).fit(X, Y)
        np.testing.assert_allclose(got.train_losses_, expected.train_losses_, rtol=1e-9)
        for a, c in zip(got.get_state(), expected.get_state().values(), strict=True):
            np.testing.assert_allclose(a, c, rtol=1e-8)


def test_weighted_regression_converges_to_scikit_learns_weighted_fit():
    noisy = Y + RNG.normal(size=Y.shape)
    published = LinearRegression().fit(X, noisy, WEIGHTS)
    rate = LearningRateSGD(0.1, learning_rate="constant")
    model = optimizer(max_iter=400, batch_size=53, learning_rate=rate, weight_name="weight").fit(X, noisy, WEIGHTS)
    w, b = model.get_state()
    np.testing.assert_allclose(w.ravel(), published.coef_.ravel(), rtol=1e-6)
    np.testing.assert_allclose(b, published.intercept_, rtol=1e-6)


@pytest.mark.parametrize("columns", [1, 2])
def test_classification_from_raw_scores_converges_to_the_logistic_regression(columns):
    rows, y = make_classification(200, 3, n_informative=2, n_redundant=0, class_sep=0.5, random_state=0)
    published = LogisticRegression(C=np.inf, tol=1e-10).fit(rows, y)
    rate = LearningRateSGD(1.0, learning_rate="constant")
    model = optimizer(columns, max_iter=2000, batch_size=200, learning_rate=rate, learning_loss=NegLogLearningLoss())
    w, b = model.fit(rows, y).get_state()
    np.testing.assert_allclose(w[:, -1], published.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(b[-1:], published.intercept_, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rate", [LearningRateSGD(0.02), LearningRateSGDNesterov(0.01, nesterov=False)])
def test_two_warm_fits_are_one_to_the_bit(rate):
    twice, once = (optimizer(max_iter=n, learning_rate=clone(rate), warm_start=True).fit(X, Y) for n in (4, 8))
    twice = pickle.loads(pickle.dumps(twice)).fit(X, Y)
    for a, b in zip(twice.get_state(), once.get_state(), strict=True):
        assert a.tobytes() == b.tobytes()


def test_weights_and_velocities_are_read_and_set():
    model = optimizer(learning_rate=LearningRateSGDNesterov(1e-3))
    with pytest.raises(NotFittedError):
        model.get_state()
    assert model.needs_grad
    model.fit(X, Y)
    assert model.weights_to_train == ["w", "b"]
    velocities = model.get_state(kind="grad")
    assert [v.shape for v in velocities] == [(3, 1), (1,)]
    model.set_state(velocities, kind="grad", zero=True)
    assert not any(v.any() for v in model.get_state("grad"))
    model.set_state([np.zeros((3, 1)), None])
    w, b = model.get_state()
    assert not w.any()
    np.testing.assert_allclose(model.losses(X, Y), (b - Y.ravel()) ** 2)
    model.set_state([None, w + 1, b])
    model.set_state(model.get_full_state())
    assert (model.get_state()[0] == 1).all()
    for wrong in ([w], [w.ravel(), b], [None, None, w, b]):
        with pytest.raises(TrainError):
            model.set_state(wrong)
    with pytest.raises(TrainError, match="velocities"):
        model.get_state("momentum")


def test_the_trained_model_predicts_what_was_scored():
    model = optimizer(max_iter=30).fit(X, Y)
    session = ort.InferenceSession(model.get_trained_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    [y] = session.run(None, {"X": X})
    assert model.score(X, Y) == pytest.approx(-((y - Y) ** 2).mean())


def test_validation_losses_are_weighted_by_one_and_per_row():
    model = optimizer(max_iter=20, weight_name="weight").fit(X, Y, WEIGHTS, X_val=X[:9], y_val=Y[:9])
    assert len(model.validation_losses_) == 10
    assert model.validation_losses_[-1] == pytest.approx(-model.score(X[:9], Y[:9]) / 2)
    assert optimizer().fit(X, Y).validation_losses_ is None


def test_it_works_inside_a_grid_search():
    rates = [LearningRateSGD(v, learning_rate="constant") for v in (1e-6, 1e-3, 0.05)]
    grid = GridSearchCV(optimizer(max_iter=20), {"learning_rate": rates}, cv=3, error_score="raise").fit(X, Y)
    assert grid.best_params_["learning_rate"].eta0 == 0.05
    assert grid.best_estimator_.train_losses_[-1] < 0.1
    nested = {"learning_rate__eta0": [1e-5, 5e-2], "learning_penalty__l2": [0.0, 1.0], "batch_size": [10]}
    model = optimizer(max_iter=20, learning_rate=CONSTANT, learning_penalty="elastic")  # it converges
    grid = GridSearchCV(model, nested, cv=3, error_score="raise")
    assert grid.fit(X, Y).best_params_ == {"batch_size": 10, "learning_rate__eta0": 0.05, "learning_penalty__l2": 0.0}


def test_the_model_and_its_gradient_graph_are_saved(tmp_path):
    for model in (optimizer(weight_name="w"), optimizer(2, learning_loss="log")):
        content, paths = model.save_onnx_graph(bytes), model.save_onnx_graph(str(tmp_path), suffix="_a")
        parts = {"learning_loss": {"loss_grad_onnx_", "loss_score_onnx_"}, "learning_rate": {"axpy_onnx_"}}
        assert set(content) == set(paths) == {*parts, "model_onnx", "gradient_onnx", "learning_penalty", "zero_onnx_"}
        assert all(set(paths[name]) == set(content[name]) == names for name, names in parts.items())
        assert Path(paths["learning_rate"]["axpy_onnx_"]).name == "LRateSGD_a.learning_rate.axpy_onnx_.onnx"
        assert [o.name for o in onnx.load(paths["gradient_onnx"]).graph.output][:3] == ["loss", "w_grad", "b_grad"]


def test_a_classifier_is_trained_by_its_first_float_output_without_the_numbers_of_its_formula():
    text = """g (float[N,2] X) => (int64[N] label, float[N,2] p) <float[2,1] w = {1, 2}, float[1] one = {1}> {
     s = MatMul(X, w) q = Sub(one, s) p = Concat<axis=1>(q, s) label = ArgMax<axis=1, keepdims=0>(p) }"""
    model = OrtGradientForwardBackwardOptimizer(onnx.parser.parse_model(HEAD + text), learning_loss="log", max_iter=50)
    assert model.weights_to_train == ["w"]
    losses = model.fit(X[:, :2], (Y > 0).ravel()).train_losses_
    assert losses[-1] < losses[0]


def test_divergence_is_an_error_or_a_warning():
    with pytest.raises(ConvergenceError, match="finite"):
        optimizer(learning_rate=1e6, max_iter=50).fit(X, Y)
    model = optimizer(learning_rate=1e6, max_iter=50, exc=False, warm_start=True)
    with pytest.warns(ConvergenceWarning, match=r"learning rate 1e\+06(.|\n)*Lower learning_rate \(100000\)"):
        model.fit(X, Y, X_val=X, y_val=Y)
    assert len(model.train_losses_) == 50
    assert np.isnan(model.train_losses_[-1])
    assert np.isnan(model.score(X, Y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(model.set_params(learning_rate=1e-2).fit(X, Y).score(X, Y))


def test_it_is_pickled_cloned_and_shown():
    model = optimizer(learning_loss="log", learning_penalty="elastic")
    assert "learning_loss=NegLogLearningLoss(eps=1e-05, probability_function='sigmoid')" in repr(model)
    y = (Y > 0).ravel()
    for copy in (pickle.loads(pickle.dumps(model)), clone(model)):
        assert repr(copy) == repr(model)
        assert copy.fit(X, y).train_losses_ == clone(model).fit(X, y).train_losses_
        assert pickle.loads(pickle.dumps(copy)).score(X, y) == copy.score(X, y)
    assert model.get_params()["device"] == "cpu"


def test_every_pass_is_logged_and_shown_when_asked(caplog, capsys):
    with caplog.at_level(logging.INFO, "ortpipe"):
        optimizer(enable_logging=True, verbose=1).fit(X, Y)
    assert caplog.text.count("[OrtGradientForwardBackwardOptimizer._iteration] pass") == 5
    assert "5/5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"learning_loss": "hinge"}, "LearningLoss"),
        ({"learning_penalty": "ridge"}, "LearningPenalty"),
        ({"learning_rate": "Adam"}, "LearningRateSGD"),
        ({"training_optimizer_name": "Adam"}, "SGDOptimizer"),
        ({"device": "tpu"}, "device must be"),
    ],
)
def test_unknown_names_are_refused(arguments, match):
    with pytest.raises(ConfigError, match=match):
        optimizer(**arguments)


def test_losses_and_penalties_out_of_range_are_refused():
    with pytest.raises(ConfigError):
        ElasticLearningPenalty(l1=-1)
    with pytest.raises(ConfigError):
        ElasticLearningLoss(0, 0)
    with pytest.raises(ConfigError):
        NegLogLearningLoss(probability_function="softmax")
    with pytest.raises(LossError, match="two scores"):
        optimizer(3, learning_loss="log").fit(X, Y.ravel() > 0)
    assert NoLearningPenalty().get_params() == {}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("g (double[N,2,3] X) => (double[N,2,3] y) <double[3] w = {1, 2, 3}> { y = Mul(X, w) }", (2, 3)),
        ("g (double[N] X) => (double[N] y) <double[1] w = {3}> { y = Mul(X, w) }", ()),
    ],
)
def test_outputs_of_any_rank_are_trained(text, shape, own):
    class Loss(SquareLearningLoss):
        """Trained in Python, for it is not ortpipe's own."""

    rows = RNG.normal(size=(40, *shape))
    model = OrtGradientForwardBackwardOptimizer(
        onnx.parser.parse_model(HEAD + text),
        ["w"],
        learning_rate=CONSTANT,
        learning_loss=(Loss if own else SquareLearningLoss)(),
    )
    model.fit(rows, 2 * rows)
    np.testing.assert_allclose(model.get_state()[0], 2, atol=1e-2)
    assert model.losses(rows, 3 * rows) == pytest.approx((rows**2).reshape(40, -1).sum(axis=1), rel=0.05)


def test_a_model_of_a_fixed_number_of_rows_trains_on_any_number():
    fixed, free = (
        onnx.parser.parse_model(
            HEAD + LINEAR.replace("N", n).replace("K", "1").replace("W}", "1,2,3}").replace("B}", "1}")
        )
        for n in ("10", "N")
    )
    one, other = (OrtGradientForwardBackwardOptimizer(model, max_iter=5).fit(X, Y) for model in (fixed, free))
    assert one.train_losses_ == other.train_losses_
    reshaped = onnx.parser.parse_model(
        HEAD
        + """g (double[10,3] X) => (double[10,1] y) <double[3,1] w = {1, 2, 3}> {
      s = Constant<value_ints=[10, 1]>() z = MatMul(X, w) y = Reshape(z, s) }"""
    )
    with pytest.raises(DataError, match="batch_size=10"):
        OrtGradientForwardBackwardOptimizer(reshaped, batch_size=5).fit(X, Y)
    assert len(OrtGradientForwardBackwardOptimizer(reshaped).fit(X[:50], Y[:50]).train_losses_) == 100


def test_state_and_losses_of_whole_passes_stay_after_a_divergence():
    model = optimizer(learning_rate=LearningRateSGD(300.0, learning_rate="constant"), max_iter=60)
    with pytest.raises(ConvergenceError, match="learning rate 300;") as error:
        model.fit(X, Y)
    assert "Lower learning_rate (30)" in str(error.value)
    passes = len(model.train_losses_)
    assert 1 <= passes < 60
    whole = optimizer(learning_rate=LearningRateSGD(300.0, learning_rate="constant"), max_iter=passes).fit(X, Y)
    assert model.train_losses_ == whole.train_losses_
    for a, b in zip(model.get_state(), whole.get_state(), strict=True):
        assert a.tobytes() == b.tobytes()
    with pytest.raises(ConvergenceError):
        model.set_params(learning_rate=1e200).fit(X, Y)
    assert model.train_losses_ == []
    assert [w.shape for w in model.get_state()] == [(3, 1), (1,)]


def test_states_answer_numpy_and_train_session_and_function_are_those_of_the_model():
    model = optimizer()
    assert not hasattr(model, "train_session_")
    model.fit(X, Y)
    w, b = (state.numpy() for state in model.get_state())
    [y] = model.train_function_.forward([X, *model.get_state()], training=True)
    np.testing.assert_allclose(y, X @ w + b)
    loss, gradient = model.learning_loss.loss_gradient(model.device, Y.astype(np.float32), y)
    np.testing.assert_allclose(gradient.numpy(), y - Y, rtol=1e-4)
    assert float(loss.numpy()[0]) == pytest.approx(0.5 * float(((y - Y) ** 2).sum()), rel=1e-4)
    assert list(model.trained_coef_) == model.train_session_.weights_to_train == ["w", "b"]
    assert model.get_full_state(["weight"])[0][0] is None
    assert pickle.loads(pickle.dumps(model)).train_function_.forward([X, w, b])[0].shape == (53, 1)


def test_what_an_argument_does_not_do_is_said_once():
    with pytest.warns(UserWarning, match="loss_output_name") as seen:
        optimizer(loss_output_name="cost")
    assert len(seen) == 1
    with pytest.warns(UserWarning, match="eps"):
        NegLogLearningLoss(eps=1e-3)


@pytest.mark.parametrize("name", ["batch_size", "max_iter"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "10", True])
def test_counts_are_whole_and_at_least_one(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be a whole number"):
        optimizer(**{name: value})


def test_fewer_rows_than_a_batch_are_divided_by_batch_size_and_that_is_logged(caplog):
    rate = {"learning_rate": CONSTANT, "max_iter": 1, "warm_start": True}
    half, whole = (optimizer(batch_size=size, **rate).fit(X, Y) for size in (106, 53))
    start = onnx.numpy_helper.to_array(linear().graph.initializer[0])
    np.testing.assert_allclose(2 * (half.get_state()[0] - start), whole.get_state()[0] - start)
    assert "53 rows are fewer than batch_size=106" in caplog.text


def test_an_optimizer_needs_labels_as_scikit_learn_is_told():
    assert optimizer().__sklearn_tags__().target_tags.required


def test_a_step_of_the_square_loss_is_the_originals():
    """The original's rule, restated: y = [0, 1], p = [2, 4] give the loss 6.5 and the gradient [2, 3]."""
    loss = SquareLearningLoss()
    loss.build_onnx_function(15, "cpu", None)
    value, gradient = loss.loss_gradient("cpu", np.array([[0.0], [1.0]]), np.array([[2.0], [4.0]]))
    assert value.tolist() == [6.5]
    assert gradient.tolist() == [[2], [3]]
    x = RNG.normal(size=(200, 1))
    model = onnx.parser.parse_model(
        HEAD + "g (double[N,1] X) => (double[N,1] y) <double[1,1] w = {0}> { y = MatMul(X, w) }"
    )
    rate = LearningRateSGD(1.2, learning_rate="constant")
    fitted = OrtGradientForwardBackwardOptimizer(model, batch_size=20, learning_rate=rate).fit(x, 3 * x)
    assert fitted.get_state()[0].item() == pytest.approx(3)


@pytest.mark.parametrize("shapeless", ["input", "output", "input output"])
def test_a_model_without_shapes_trains_as_one_with_shapes(shapeless):
    model = optimizer(warm_start=True).model_onnx
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for part in shapeless.split():
        getattr(bare.graph, part)[0].type.tensor_type.ClearField("shape")
    content = bare.SerializeToString()
    one, other = (OrtGradientForwardBackwardOptimizer(m, max_iter=3, warm_start=True).fit(X, Y) for m in (bare, model))
    for a, b in zip(one.get_state(), other.get_state(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert one.score(X, Y) == pytest.approx(other.score(X, Y), rel=1e-5)
    assert [g.shape for g in one.train_function_.forward([X, *one.get_state()])] == [(len(X), 1)]
    assert bare.SerializeToString() == content
