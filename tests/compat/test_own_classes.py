"""Losses, penalties and learning rates of somebody's own classes, written as for onnxcustom."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from sklearn.base import clone

from ortpipe.compat import (
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    ElasticLearningPenalty,
    LearningRateSGD,
    LearningRateSGDNesterov,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    SquareLearningLoss,
    add_loss_output,
    device_to_providers,
    function_onnx_graph,
    numpy_to_ort_value,
)
from ortpipe.errors import ConfigError, ConvergenceError, DataError

MODEL = """<ir_version: 10, opset_import: ["": 15]> g (float[N,3] X) => (float[N,1] y)
 <float[3,1] w = {0.5, -1, 2}, float[1] b = {0.3}> { z = MatMul(X, w) y = Add(z, b) }"""
RNG = np.random.default_rng(0)
X = RNG.normal(size=(53, 3)).astype(np.float32)
Y = X @ np.array([[1], [-2], [0.5]], np.float32) + 1.5
WEIGHTS = RNG.uniform(0.5, 2, 53).astype(np.float32)
CONSTANT = LearningRateSGD(0.1, learning_rate="constant")


class GraphLoss(BaseLearningLoss):
    """Half the square, as an ONNX function with sessions of its own, which no pickle holds."""

    def build_onnx_function(self, opset, device, weight_name):
        name = "grad_loss_square_error"
        self.loss_grad_onnx_ = function_onnx_graph(name, target_opset=opset, weight_name=weight_name, multiply=1)
        content = self.loss_grad_onnx_.SerializeToString()
        self.loss_grad_sess_ = ort.InferenceSession(content, providers=device_to_providers(device))
        self.loss_grad_sess_bind_ = self.loss_grad_sess_.io_binding()._iobinding
        self.build_onnx_score_function(opset, device, weight_name)


class BoundLoss(GraphLoss):
    """The same, run by the runtime's bindings."""

    def loss_gradient(self, device, expected, predicted, weight=None):
        bind = self.loss_grad_sess_bind_
        self.clear_binding_inputs("weight", bind, cache=True)
        given = {"X1": expected, "X2": predicted, **({} if weight is None else {"weight": weight})}
        for name, value in given.items():
            self._bind_input_ortvalue(name, bind, value, device, cache=True)
        for name in ("Y", "Y_grad"):
            bind.bind_output(name, device)
        self._call_iobinding(self.loss_grad_sess_._sess, bind)
        return tuple(bind.get_outputs())


class Scaled(LearningRateSGD):
    """A rate that keeps its argument under another name, and an object of the runtime."""

    def __init__(self, share):
        super().__init__(0.1 * share, learning_rate="constant")
        self.part = share

    def build_onnx_function(self, opset, device, n_tensors):
        self.alpha_ = numpy_to_ort_value(np.zeros(1, np.float32), device)


class NumpyLoss(BaseLearningLoss):
    """The same in NumPy."""

    def build_onnx_function(self, opset, device, weight_name):
        pass

    def loss_gradient(self, device, expected, predicted, weight=None):
        difference = predicted.numpy() - expected.numpy()
        weights = np.ones((len(difference), 1), np.float32) if weight is None else weight.numpy().reshape(-1, 1)
        return 0.5 * (weights * difference**2).sum(), weights * difference

    def loss_scores(self, device, expected, predicted, weight=None):
        return (1 if weight is None else weight.reshape(-1, 1)) * (predicted - expected) ** 2


class Halving(BaseLearningRate):
    """Half the rate after every pass, with steps by the runtime's bindings."""

    def __init__(self, eta0=0.1):
        self.eta0 = eta0
        self.value_ = None

    @property
    def value(self):
        return self.value_

    def init_learning_rate(self):
        self.value_ = self.eta0
        return self

    def update_learning_rate(self, t):
        self.value_ = self.eta0 * 0.5**t
        return self

    def build_onnx_function(self, opset, device, n_tensors):
        self.axpy_onnx_ = function_onnx_graph("axpy")
        self.axpy_sess_ = ort.InferenceSession(
            self.axpy_onnx_.SerializeToString(), providers=device_to_providers(device)
        )
        self.axpy_sess_binds_ = [self.axpy_sess_.io_binding()._iobinding for _ in range(n_tensors)]

    def update_weights(self, n_bind, device, statei, gradienti, batch_size, velocity=None):
        bind = self.axpy_sess_binds_[n_bind]
        alpha = np.array([-self.value / batch_size], np.float32)
        for name, value in {"X1": gradienti, "X2": statei, "alpha": alpha}.items():
            self._bind_input_ortvalue(name, bind, value, device, cache=True)
        self._bind_output_ortvalue("Y", bind, statei, cache=True)
        self._call_iobinding(self.axpy_sess_._sess, bind)
        return bind.get_outputs()[0]


class Power(LearningRateSGD):
    """A schedule of one's own in a class of ortpipe."""

    def update_learning_rate(self, t):
        self.value_ = self.eta0 / (t + 1) ** 0.5
        return self


class Shrink(BaseLearningPenalty):
    """Takes a share of every weight off at every step."""

    def build_onnx_function(self, opset, device, n_tensors):
        pass

    def penalty_loss(self, device, loss, *weights):
        return loss.numpy() + sum(1e-3 * (w.numpy() ** 2).sum() for w in weights)

    def update_weights(self, n_bind, device, statei):
        return statei.numpy() * np.float32(1 - 1e-3)


def fitted(weighted=False, optimizer=OrtGradientForwardBackwardOptimizer, **arguments):
    model = onnx.parser.parse_model(MODEL)
    made = optimizer(model, **{"max_iter": 6, "learning_rate": clone(CONSTANT), **arguments})
    return made.fit(X, Y, WEIGHTS if weighted else None, X_val=X[:9], y_val=Y[:9])


def assert_equal(one, other):
    np.testing.assert_allclose(one.train_losses_, other.train_losses_, rtol=1e-5)
    np.testing.assert_allclose(one.validation_losses_, other.validation_losses_, rtol=1e-4)
    for a, b in zip(one.get_state(), other.get_state(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [GraphLoss, BoundLoss, NumpyLoss])
def test_a_loss_of_ones_own_trains_as_the_same_loss_of_the_train_stage(loss, weighted):
    own, same = (fitted(weighted, learning_loss=part(), weight_name="weight") for part in (loss, SquareLearningLoss))
    assert_equal(own, same)
    weights = WEIGHTS if weighted else None
    np.testing.assert_allclose(own.losses(X, Y, weights), same.losses(X, Y, weights) / own_half(loss), rtol=1e-3)


def own_half(loss):
    """The scores of a graph are those of its loss, which has the half that NumpyLoss leaves out."""
    return 1 if loss is NumpyLoss else 2


@pytest.mark.parametrize("rate", [LearningRateSGDNesterov(0.02), LearningRateSGDNesterov(0.02, nesterov=False)])
@pytest.mark.parametrize("penalty", [None, ElasticLearningPenalty(l1=0.01, l2=0.02)])
def test_ortpipes_own_rates_and_penalties_do_the_same_beside_it(rate, penalty):
    parts = (NumpyLoss, SquareLearningLoss)
    own, same = (fitted(learning_loss=part(), learning_rate=clone(rate), learning_penalty=penalty) for part in parts)
    np.testing.assert_allclose(own.train_losses_, same.train_losses_, rtol=1e-5)
    np.testing.assert_allclose(own.validation_losses_, same.validation_losses_, rtol=1e-4)
    for kind in ("weight", "grad"):
        for a, b in zip(own.get_state(kind), same.get_state(kind), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_rate_of_ones_own_has_its_value_in_every_pass():
    seen = []

    class Watched(Halving):
        def update_weights(self, n_bind, device, statei, *others, **named):
            seen.append(self.value)
            return super().update_weights(n_bind, device, statei, *others, **named)

    own = fitted(learning_rate=Watched(), batch_size=53)
    assert seen == [0.1 * 0.5**t for t in range(6) for _ in range(2)]
    w, b = np.array([[0.5], [-1], [2]], np.float32), np.array([0.3], np.float32)
    own = fitted(learning_rate=Halving(), batch_size=53, warm_start=True)
    for t in range(6):
        d = X @ w + b - Y
        w, b = w - 0.1 * 0.5**t / 53 * X.T @ d, b - 0.1 * 0.5**t / 53 * d.sum(axis=0)
    np.testing.assert_allclose(own.get_state()[0], w, rtol=1e-5)
    np.testing.assert_allclose(own.get_state()[1], b, rtol=1e-5)


def test_a_schedule_of_ones_own_drives_the_optimizer_of_a_loss_model():
    text = """<ir_version: 10, opset_import: ["": 15]> g (float[N,3] X, float[N,1] label) => (float loss, float[N,1] y)
     <float[3,1] w = {0.5, -1, 2}, float[1] b = {0.3}> { z = MatMul(X, w) y = Add(z, b) e = Sub(y, label)
       s = Mul(e, e) loss = ReduceSum<keepdims=0>(s) }"""
    inverse = LearningRateSGD(0.05, power_t=0.5)
    own, same = (
        OrtGradientOptimizer(onnx.parser.parse_model(text), ["w", "b"], max_iter=9, learning_rate=rate).fit(X, Y)
        for rate in (Power(0.05), inverse)
    )
    np.testing.assert_allclose(own.train_losses_, same.train_losses_, rtol=1e-6)
    assert own.learning_rate.value == pytest.approx(same.learning_rate.value)


def test_a_penalty_of_ones_own_changes_weights_in_front_of_their_step():
    got = fitted(learning_penalty=Shrink(), batch_size=53, max_iter=1, warm_start=True)
    w, b = np.array([[0.5], [-1], [2]], np.float32), np.array([0.3], np.float32)
    d = X @ w + b - Y
    np.testing.assert_allclose(got.get_state()[0], w * 0.999 - 0.1 / 53 * X.T @ d, rtol=1e-5)
    total = 0.5 * (d**2).sum() + 1e-3 * ((w**2).sum() + (b**2).sum())
    assert got.train_losses_ == [pytest.approx(total / 53, rel=1e-5)]


def test_own_classes_are_selected_pickled_and_cloned():
    loss = GraphLoss()
    assert BaseLearningLoss.select(loss) is loss
    model = fitted(learning_loss=loss, learning_rate=Halving(), learning_penalty=Shrink())
    copy = pickle.loads(pickle.dumps(model))
    assert_equal(copy, model)
    assert_equal(copy.fit(X, Y, X_val=X[:9], y_val=Y[:9]), model)
    assert repr(clone(model)) == repr(model)


def test_own_classes_need_not_keep_their_arguments_by_name():
    model = fitted(learning_rate=Scaled(2.0))
    assert "Scaled(" in repr(model)
    for copy in (clone(model), pickle.loads(pickle.dumps(model))):
        assert (copy.learning_rate.part, copy.learning_rate.eta0) == (2.0, 0.2)
        assert copy.fit(X, Y).train_losses_ == model.train_losses_


def test_what_diverges_in_python_leaves_the_state_of_the_last_whole_pass():
    model = OrtGradientForwardBackwardOptimizer(onnx.parser.parse_model(MODEL), learning_loss=GraphLoss())
    model.set_params(learning_rate=1e4, max_iter=50)
    with pytest.raises(ConvergenceError, match="learning rate 10000") as error:
        model.fit(X, Y)
    assert isinstance(error.value, RuntimeError)
    assert np.isfinite(model.train_losses_).all()
    assert all(np.isfinite(w).all() for w in model.get_state())


@pytest.mark.parametrize("rate", [LearningRateSGD, LearningRateSGDNesterov])
def test_the_state_of_the_last_whole_pass_is_that_of_a_fit_of_so_many_passes(rate):
    model = OrtGradientForwardBackwardOptimizer(onnx.parser.parse_model(MODEL), learning_loss=GraphLoss())
    model.set_params(learning_rate=rate(300, learning_rate="constant"), max_iter=60)
    with pytest.raises(ConvergenceError):
        model.fit(X, Y)
    state, velocities, passes = model.get_state(), model.get_state("grad"), len(model.train_losses_)
    assert 1 <= passes < 60
    whole = model.set_params(max_iter=passes).fit(X, Y)
    for got, expected in ((state, whole.get_state()), (velocities, whole.get_state("grad"))):
        assert [a.tobytes() for a in got] == [b.tobytes() for b in expected]


def test_a_class_that_changes_nothing_trains_as_the_one_that_it_derives_from():
    class Same(ElasticLearningPenalty):
        pass

    penalties = (Same(0.01, 0.02), ElasticLearningPenalty(0.01, 0.02))
    assert_equal(*(fitted(learning_penalty=penalty, validation_every=1) for penalty in penalties))


def test_row_weights_are_refused_by_a_function_that_does_not_read_them_and_have_any_name():
    with pytest.raises(DataError, match="weight_name"):
        fitted(weighted=True, learning_loss=GraphLoss())
    with pytest.raises(DataError, match="weight_name"):
        fitted(learning_loss=GraphLoss()).losses(X, Y, WEIGHTS)
    named = fitted(weighted=True, learning_loss=GraphLoss(), weight_name="importance")
    assert_equal(named, fitted(weighted=True, weight_name="importance"))
    same = fitted(weighted=True, weight_name="weight")
    np.testing.assert_allclose(named.score(X, Y, WEIGHTS), same.score(X, Y, WEIGHTS) / 2, rtol=1e-4)


class Ascending(Halving):
    """A rate that begins at 0."""

    def update_learning_rate(self, t):
        self.value_ = self.eta0 * min(t, 3) / 3
        return self

    def init_learning_rate(self):
        return self.update_learning_rate(0)


def test_a_rate_of_ones_own_may_begin_at_zero():
    w, b = np.array([[0.5], [-1], [2]]), np.array([0.3])
    for t in range(6):
        d = X @ w + b - Y
        w, b = w - 0.1 * min(t, 3) / 3 / 53 * X.T @ d, b - 0.1 * min(t, 3) / 3 / 53 * d.sum(axis=0)
    own = fitted(learning_rate=Ascending(), batch_size=53, warm_start=True)
    loss = add_loss_output(onnx.parser.parse_model(MODEL))
    whole = OrtGradientOptimizer(loss, ["w", "b"], max_iter=6, batch_size=53, learning_rate=Ascending(0.05))
    state = whole.set_params(warm_start=True).fit(X, Y).get_state()
    for got in (own.get_state(), [state["w"], state["b"]]):
        np.testing.assert_allclose(got[0], w, rtol=1e-5)
        np.testing.assert_allclose(got[1], b, rtol=1e-5)


def test_the_optimizer_of_a_loss_model_refuses_steps_by_velocities_of_ones_own():
    class Heavy(LearningRateSGDNesterov):
        def update_weights(self, n_bind, device, statei, gradienti, batch_size, velocity=None):
            raise AssertionError("never called")

    model = add_loss_output(onnx.parser.parse_model(MODEL))
    with pytest.raises(ConfigError, match="velocity updates"):
        OrtGradientOptimizer(model, ["w", "b"], learning_rate=Heavy(0.01))


def test_weights_that_are_nan_after_the_last_step_are_a_divergence():
    class Broken(Halving):
        def update_weights(self, n_bind, device, statei, gradienti, batch_size, velocity=None):
            return np.full_like(statei.numpy(), np.nan)

    with pytest.raises(ConvergenceError):
        fitted(learning_rate=Broken(), batch_size=53, max_iter=1)


def test_labels_of_another_width_are_not_spread_over_the_columns():
    text = MODEL.replace("float[3,1] w = {0.5, -1, 2}", "float[3,2] w = {0.5, -1, 2, 1, 1, 1}").replace(
        "[N,1]", "[N,2]"
    )
    model = onnx.parser.parse_model(text)
    with pytest.raises(DataError, match="Give 2"):
        OrtGradientForwardBackwardOptimizer(model, learning_rate=Halving()).fit(X, Y)


def test_bases_are_abstract():
    for base in (BaseLearningLoss, BaseLearningPenalty, BaseLearningRate):
        with pytest.raises(TypeError, match="abstract"):
            base()
