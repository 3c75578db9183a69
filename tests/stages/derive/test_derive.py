from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from differences import slopes
from sample import few_of_each
from sklearn.neural_network import MLPClassifier, MLPRegressor

from ortpipe.errors import DeriveError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive import config, stage
from ortpipe.stages.derive.engines import ENGINES
from ortpipe.stages.derive.engines.ort import Ort
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty


@pytest.fixture(autouse=True, params=ENGINES)
def engine(request):
    """Every test below holds for every engine."""
    if request.param == "ort":
        request.getfixturevalue("training_build")
    return ENGINES[request.param]()


@pytest.fixture
def derive(engine):
    return lambda artifact, options=None: stage.derive(artifact, config.DeriveConfig(engine=engine, **(options or {})))


@pytest.fixture(scope="module")
def made():
    """What `derived` made: several tests ask for the same."""
    return {}


@pytest.fixture
def derived(made, engine, derive, forward):
    """Derive a case, weighted and penalised or plain; return the model of its loss, and the gradient's."""

    def make(model, loss, dtype="float64", *, weighted=True):
        key = (engine, model, loss, dtype, weighted)
        if key not in made:
            artifact = add_loss(forward(model, dtype), AddLossConfig(LOSSES[loss](), REDUCTIONS[weighted], weighted))
            artifact = penalty(artifact, PENALTY) if weighted else artifact
            made[key] = artifact, derive(artifact, {"inputs": ("X",)})
        return made[key]

    return make


# Central differences of step 1e-5 in float64 are off by about 1e-10 of the loss; the worst seen here is 9e-10.
TOLERANCE = {"rtol": 1e-6, "atol": 1e-8}
W = "float[3,2] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}, float[2] b = {0.2, -0.1}"
U1 = "float[2,1] u = {0.8, -0.6}, float[1] c = {0.15}"
U3 = "float[2,3] u = {0.8, -0.6, 0.3, 0.1, 0.7, -0.9}, float[3] c = {0.15, -0.3, 0.05}"
HEAD = "z = Gemm(h, u, c)"
HIDDEN = {
    "identity": "h = Gemm(X, w, b)",
    "relu": "a = Gemm(X, w, b) h = Relu(a)",
    "tanh": "a = Gemm(X, w, b) h = Tanh(a)",
    "logistic": "a = Gemm(X, w, b) h = Sigmoid(a)",
    "matmul": "a0 = MatMul(X, w) a = Add(a0, b) h = Tanh(a)",
}


def network(hidden, width, end, values=""):
    last = U1 if width == 1 else U3
    columns = 2 if "Concat" in end else width
    return f"g (float[N,3] X) => (float[N,{columns}] y) <{W}, {last}{values}> {{ {HIDDEN[hidden]} {HEAD} {end} }}"


CONCAT = "p = Sigmoid(z) q = Sub(one, p) y = Concat<axis=1>(q, p)"
ONE = ", float one = {1}"
# name: text, task, logits, number of classes, label width
MODELS = {
    "linear": (
        """g (float[N,3] X) => (float[N,1] y) <float[3,1] w = {0.5, -0.7, 1.1}, float[1] b = {0.2}>
         { y = Gemm(X, w, b) }""",
        "regression",
        None,
        None,
    ),
    "linear of two": (f"g (float[N,3] X) => (float[N,2] y) <{W}> {{ y = Gemm(X, w, b) }}", "regression", None, None),
    **{f"{hidden} network": (network(hidden, 1, "y = Identity(z)"), "regression", None, None) for hidden in HIDDEN},
    "logistic": (
        f"""g (float[N,3] X) => (float[N,2] y) <float[3,1] w = {{0.5, -0.7, 1.1}}, float[1] b = {{0.2}}{ONE}>
        {{ z = Gemm(X, w, b) {CONCAT} }}""",
        "binary",
        "z",
        2,
    ),
    "binary network": (network("tanh", 1, CONCAT, ONE), "binary", "z", 2),
    "binary network without logits": (network("tanh", 1, "y = Sigmoid(z)"), "binary", None, 2),
    "binary raw network": (network("relu", 1, "y = Identity(z)"), "binary", "y", 2),
    "multiclass network": (network("relu", 3, "y = Softmax<axis=-1>(z)"), "multiclass", "z", 3),
    "multiclass network without logits": (network("tanh", 3, "y = Softmax<axis=-1>(z)"), "multiclass", None, 3),
    "multiclass raw network": (network("logistic", 3, "y = Identity(z)"), "multiclass", "y", 3),
    "multilabel network": (network("tanh", 3, "y = Sigmoid(z)"), "multilabel", "z", None),
    "multilabel network without logits": (network("tanh", 3, "y = Sigmoid(z)"), "multilabel", None, None),
}
ELSEWHERE = ("cox", "ctc", "discrete_hazard", "info_nce", "onnx")  # their own tests derive them
THOROUGH = ("cross_entropy", "l2", "log")  # with every model; the others with one of each task
ONE_OF_EACH = ("tanh network", "binary network", "multiclass network", "multilabel network")
CASES = [
    (m, name)
    for m, row in MODELS.items()
    for name, loss in LOSSES.items()
    if row[1] in loss.tasks and name not in ELSEWHERE and (name in THOROUGH or m in ONE_OF_EACH)
]
N = 6
REDUCTIONS = {True: "sum", False: "mean"}  # weighted or not
PENALTY = PenaltyConfig({"w": {"l1": 0.3, "l2": 0.2}, "*": {"l2": 0.05}})  # its gradient is added to the loss's


@pytest.fixture(scope="module")
def forward(from_text):
    def make(name, dtype="float64"):
        text, task, logits, classes = MODELS[name]
        return from_text(
            text, dtype=dtype, task=task, logits=logits, classes=tuple(range(classes)) if classes else None
        )

    return make


def feeds_of(artifact, dtype=np.float64, rows=N):
    rng = np.random.default_rng(11)
    facts = artifact.facts
    [label] = [i.type.tensor_type for i in artifact.model.graph.input if i.name == facts.label]
    width = label.shape.dim[1].dim_value
    if facts.task == "regression":
        y = rng.normal(size=(rows, width)).astype(dtype)
    elif facts.task == "multilabel":
        y = rng.integers(0, 2, (rows, width)).astype(dtype)
    else:
        y = (np.arange(rows) % len(facts.classes)).reshape(-1, 1)
    feeds = {"X": rng.normal(size=(rows, 3)).astype(dtype), facts.label: y}
    if facts.sample_weight is not None:
        feeds[facts.sample_weight] = rng.uniform(0.5, 2, (rows, 1)).astype(dtype)
    return feeds


@pytest.mark.parametrize(
    ("model", "loss", "weighted"),
    [
        *((*case, True) for case in CASES),
        *((m, loss, False) for m, loss in CASES if loss in THOROUGH and m in ONE_OF_EACH),
    ],
)
def test_every_gradient_is_the_central_difference(derived, run, model, loss, weighted):
    loss_model, result = derived(model, loss, weighted=weighted)
    feeds = feeds_of(loss_model)
    values = run(result.model, feeds)
    assert set(result.facts.gradients) == set(loss_model.facts.parameters)
    gradients = {**result.facts.gradients, **result.facts.input_gradients}
    for name, expected in slopes(loss_model.model, loss_model.facts.loss, feeds, gradients).items():
        assert values[gradients[name]].shape == expected.shape
        np.testing.assert_allclose(values[gradients[name]], expected, **TOLERANCE)


ONCE = few_of_each(((loss, (model, loss)) for model, loss in CASES), 1)  # each loss


@pytest.mark.parametrize(("model", "loss"), ONCE)
def test_float32_gradients_are_the_float64_ones_rounded(derived, run, model, loss):
    results = {}
    for dtype in ("float32", "float64"):
        _, artifact = derived(model, loss, dtype)
        values = run(artifact.model, feeds_of(artifact, dtype))
        assert all(values[g].dtype == dtype for g in artifact.facts.gradients.values())
        results[dtype] = [values[g] for g in artifact.facts.gradients.values()]
    for narrow, wide in zip(results["float32"], results["float64"], strict=True):
        # sums over the rows; of one column the cosine's slope is 0, which float32 sees as a difference
        np.testing.assert_allclose(narrow, wide, rtol=1e-4, atol=1e-3 if loss == "cosine" else 1e-4)


# The gradients of these losses have operators of the training build: DivGrad, GatherElementsGrad
TRAINING_BUILD = (("cosine", "tanh network"), ("hinge", "multiclass network"))


@pytest.mark.parametrize(("model", "loss"), dict.fromkeys([*ONCE, *((model, loss) for loss, model in TRAINING_BUILD)]))
def test_only_standard_operators_remain(derived, engine, model, loss):
    _, artifact = derived(model, loss, "float32")
    if isinstance(engine, Ort) and (loss, model) in TRAINING_BUILD:
        assert {node.domain for node in artifact.model.graph.node} == {"", "com.microsoft"}
        return
    assert {node.domain for node in artifact.model.graph.node} == {""}
    assert [o.domain for o in artifact.model.opset_import] == [""]
    onnx.checker.check_model(artifact.model, full_check=True)


def test_squared_error_of_a_line_has_the_textbook_gradient(derive, forward, run, parameters_of):
    artifact = derive(add_loss(forward("linear"), AddLossConfig(LOSSES["l2"]())))
    feeds, own = feeds_of(artifact), parameters_of(artifact.model)
    values = run(artifact.model, feeds)
    residual = feeds["X"] @ own["w"] + own["b"] - feeds["label"]
    np.testing.assert_allclose(values["w_grad"], 2 / N * feeds["X"].T @ residual, rtol=1e-12)
    np.testing.assert_allclose(values["b_grad"], 2 / N * residual.sum(axis=0), rtol=1e-12)


def test_log_loss_of_a_logistic_model_has_the_textbook_gradient(derive, forward, run, parameters_of):
    artifact = derive(add_loss(forward("logistic"), AddLossConfig(LOSSES["log"](), "sum")), {"inputs": ("X",)})
    feeds, own = feeds_of(artifact), parameters_of(artifact.model)
    values = run(artifact.model, feeds)
    slope = 1 / (1 + np.exp(-(feeds["X"] @ own["w"] + own["b"]))) - feeds["label"]
    np.testing.assert_allclose(values["w_grad"], feeds["X"].T @ slope, rtol=1e-12)
    np.testing.assert_allclose(values["b_grad"], slope.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(values["X_grad"], slope @ own["w"].T, rtol=1e-12)


# scikit-learn 1.9.1, sklearn/neural_network/_multilayer_perceptron.py: _backprop. Its squared error has a factor ½.
@pytest.mark.parametrize(
    ("model", "loss", "estimator", "out", "factor"),
    [
        *(
            (f"{hidden} network", "l2", MLPRegressor(activation=hidden), "identity", 2)
            for hidden in ("identity", "relu", "tanh", "logistic")
        ),
        ("binary network", "log", MLPClassifier(activation="tanh"), "logistic", 1),
        ("multiclass network", "cross_entropy", MLPClassifier(activation="relu"), "softmax", 1),
        ("multilabel network", "log", MLPClassifier(activation="tanh"), "logistic", 1),
    ],
)
def test_a_network_has_the_gradient_that_scikit_learn_backpropagates(
    derive, forward, run, parameters_of, model, loss, estimator, out, factor
):
    artifact = derive(add_loss(forward(model), AddLossConfig(LOSSES[loss]())))
    feeds, own = feeds_of(artifact), parameters_of(artifact.model)
    values = run(artifact.model, feeds)
    y = feeds["label"] if out != "softmax" else np.eye(3)[feeds["label"].ravel()]
    estimator.set_params(alpha=0.0)
    estimator.coefs_, estimator.intercepts_ = [own["w"], own["u"]], [own["b"], own["c"]]
    estimator.n_layers_, estimator.n_outputs_, estimator.out_activation_ = 3, y.shape[1], out
    activations = estimator._forward_pass([feeds["X"], None, None])
    coefs, intercepts = [np.empty_like(own[n]) for n in "wu"], [np.empty_like(own[n]) for n in "bc"]
    arguments = [feeds["X"], y, None, activations, [None, None], coefs, intercepts]
    estimator.loss = {"l2": "squared_error"}.get(loss, "log_loss")
    published, [gw, gu], [gb, gc] = estimator._backprop(*arguments)
    assert values["loss"] == pytest.approx(factor * published, rel=1e-12)
    for name, gradient in {"w": gw, "u": gu, "b": gb, "c": gc}.items():
        np.testing.assert_allclose(values[f"{name}_grad"], factor * gradient, rtol=1e-10, atol=1e-14)


def test_zero_weights_of_a_logistic_model_have_the_right_gradient(derive, from_text, run):
    text = f"""g (float[N,3] X) => (float[N,2] y) <float[3,1] w = {{0, 0, 0}}, float[1] b = {{0}}{ONE}>
        {{ z = Gemm(X, w, b) {CONCAT} }}"""
    artifact = derive(
        add_loss(from_text(text, task="binary", logits="z", classes=(0, 1)), AddLossConfig(LOSSES["log"]()))
    )
    feeds = feeds_of(artifact, np.float32)
    gradient = feeds["X"].T @ (0.5 - feeds["label"]) / N
    np.testing.assert_allclose(run(artifact.model, feeds)["w_grad"], gradient, rtol=1e-5)


@pytest.fixture
def loss_model(forward):
    return add_loss(forward("tanh network"), AddLossConfig(LOSSES["l2"]()))


def test_inputs_and_outputs_come_in_one_order(derive, forward):
    loss_model = add_loss(forward("tanh network"), AddLossConfig(LOSSES["l2"](), sample_weight=True))
    graph = derive(loss_model, {"inputs": ("X",)}).model.graph
    assert [i.name for i in graph.input] == ["X", "label", "sample_weight", "w", "b", "u", "c", "loss_grad"]
    assert [o.name for o in graph.output] == ["loss", "w_grad", "b_grad", "u_grad", "c_grad", "X_grad", "y"]


def test_every_gradient_is_multiplied_by_the_losss_own(derive, loss_model, run):
    derived, feeds = derive(loss_model), feeds_of(loss_model)
    once, scaled = run(derived.model, feeds), run(derived.model, {**feeds, "loss_grad": np.array(-0.25)})
    assert scaled["loss"] == once["loss"]
    for name in derived.facts.gradients.values():
        np.testing.assert_allclose(scaled[name], -0.25 * once[name], rtol=1e-12)


def test_its_input_stays_as_it_was(derive, loss_model):
    before = loss_model.digest()
    assert derive(loss_model) is not loss_model
    assert loss_model.digest() == before


def test_the_same_input_gives_the_same_bytes(derive, loss_model):
    assert derive(loss_model).digest() == derive(loss_model).digest()


def test_loss_and_forward_outputs_are_those_of_the_loss_model(derive, loss_model, run):
    result, feeds = derive(loss_model), feeds_of(loss_model)
    before, after = run(loss_model.model, feeds), run(result.model, feeds)
    np.testing.assert_array_equal(after["y"], before["y"])
    assert after["loss"] == pytest.approx(before["loss"], rel=1e-14)
    assert result.facts.outputs == ("y",)


def test_parameters_that_are_not_fed_have_their_current_values(derive, loss_model, run, parameters_of):
    result, feeds = derive(loss_model), feeds_of(loss_model)
    own = parameters_of(loss_model.model)
    assert {n: v.tolist() for n, v in parameters_of(result.model).items() if n in own} == {
        n: v.tolist() for n, v in own.items()
    }
    for name, value in run(result.model, {**feeds, **own}).items():
        np.testing.assert_array_equal(value, run(result.model, feeds)[name])


def test_the_result_is_a_function_of_its_parameters(derive, loss_model, run, central_differences):
    result, feeds = derive(loss_model), feeds_of(loss_model)
    rng = np.random.default_rng(5)
    other = {name: rng.normal(size=np.shape(v)) for name, v in central_zeros(result).items()}
    values = run(result.model, {**feeds, **other})
    hidden = np.tanh(feeds["X"] @ other["w"] + other["b"])
    prediction = hidden @ other["u"] + other["c"]
    np.testing.assert_allclose(values["y"], prediction, rtol=1e-12)
    assert values["loss"] == pytest.approx(((prediction - feeds["label"]) ** 2).mean(), rel=1e-12)
    for name in other:
        expected = central_differences(result.model, "loss", {**feeds, **other}, name)
        np.testing.assert_allclose(values[f"{name}_grad"], expected, **TOLERANCE)


def central_zeros(artifact):
    shapes = {t.name: list(t.dims) for t in artifact.model.graph.initializer}
    return {name: np.zeros(shapes[name]) for name in artifact.facts.gradients}


def test_any_number_of_rows_can_be_fed(derive, loss_model, run):
    result = derive(loss_model)
    for rows in (1, 2, 50):
        assert np.isfinite(run(result.model, feeds_of(result, rows=rows))["w_grad"]).all()


@pytest.mark.parametrize(
    ("config", "trained"),
    [
        ({"frozen": ("w", "b")}, ("u", "c")),
        ({"frozen": ("[wu]",)}, ("b", "c")),
        ({"parameters": ("u", "w")}, ("w", "u")),
        ({"parameters": ("*",), "frozen": ("c",)}, ("w", "b", "u")),
        ({"parameters": ("b",)}, ("b",)),
    ],
)
def test_names_and_globs_choose_what_is_trained(derive, loss_model, run, config, trained):
    result, feeds = derive(loss_model, config), feeds_of(loss_model)
    everything = run(derive(loss_model).model, feeds)
    assert result.facts.parameters == tuple(result.facts.gradients) == trained
    assert not {"w", "b", "u", "c"} - set(trained) & {i.name for i in result.model.graph.input}
    for name in trained:
        np.testing.assert_allclose(run(result.model, feeds)[f"{name}_grad"], everything[f"{name}_grad"], rtol=1e-12)


@pytest.mark.parametrize("order", list(itertools.permutations("wub"))[:4])
def test_the_order_of_names_in_the_config_makes_no_difference(derive, loss_model, order):
    assert (
        derive(loss_model, {"parameters": order}).digest()
        == derive(loss_model, {"parameters": ("w", "b", "u")}).digest()
    )


def test_the_order_of_initializers_does_not_mix_up_gradients(derive, from_text, run):
    shape = "float[N,2] X) => (float[N,2] y"
    text = f"""g ({shape}) <float[2,2] zz = {{1, 2, 3, 4}}, float[2,2] aa = {{5, 6, 7, 8}}>
     {{ h = MatMul(X, zz) y = MatMul(h, aa) }}"""
    result = derive(add_loss(from_text(text, dtype="float64"), AddLossConfig(LOSSES["l2"](), "sum")))
    x, zz, aa = np.array([[1.0, -2.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0], [7.0, 8.0]])
    values = run(result.model, {"X": x, "label": np.zeros((1, 2))})
    slope = 2 * (x @ zz @ aa)
    assert list(result.facts.gradients) == ["zz", "aa"]
    np.testing.assert_allclose(values["zz_grad"], x.T @ (slope @ aa.T))
    np.testing.assert_allclose(values["aa_grad"], (x @ zz).T @ slope)


def test_scalars_are_trained_only_when_they_are_named(derive, from_text, run, central_differences):
    text = """g (float[N,3] X) => (float[N,1] y) <float[3,1] w = {1, 2, -1}, float s = {0.5}>
     { h = MatMul(X, w) y = Mul(h, s) }"""
    loss_model = add_loss(from_text(text, dtype="float64"), AddLossConfig(LOSSES["l2"]()))
    assert list(derive(loss_model).facts.gradients) == ["w"]
    named = derive(loss_model, {"parameters": ("w", "s")})
    assert list(named.facts.gradients) == ["w", "s"]
    feeds = feeds_of(named)
    expected = central_differences(loss_model.model, "loss", feeds, "s")
    np.testing.assert_allclose(run(named.model, feeds)["s_grad"], expected, **TOLERANCE)


def test_parameters_with_one_gradient_have_an_output_each(derive, from_text, run):
    text = "g (float[N,1] X) => (float[N,1] y) <float[1] a = {1}, float[1] b = {2}> { h = Add(X, a) y = Add(h, b) }"
    result = derive(
        add_loss(from_text(text, dtype="float64"), AddLossConfig(LOSSES["l2"](), "sum")), {"inputs": ("X",)}
    )
    values = run(result.model, {"X": np.array([[1.0], [2.0]]), "label": np.zeros((2, 1))})
    np.testing.assert_allclose(values["a_grad"], [18.0])
    np.testing.assert_allclose(values["b_grad"], [18.0])
    np.testing.assert_allclose(values["X_grad"], [[8.0], [10.0]])


def test_a_parameter_used_twice_gets_the_sum_of_both_ways(derive, from_text, run, central_differences):
    text = """g (float[N,3] X) => (float[N,3] y) <float[3,3] w = {1, 2, 3, -1, 0.5, 0.2, 0.7, 0.1, 2}>
     { a = MatMul(X, w) h = Tanh(a) y = MatMul(h, w) }"""
    loss_model = add_loss(from_text(text, dtype="float64"), AddLossConfig(LOSSES["l2"]()))
    feeds = feeds_of(loss_model)
    expected = central_differences(loss_model.model, "loss", feeds, "w")
    np.testing.assert_allclose(run(derive(loss_model).model, feeds)["w_grad"], expected, **TOLERANCE)


def test_forward_outputs_are_left_out_on_request(derive, loss_model):
    result = derive(loss_model, {"forward_outputs": False})
    assert [o.name for o in result.model.graph.output] == ["loss", "w_grad", "b_grad", "u_grad", "c_grad"]
    assert result.facts.outputs == ()


COLLIDING = """g (float[N,3] X) => (float[N,1] y, float[N,1] w_grad, float[N,1] y_grad)
 <float[3,1] w = {1, 2, -1}, float[3,1] k = {3, 1, 1}>
 { y = MatMul(X, w) w_grad = MatMul(X, k) y_grad = Neg(w_grad) }"""


def test_gradient_names_make_way_for_the_models_own(derive, from_text, run, central_differences):
    loss_model = add_loss(from_text(COLLIDING, dtype="float64", prediction="y"), AddLossConfig(LOSSES["l2"]()))
    result, feeds = derive(loss_model), feeds_of(loss_model)
    values = run(result.model, feeds)
    own = feeds["X"] @ np.array([[3.0], [1.0], [1.0]])
    assert result.facts.gradients["w"] != "w_grad"
    np.testing.assert_allclose(values["w_grad"], own)
    np.testing.assert_allclose(values["y_grad"], -own)
    expected = central_differences(loss_model.model, "loss", feeds, "w")
    np.testing.assert_allclose(values[result.facts.gradients["w"]], expected, **TOLERANCE)


INNER = """g (float[N,3] X) => (float[N,1] y) <float[3,3] w = {1, 2, 3, -1, 0.5, 0.2, 0.7, 0.1, 2},
  float[3,1] u = {1, 2, -1}>
 { w_grad = MatMul(X, w) y_grad = Tanh(w_grad) y = MatMul(y_grad, u) }"""


def test_gradient_names_make_way_for_values_on_the_way_to_the_loss(derive, from_text, run, central_differences):
    loss_model = add_loss(from_text(INNER, dtype="float64"), AddLossConfig(LOSSES["l2"]()))
    result, feeds = derive(loss_model), feeds_of(loss_model)
    values = run(result.model, feeds)
    for name in ("w", "u"):
        expected = central_differences(loss_model.model, "loss", feeds, name)
        np.testing.assert_allclose(values[result.facts.gradients[name]], expected, **TOLERANCE)


@pytest.mark.parametrize("op", ["Acos", "Asin", "Atan", "Round", "Hardmax"])
def test_an_operator_without_gradient_is_named_with_its_node(derive, engine, from_text, op):
    if not isinstance(engine, Ort):
        pytest.skip("native differentiates it")
    text = f"""g (float[N,3] X) => (float[N,1] y) <float[3,1] w = {{1, 2, -1}}>
     {{ h = MatMul(X, w) [the_node] y = {op}(h) }}"""
    with pytest.raises(DeriveError) as error:
        derive(add_loss(from_text(text), AddLossConfig(LOSSES["l2"]())))
    assert f"{op} at node 'the_node'" in str(error.value)
    assert "frozen" in str(error.value)


CHOSEN = """g (float[N,3] X) => (float[N,1] y) <float[3,2] u = {1, 2, -1, 3, 0.5, 1}, float[3,2] v = {1, 2, 3, 4, 5, 6},
  float[2,1] e = {0.5, 2}, float[1,1] w = {3}>
 { k = MatMul(X, u) i = ArgMax<axis=1, keepdims=0>(k) j = MatMul(X, v) c = ArgMax<axis=1, keepdims=0>(j)
   g = Gather(e, i) h = Gather(e, c) f = Add(g, h) y = MatMul(f, w) }"""


def test_what_no_gradient_can_reach_is_no_parameter_and_that_is_said(derive, from_text):
    loss_model = add_loss(from_text(CHOSEN), AddLossConfig(LOSSES["l2"]()))
    result = derive(loss_model, {"frozen": ["w"]})
    assert (result.facts.parameters, {*result.facts.constants}) == (("e",), {"u", "v", "w"})
    assert "u, v (no gradient reaches it)" in str(result.facts.lineage[-1]["notes"])
    with pytest.raises(DeriveError, match="no gradient for 'u', 'v': "):  # all at once, for they are asked for
        derive(loss_model, {"parameters": ["*"]})


def test_an_operator_without_gradient_may_stand_before_the_parameters(derive, from_text, run):
    text = "g (float[N,3] X) => (float[N,1] y) <float[3,1] w = {1, 2, -1}> { h = Elu(X) y = MatMul(h, w) }"
    result = derive(add_loss(from_text(text), AddLossConfig(LOSSES["l2"]())))
    feeds = feeds_of(result, np.float32)
    hidden = np.where(feeds["X"] > 0, feeds["X"], np.expm1(feeds["X"]))
    residual = hidden @ np.array([[1.0], [2.0], [-1.0]]) - feeds["label"]
    np.testing.assert_allclose(run(result.model, feeds)["w_grad"], 2 / N * hidden.T @ residual, rtol=1e-4)


def test_a_parameter_behind_a_node_without_derivative_is_refused(derive, from_text):
    text = """g (float[N,3] X) => (float[N,1] y) <float[3,1] w = {1, 2, -1}, float[3,1] k = {1, 1, 1}>
     { h = MatMul(X, w) i = Cast<to=7>(h) j = Cast<to=1>(i) m = MatMul(X, k) y = Add(m, j) }"""
    loss_model = add_loss(from_text(text), AddLossConfig(LOSSES["l2"]()))
    with pytest.raises(DeriveError):
        derive(loss_model, {"parameters": ("w",)})
    assert list(derive(loss_model, {"frozen": ("w",)}).facts.gradients) == ["k"]


def test_training_nothing_is_refused(derive, loss_model):
    with pytest.raises(DeriveError, match="At least one parameter must be trained"):
        derive(loss_model, {"frozen": ("*",)})


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"parameters": ("ww",)}, "parameters"),
        ({"frozen": ("layer*",)}, "frozen"),
        ({"inputs": ("Z",)}, "inputs"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_with_its_key(derive, loss_model, config, key):
    with pytest.raises(DeriveError, match=f"Every pattern in {key} must match"):
        derive(loss_model, config)


def test_running_statistics_alone_cannot_be_frozen(derive, engine, from_text):
    if isinstance(engine, Ort):
        pytest.skip("ort rejects BatchNormalization")
    text = """g (float[N,2] X) => (float[N,2] y) <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] mean = {0, 1},
      float[2] var = {1, 1}> { y, m, v = BatchNormalization<training_mode = 1>(X, s, b, mean, var) }"""
    loss_model = add_loss(from_text(text), AddLossConfig(LOSSES["l2"]()))
    with pytest.raises(DeriveError, match=r"(?s)running statistics follow the batches.*'mean'.*training_mode=0"):
        derive(loss_model, {"frozen": ("s", "mean")})
    assert [*derive(loss_model, {"frozen": ("[sv]*",)}).facts.gradients] == ["b"]


def test_a_faulty_operator_is_refused_on_the_way_to_an_input_too(derive, engine, from_text):
    if not isinstance(engine, Ort):
        pytest.skip("native differentiates it")
    text = "g (float[N,3] X) => (float[N,1] y) <float[3,1] w = {1, 2, -1}> { h = Atan(X) y = MatMul(h, w) }"
    loss_model = add_loss(from_text(text), AddLossConfig(LOSSES["l2"]()))
    assert list(derive(loss_model, {"parameters": ("w",)}).facts.gradients) == ["w"]
    with pytest.raises(DeriveError, match="Atan"):
        derive(loss_model, {"parameters": ("w",), "inputs": ("X",)})


TWO_OUTPUTS = """g (float[N,3] X) => (float[N,2] y, float[N,1] z)
 <float[3,2] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}, float[2,1] u = {0.8, -0.6}>
 { a = MatMul(X, w) y = Tanh(a) z = MatMul(y, u) }"""


@pytest.mark.parametrize("fill", [False, True], ids=["gradients given", "gradients of one"])
def test_several_outputs_give_the_gradients_of_their_sum(derive, from_text, central_differences, run, fill):
    forward = from_text(TWO_OUTPUTS, dtype="float64")
    result = derive(forward, {"output": ("y", "z"), "inputs": ("X",), "fill_gradient": fill, "forward_outputs": False})
    rng = np.random.default_rng(5)
    x, dy, dz = rng.normal(size=(N, 3)), rng.normal(size=(N, 2)), rng.normal(size=(N, 1))
    seeds = {} if fill else {"y_grad": dy, "z_grad": dz}
    assert [i.name for i in result.model.graph.input] == ["X", "w", "u", *seeds]
    assert result.facts.output_gradient is None
    assert result.facts.loss is None
    got = run(result.model, {"X": x, **seeds})
    text = TWO_OUTPUTS.replace("(float[N,2] y, float[N,1] z)", "(float s)").replace(
        " }",
        " dy = Mul(y, v) dz = Mul(z, t) p = ReduceSum<keepdims=0>(dy) q = ReduceSum<keepdims=0>(dz) s = Add(p, q) }",
    )
    text = text.replace("(float[N,3] X)", "(float[N,3] X, float[N,2] v, float[N,1] t)")
    ones = {"v": np.ones_like(dy), "t": np.ones_like(dz)}
    feeds = {"X": x, **(ones if fill else {"v": dy, "t": dz})}
    for name, gradient in {**result.facts.gradients, **result.facts.input_gradients}.items():
        expected = central_differences(from_text(text, dtype="float64").model, "s", feeds, name)
        np.testing.assert_allclose(got[gradient], expected, **TOLERANCE)


def test_a_loss_of_one_element_becomes_a_scalar(derive, from_text, run):
    text = """g (float[N,1] X) => (float[1,1] cost) <float[1,1] w = {3}>
     { y = MatMul(X, w) s = Mul(y, y) cost = ReduceSum<keepdims=1>(s) }"""
    result = derive(from_text(text, loss="cost", outputs=()))
    got = run(result.model, {"X": np.array([[1.0], [2.0]], np.float32)})
    assert result.facts.loss == "cost"
    assert got["cost"].shape == ()
    assert got["cost"] == 45
    assert got[result.facts.gradients["w"]] == 30


def test_fill_gradient_changes_nothing_for_a_loss_whose_gradient_is_one_already(derive, forward):
    loss_model = add_loss(forward("linear"), AddLossConfig(LOSSES["l2"]()))
    assert derive(loss_model, {"fill_gradient": True}).digest() == derive(loss_model).digest()


def test_the_ort_engine_can_leave_its_yield_op_in_place(training_build, from_text):
    keeping = config.DeriveConfig(Ort(yield_op=True), output=("y", "z"), inputs=("X",))
    result = stage.derive(from_text(TWO_OUTPUTS), keeping)
    [node] = [n for n in result.model.graph.node if n.op_type == "YieldOp"]
    assert list(node.input) == ["y", "z"]
    assert sorted(o.name for o in result.model.graph.output) == ["X_grad", "u_grad", "w_grad"]
    assert not result.facts.gradients  # train cannot run it


def test_an_output_or_a_constant_that_is_a_gradient_keeps_its_name(derive, from_text):
    text = """g (float[3] x) => (float[3] y, float[3] z) <float[3] w = {1, 2, 3}, float[3] c = {4, 5, 6}>
    { y = Exp(x) z = Mul(w, c) }"""
    options = {"output": ("y", "z"), "inputs": ("x",), "parameters": ("w",), "fill_gradient": True}
    result = derive(from_text(text), options)
    assert result.facts.constants == ("c",)
    assert {"w", "c"} <= result.initializers.keys()
    assert {"y", "z", "x_grad", "w_grad"} == {output.name for output in result.model.graph.output}
    both = derive(from_text(text), {**options, "parameters": ("w", "c")})  # each is the other's gradient
    assert both.facts.gradients == {"w": "w_grad", "c": "c_grad"}
    assert {"w", "c"} <= both.initializers.keys()
