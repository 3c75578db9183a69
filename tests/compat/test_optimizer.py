from __future__ import annotations

import inspect
import pickle

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from sklearn.base import clone
from sklearn.datasets import make_regression
from sklearn.linear_model import LinearRegression

from ortpipe.compat import LearningRateSGD, LearningRateSGDNesterov, OrtGradientOptimizer, add_loss_output
from ortpipe.errors import ConfigError, ConvergenceError, DataError, DeriveError, NotFittedError, TrainError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert

HEAD = '<ir_version: 10, opset_import: ["": 21]> '
LINEAR = """g (double[N,3] X, double[N,1] label) => (double loss, double[N,1] y)
 <double[3,1] w = {0.5, -1, 2}, double[1] b = {0.3}>
 { z = MatMul(X, w) y = Add(z, b) e = Sub(y, label) s = Mul(e, e) loss = ReduceSum<keepdims=0>(s) }"""
WEIGHTED = LINEAR.replace("label) =>", "label, double[N] weight) =>").replace(
    "loss = ReduceSum<keepdims=0>(s)",
    "shape = Constant<value_ints=[-1, 1]>() v = Reshape(weight, shape) t = Mul(s, v) loss = ReduceSum<keepdims=0>(t)",
)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(53, 3))
Y = X @ [[1.0], [-2.0], [0.5]] + 1.5
NAMES = ["w", "b"]


def parsed(text=LINEAR):
    return onnx.parser.parse_model(HEAD + text)


def optimizer(text=LINEAR, **arguments):
    return OrtGradientOptimizer(parsed(text), NAMES, **arguments)


def loss_of(model, state, **feeds):
    trained = onnx.ModelProto()
    trained.CopyFrom(model)
    for tensor in trained.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(state[tensor.name], tensor.name))
    session = ort.InferenceSession(trained.SerializeToString(), providers=["CPUExecutionProvider"])
    return float(session.run(["loss"], feeds)[0])


def descent(passes, size, rate, weights=None, momentum=0.0, nesterov=False):
    """Return weights and losses of gradient descent in numpy, rows in order, from the model's own weights."""
    w, b = np.array([[0.5], [-1.0], [2.0]]), np.array([0.3])
    v = np.ones((len(X), 1)) if weights is None else weights.reshape(-1, 1)
    velocity, losses = [np.zeros_like(w), np.zeros_like(b)], []
    for _ in range(passes):
        total = 0.0
        for i in range(0, len(X), size):
            error = X[i : i + size] @ w + b - Y[i : i + size]
            total += (v[i : i + size] * error**2).sum()
            gradient = [2 * X[i : i + size].T @ (v[i : i + size] * error), 2 * (v[i : i + size] * error).sum(0)]
            velocity = [momentum * u - rate / size * g for u, g in zip(velocity, gradient, strict=True)]
            moves = [momentum * u - rate / size * g for u, g in zip(velocity, gradient, strict=True)]
            w, b = (p + m for p, m in zip((w, b), moves if nesterov else velocity, strict=True))
        losses.append(total / len(X))
    return {"w": w, "b": b}, losses


def test_the_signature_is_the_documented_one():
    expected = {
        "loss_output_name": "loss",
        "max_iter": 100,
        "training_optimizer_name": "SGDOptimizer",
        "batch_size": 10,
        "learning_rate": "SGD",
        "device": "cpu",
        "warm_start": False,
        "verbose": 0,
        "validation_every": 0.1,
        "saved_gradient": None,
        "sample_weight_name": "weight",
    }
    parameters = inspect.signature(OrtGradientOptimizer).parameters
    assert list(parameters) == ["model_onnx", "weights_to_train", *expected]
    assert {name: parameters[name].default for name in expected} == expected
    fit = inspect.signature(OrtGradientOptimizer.fit).parameters
    assert list(fit) == ["self", "X", "y", "sample_weight", "X_val", "y_val", "use_numpy"]


@pytest.mark.parametrize("momentum", [None, (0.8, False), (0.8, True)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_is_gradient_descent_in_numpy_over_every_row(monkeypatch, weighted, momentum):
    monkeypatch.setattr("ortpipe.data.batches.order", lambda count, **_: np.arange(count))
    weights = RNG.uniform(0.5, 2, len(X)) if weighted else None
    rate = (
        LearningRateSGD(0.05, learning_rate="constant")
        if momentum is None
        else LearningRateSGDNesterov(0.05, learning_rate="constant", momentum=momentum[0], nesterov=momentum[1])
    )
    model = optimizer(WEIGHTED if weighted else LINEAR, max_iter=7, learning_rate=rate, warm_start=True)
    model.fit(X, Y, weights)
    state, losses = descent(7, 10, 0.05, weights, *(momentum or ()))
    for name in NAMES:
        np.testing.assert_allclose(model.get_state()[name], state[name], rtol=1e-10)
    np.testing.assert_allclose(model.train_losses_, losses, rtol=1e-10)


def test_every_row_is_seen_once_a_pass():
    text = """g (double[N,7] X, double[N,1] label) => (double loss, double[N,1] y) <double[7,1] w = {0,0,0,0,0,0,0}>
     { y = MatMul(X, w) e = Sub(y, label) s = Mul(e, e) loss = ReduceSum<keepdims=0>(s) }"""
    rate = LearningRateSGD(0.25 * 3, learning_rate="constant")
    model = OrtGradientOptimizer(parsed(text), ["w"], max_iter=1, batch_size=3, learning_rate=rate, warm_start=True)
    model.fit(np.eye(7), np.ones(7))
    np.testing.assert_allclose(model.get_state()["w"], np.full((7, 1), 0.5))


@pytest.mark.parametrize("name", ["constant", "invscaling", "optimal", "adaptive"])
@pytest.mark.parametrize("kind", [LearningRateSGD, LearningRateSGDNesterov])
def test_two_warm_fits_of_ten_are_one_of_twenty_to_the_bit(kind, name):
    def make(passes):
        return optimizer(max_iter=passes, learning_rate=kind(0.01, learning_rate=name), warm_start=True)

    twice, once = make(10).fit(X, Y), make(20).fit(X, Y)
    first = twice.train_losses_
    twice = pickle.loads(pickle.dumps(twice)).fit(X, Y)
    assert first + twice.train_losses_ == once.train_losses_
    for key, value in once.get_state().items():
        assert twice.get_state()[key].tobytes() == value.tobytes()
    assert twice.learning_rate.value == once.learning_rate.value


def test_a_cold_fit_erases_the_one_before():
    one, two = optimizer(max_iter=3), optimizer(max_iter=3).fit(X, -Y)
    for model in (one, two):
        model.fit(X, Y)
    for key, value in one.get_state().items():
        assert two.get_state()[key].tobytes() == value.tobytes()
    two.seed = 1
    assert (two.fit(X, Y).get_state()["w"] != one.get_state()["w"]).all()


def test_linear_regression_converges_to_scikit_learns():
    """The documented example: 200 passes over 100×10 rows reach the coefficients to 1e-3 and a loss below 1e-6."""
    rows, target = make_regression(100, n_features=10, bias=2, random_state=0)
    rows, target = rows.astype(np.float32), target.astype(np.float32)
    published = LinearRegression().fit(rows, target)
    loss_model = add_loss(convert(published), AddLossConfig(LOSSES["l2"](), "sum")).model
    rate = LearningRateSGD(0.1, learning_rate="constant")
    model = OrtGradientOptimizer(loss_model, ["coefficient", "intercept"], learning_rate=rate, max_iter=200)
    model.fit(rows, target)
    state = model.get_state()
    np.testing.assert_allclose(state["coefficient"].ravel(), published.coef_.ravel(), rtol=1e-3)
    np.testing.assert_allclose(state["intercept"].ravel(), np.ravel(published.intercept_), rtol=1e-3)
    assert model.train_losses_[0] > 1000
    assert model.train_losses_[-1] < 1e-6


@pytest.mark.parametrize("text", [LINEAR, WEIGHTED])
def test_validation_losses_are_those_of_every_tenth_pass(text):
    weights = np.full(53, 2.0) if text == WEIGHTED else None
    model = optimizer(text, max_iter=30, validation_every=0.1).fit(X, Y, weights, X_val=X[:9], y_val=Y[:9])
    assert len(model.validation_losses_) == 10
    feeds = {"X": X[:9], "label": Y[:9], **({"weight": np.ones(9)} if text == WEIGHTED else {})}
    assert model.validation_losses_[-1] == pytest.approx(loss_of(parsed(text), model.get_state(), **feeds) / 9)
    assert optimizer(max_iter=5, validation_every=2).fit(X, Y, X_val=X, y_val=Y).validation_losses_[1:] != []
    assert model.set_params(max_iter=3).fit(X, Y, weights).validation_losses_ == []


def test_any_name_and_form_of_the_loss_works():
    expected = optimizer(max_iter=3).fit(X, Y).get_state()
    renamed = LINEAR.replace("loss", "cost")
    only = LINEAR.replace(", double[N,1] y)", ")")
    last = LINEAR.replace("(double loss, double[N,1] y)", "(double[N,1] y, double loss)")
    tensor = LINEAR.replace("double loss", "double[1,1] loss").replace("keepdims=0", "keepdims=1")
    vectors = WEIGHTED.replace("double[N] weight", "double[N,1] weight")
    for text, name in ((renamed, "loss"), (renamed, "cost"), (only, "loss"), (last, "loss"), (tensor, "loss")):
        state = optimizer(text, max_iter=3, loss_output_name=name).fit(X, Y.ravel()).get_state()
        np.testing.assert_allclose(state["w"], expected["w"], rtol=1e-12)
    state = optimizer(vectors, max_iter=3).fit(X, Y, np.ones(53)).get_state()
    np.testing.assert_allclose(state["w"], expected["w"], rtol=1e-12)


def test_the_step_of_a_mean_is_divided_by_the_batch_once_more_as_in_the_original():
    mean = parsed(LINEAR.replace("ReduceSum", "ReduceMean"))
    mean.metadata_props.add(key="ortpipe.reduction", value='"mean"')
    rows = (X[:50], Y[:50])
    expected = optimizer(max_iter=3).fit(*rows)
    rate = LearningRateSGD(0.01 * 10)
    got = OrtGradientOptimizer(mean, NAMES, max_iter=3, learning_rate=rate).fit(*rows)
    np.testing.assert_allclose(got.get_state()["w"], expected.get_state()["w"], rtol=1e-10)
    np.testing.assert_allclose(got.train_losses_, expected.train_losses_, rtol=1e-10)


def test_the_trained_model_predicts_with_trained_weights_and_the_given_one_stays():
    loss_model = parsed()
    forward = parsed(LINEAR.replace("double loss, ", "").split(" e = ")[0].replace(", double[N,1] label", "") + "}")
    before = loss_model.SerializeToString()
    model = OrtGradientOptimizer(loss_model, NAMES, max_iter=50, learning_rate=0.1).fit(X, Y)
    state = model.get_state()
    for given in (None, forward):
        trained = model.get_trained_onnx(given)
        onnx.checker.check_model(trained, full_check=True)
        feeds = {"X": X, **({"label": Y} if given is None else {})}
        session = ort.InferenceSession(trained.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(["y"], feeds)[0], X @ state["w"] + state["b"])
    assert loss_model.SerializeToString() == before
    with pytest.raises(TrainError, match="w, b"):
        model.get_trained_onnx(parsed("g (double[N] X) => (double[N] y) { y = Abs(X) }"))


def test_the_gradient_graph_is_saved(tmp_path):
    path = tmp_path / "gradient.onnx"
    optimizer(max_iter=1, saved_gradient=str(path)).fit(X, Y)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    dw, db = session.run(["w_grad", "b_grad"], {"X": X, "label": Y})
    error = X @ [[0.5], [-1], [2]] + 0.3 - Y
    np.testing.assert_allclose(dw, 2 * X.T @ error)
    np.testing.assert_allclose(db, 2 * error.sum(0))


def test_the_state_is_read_and_set_and_a_warm_start_continues_from_it():
    model = optimizer(max_iter=2, learning_rate=1e-9, warm_start=True)
    with pytest.raises(AttributeError, match="fit"):
        model.get_state()
    with pytest.raises(NotFittedError):
        model.set_state({})
    model.fit(X, Y)
    state = model.get_state()
    assert list(state) == NAMES
    state["w"][...] = 7.0
    assert model.get_state()["w"][0, 0] != 7.0
    model.set_state(state)
    model.fit(X, Y)
    np.testing.assert_allclose(model.get_state()["w"], 7.0, atol=1e-5)
    for wrong in ({"v": state["w"]}, {"w": np.ones(3)}):
        with pytest.raises(TrainError):
            model.set_state(wrong)


def test_it_is_pickled_cloned_and_shown():
    model = optimizer(max_iter=2, learning_rate=LearningRateSGDNesterov(1e-3))
    assert repr(model).startswith("OrtGradientOptimizer(model_onnx=")
    assert "learning_rate='invscaling'" in repr(model)
    for copy in (pickle.loads(pickle.dumps(model)), clone(model)):
        assert repr(copy) == repr(model)
        assert copy.fit(X, Y).train_losses_ == clone(model).fit(X, Y).train_losses_
    after = pickle.loads(pickle.dumps(model.fit(X, Y)))
    np.testing.assert_array_equal(after.get_state()["w"], model.get_state()["w"])
    assert after.train_losses_ == model.train_losses_


def test_parameters_are_read_and_set():
    model = optimizer()
    assert model.get_params()["device"] == "cpu"
    assert model.get_params(deep=True)["learning_rate__eta0"] == 0.01
    model.set_params(max_iter=4, learning_rate__eta0=0.5)
    assert (model.max_iter, model.learning_rate.eta0) == (4, 0.5)
    with pytest.raises(ConfigError, match="max_iter"):
        model.set_params(max_iters=4)


def test_progress_is_shown_when_verbose(capsys):
    optimizer(max_iter=3, verbose=2).fit(X, Y)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "loss=" in shown
    optimizer(max_iter=3).fit(X, Y)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"training_optimizer_name": "Adam"}, NotImplementedError, "LearningRateSGDNesterov"),
        ({"device": "tpu"}, ConfigError, "device must be"),
        ({"validation_every": 0}, ConfigError, "validation_every"),
        ({"max_iter": 0}, ConfigError, "at least 1"),
        ({"loss_output_name": "los"}, TrainError, "Did you mean 'loss'"),
        ({"learning_rate": 1e6}, ConvergenceError, "finite"),
    ],
)
def test_mistakes_say_what_to_do(arguments, error, match):
    with pytest.raises(error, match=match):
        optimizer(**arguments).fit(X, Y)


def test_weights_that_do_not_fit_the_model_are_refused():
    with pytest.raises(DataError, match="weights"):
        optimizer().fit(X, Y, np.ones(53))
    with pytest.raises(DataError, match="weights"):
        optimizer(WEIGHTED).fit(X, Y)
    with pytest.raises(DeriveError, match="Did you mean 'w'"):
        OrtGradientOptimizer(parsed(), ["ww"]).fit(X, Y)


@pytest.mark.parametrize("rest", ["2,3", "T,3"])
def test_labels_of_any_rank_are_trained_on(rest):
    text = f"g (double[N,{rest}] X) => (double[N,{rest}] y) <double[3] w = {{1, 2, 3}}> {{ y = Mul(X, w) }}"
    model = add_loss_output(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}'))
    rows = np.random.default_rng(0).normal(size=(40, 2, 3))
    got = OrtGradientOptimizer(model, ["w"], learning_rate=0.1, max_iter=50).fit(rows, 2 * rows, X_val=rows, y_val=rows)
    np.testing.assert_allclose(got.get_state()["w"], 2, atol=1e-2)
    assert got.validation_losses_[-1] == pytest.approx((rows**2).sum() / 40, rel=0.05)
    assert sorted(got.save_onnx_graph(bytes)) == ["gradient_onnx", "learning_rate", "model_onnx"]


def test_row_weights_have_their_input_by_name_or_none():
    swapped = WEIGHTED.replace("double[N,1] label, double[N] weight", "double[N] sw, double[N,1] label").replace(
        "weight", "sw"
    )
    weights = RNG.uniform(0.5, 2, 53)
    expected = optimizer(WEIGHTED, max_iter=3).fit(X, Y, weights)
    got = optimizer(swapped, max_iter=3, sample_weight_name="sw").fit(X, Y, weights)
    assert got.train_losses_ == expected.train_losses_
    with pytest.raises(TrainError, match="sample_weight_name"):
        optimizer(swapped).fit(X, Y, weights)
    with pytest.raises(TrainError, match="Did you mean 'weight'"):
        optimizer(WEIGHTED, sample_weight_name="weights").fit(X, Y, weights)
    with pytest.raises(ValueError, match="sample_weight_name"):
        optimizer(sample_weight_name="weights").fit(X, Y)
    written = parsed(swapped)
    written.metadata_props.add(key="ortpipe.sample_weight", value='"sw"')
    assert OrtGradientOptimizer(written, NAMES, max_iter=3).fit(X, Y, weights).train_losses_ == expected.train_losses_


def test_the_graphs_of_gradient_and_step_are_saved_by_fit_alone(tmp_path):
    path = tmp_path / "gradient.onnx"
    model = optimizer(max_iter=1, saved_gradient=str(path))
    model.save_onnx_graph(bytes)
    assert not path.exists()
    model.fit(X, Y)
    step = onnx.load(f"{path}.training.onnx")
    onnx.checker.check_model(step, full_check=True)
    assert len(step.graph.output) == 3
    assert [o.name for o in onnx.load(path).graph.output] == list(model.train_session_.outputs)


def test_a_divergence_leaves_the_state_of_whole_passes_and_a_loss_of_inf():
    model = optimizer(learning_rate=30.0, max_iter=60)
    with pytest.raises(RuntimeError, match="finite"):
        model.fit(X, Y)
    assert len(model.train_losses_) > 1
    assert model.train_losses_[-1] == np.inf
    assert all(np.isfinite(w).all() for w in model.trained_coef_.values())


@pytest.mark.parametrize(
    ("weights", "text", "match"),
    [
        ([], LINEAR, "Name some in weights_to_train"),
        (["b"], LINEAR.replace("y = Add(z, b)", "c = Round(b) y = Add(z, c)"), "Leave it out of weights_to_train"),
    ],
)
def test_errors_of_the_stages_speak_of_the_arguments(weights, text, match):
    with pytest.raises(DeriveError, match=match) as error:
        OrtGradientOptimizer(parsed(text), weights).fit(X, Y)
    assert "derive." not in str(error.value)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dims", ["N,4,3", "N,T,3", "N,4,K"])
def test_weighted_labels_of_any_rank_follow_the_formula(dims, weighted):
    text = f"g (double[N,4,2] X) => (double[{dims}] y) <double[2,3] w = {{1, 2, 3, 4, 5, 6}}> {{ y = MatMul(X, w) }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {text}')
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(23, 4, 2)), rng.uniform(0.5, 2, 23)
    loss = add_loss_output(model, weight_name="weight" if weighted else None)
    rate = LearningRateSGD(0.05, learning_rate="constant")
    got = OrtGradientOptimizer(loss, ["w"], max_iter=3, batch_size=23, learning_rate=rate, warm_start=True)
    got.fit(x, x @ np.ones((2, 3)), v if weighted else None)
    w = np.arange(1.0, 7).reshape(2, 3)
    for _ in range(3):
        d = x @ w - x @ np.ones((2, 3))
        w = w - 0.1 / 23 * np.einsum("n,ntk,ntj->kj", v if weighted else np.ones(23), x, d)
    np.testing.assert_allclose(got.get_state()["w"], w, rtol=1e-6)
    with pytest.raises(DataError):
        got.fit(x, np.ones((23, 7)), v if weighted else None)
