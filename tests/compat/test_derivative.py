from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from differences import central_differences
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from onnx.reference import ReferenceEvaluator

import ortpipe.app.cli  # noqa: F401  (registers the resolvers)
from ortpipe.artifact import Artifact, Facts
from ortpipe.compat import DerivativeOptions, add_loss_output, onnx_derivative, random_feed
from ortpipe.errors import DataError, DeriveError
from ortpipe.graph.core.check import checked
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.stage import derive

CONF = Path(__file__).resolve().parents[2] / "conf"
Zero, KeepYieldOp, KeepOutputs, FillGrad, Loss = (
    DerivativeOptions.Zero,
    DerivativeOptions.KeepYieldOp,
    DerivativeOptions.KeepOutputs,
    DerivativeOptions.FillGrad,
    DerivativeOptions.Loss,
)
# The example of the originals' documentation, as skl2onnx writes it: X + 1.
ADD = "g (float[?,10] X) => (float[?,10] Y) <float[1] Ad_Addcst = {1}> { [Ad_Add] Y = Add(X, Ad_Addcst) }"
TWO = """g (double[N,3] X, double[N,2] B) => (double[N,2] y, double[N,1] z, int64[N] k)
 <double[3,2] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}, double[2,1] u = {0.8, -0.6}, double[4] unused = {1, 2, 3, 4}>
 { a = MatMul(X, w) c = Add(a, B) y = Tanh(c) r = Reciprocal(u) z = MatMul(y, r) k = ArgMax<axis=1, keepdims=0>(y) }"""
# The sum of every output of TWO times a gradient of its own: what its gradients are the derivatives of.
TWO_SUM = (
    TWO.replace(
        "=> (double[N,2] y, double[N,1] z, int64[N] k)",
        ", double[N,2] y_grad, double[N,1] z_grad) => (double s)",
    )
    .replace("double[N,2] B) ,", "double[N,2] B,")
    .replace(
        " k = ArgMax<axis=1, keepdims=0>(y) }",
        """ p = Mul(y, y_grad) q = Mul(z, z_grad) P = ReduceSum<keepdims=0>(p) Q = ReduceSum<keepdims=0>(q)
         s = Add(P, Q) }""",
    )
)


def parsed(text, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n' + text)


def names(model):
    return [i.name for i in model.graph.input], [o.name for o in model.graph.output]


def run(model, feeds):
    """Run a model on ONNX Runtime and on onnx.reference, which must agree."""
    session = Session(model)
    got = dict(zip(session.outputs, session.run(feeds), strict=True))
    reference = ReferenceEvaluator(model)
    for name, value in zip(reference.output_names, reference.run(None, feeds), strict=True):
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)  # sums of unseeded rows may cancel
    return got


def test_the_documented_example_has_the_documented_inputs_and_outputs():
    assert names(onnx_derivative(parsed(ADD))) == (["X", "Ad_Addcst", "Y_grad"], ["X_grad", "Ad_Addcst_grad"])
    kept = onnx_derivative(parsed(ADD), options=KeepOutputs)
    assert names(kept) == (["X", "Ad_Addcst", "Y_grad"], ["X_grad", "Ad_Addcst_grad", "Y"])
    filled = onnx_derivative(parsed(ADD), options=KeepOutputs | FillGrad)
    assert names(filled) == (["X", "Ad_Addcst"], ["X_grad", "Ad_Addcst_grad", "Y"])


def operators(model):
    """Return (operator, inputs that a node or the caller gives, outputs) of every node but constants and shapes."""
    quiet = {o for n in model.graph.node if n.op_type in ("Constant", "Shape") for o in n.output}
    quiet |= {t.name for t in model.graph.initializer}
    kept = [n for n in model.graph.node if not quiet.issuperset(n.output)]
    return [(n.op_type, [i for i in n.input if i not in quiet], list(n.output)) for n in kept]


def test_the_documented_example_is_two_gradients_node_by_node():
    [reduced, weight, data] = operators(onnx_derivative(parsed(ADD)))
    assert reduced[:2] == ("ReduceSum", ["Y_grad"])
    assert weight == ("Squeeze", reduced[2], ["Ad_Addcst_grad"])
    assert data == ("Identity", ["Y_grad"], ["X_grad"])


def test_the_documented_example_keeps_its_yield_op_node_by_node(training_build):
    model = onnx_derivative(parsed(ADD), options=KeepYieldOp)
    [add, yielded, reduced, weight, data] = operators(model)
    assert add == ("Add", ["X", "Ad_Addcst"], ["Y"])
    assert yielded == ("YieldOp", ["Y"], ["Y_grad"])
    assert reduced[:2] == ("ReduceSum", ["Y_grad"])
    assert weight == ("Reshape", reduced[2], ["Ad_Addcst_grad"])
    assert data == ("Identity", ["Y_grad"], ["X_grad"])
    assert names(model) == (["X", "Ad_Addcst"], ["X_grad", "Ad_Addcst_grad"])


@pytest.mark.parametrize("options", [Zero, KeepOutputs, KeepOutputs | FillGrad])
def test_the_documented_example_has_its_values(options):
    model = onnx_derivative(parsed(ADD), options=options)
    feeds = random_feed(model.graph.input)
    got = run(model, feeds)
    dy = np.ones_like(feeds["X"]) if options & FillGrad else feeds["Y_grad"]
    np.testing.assert_array_equal(got["X_grad"], dy)
    np.testing.assert_allclose(got["Ad_Addcst_grad"], [dy.sum()], rtol=1e-5, atol=1e-5)
    if options & KeepOutputs:
        np.testing.assert_array_equal(got["Y"], feeds["X"] + feeds["Ad_Addcst"])
    assert model.ir_version == 9


def two_feeds(n=5, broadcast=False):
    rng = np.random.default_rng(3)
    w, u = rng.normal(size=(3, 2)), rng.normal(size=(2, 1)) + 2
    b = rng.normal(size=(1 if broadcast else n, 2))
    seeds = {"y_grad": rng.normal(size=(n, 2)), "z_grad": rng.normal(size=(n, 1))}
    return {"X": rng.normal(size=(n, 3)), "B": b, "w": w, "u": u, **seeds}


@pytest.mark.parametrize("options", [Zero, KeepOutputs, KeepOutputs | FillGrad])
def test_several_outputs_give_central_differences(options):
    model = onnx_derivative(parsed(TWO), options=options)
    seeds = [] if options & FillGrad else ["y_grad", "z_grad"]
    outputs = ["y", "z", "k"] if options & KeepOutputs else []
    assert names(model) == (["X", "B", "w", "u", *seeds], ["X_grad", "B_grad", "w_grad", "u_grad", *outputs])
    feeds = two_feeds()
    if options & FillGrad:
        feeds |= {"y_grad": np.ones((5, 2)), "z_grad": np.ones((5, 1))}
    got = run(model, {name: value for name, value in feeds.items() if name in names(model)[0]})
    for name in ("X", "B", "w", "u"):
        wanted = central_differences(parsed(TWO_SUM), "s", feeds, name)
        np.testing.assert_allclose(got[f"{name}_grad"], wanted, rtol=1e-6, atol=1e-8)


def test_an_input_whose_nameless_rows_are_fewer_is_summed_over_them():
    text = TWO_SUM.replace("double[N,2] B", "double[?,2] B")
    model = onnx_derivative(parsed(TWO.replace("[N,", "[?,").replace("int64[N]", "int64[?]")))
    feeds = two_feeds(broadcast=True)
    wanted = central_differences(parsed(text), "s", feeds, "B")
    np.testing.assert_allclose(run(model, feeds)["B_grad"], wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("inputs", [["X"], ["B"], ["B", "X"], [], "X"])
@pytest.mark.parametrize("weights", [None, ["u"], []])
def test_only_the_weights_and_inputs_that_are_named_have_gradients(weights, inputs):
    if weights == [] and not inputs:
        with pytest.raises(DeriveError, match="At least one"):
            onnx_derivative(parsed(TWO), weights, inputs)
        return
    model = onnx_derivative(parsed(TWO), weights, inputs)
    trained = ["w", "u"] if weights is None else weights
    wanted = [f"{name}_grad" for name in [*[i for i in ("X", "B") if i in inputs], *trained]]
    assert names(model) == (["X", "B", *trained, "y_grad", "z_grad"], wanted)
    full, feeds = onnx_derivative(parsed(TWO)), two_feeds()
    for tensor in parsed(TWO).graph.initializer:  # what is not trained has the model's own value
        if tensor.name in feeds and tensor.name not in trained:
            feeds[tensor.name] = onnx.numpy_helper.to_array(tensor)
    expected = run(full, feeds)
    for name, value in run(model, {n: v for n, v in feeds.items() if n in names(model)[0]}).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_float_type_has_gradients(dtype):
    kind = {"float16": "float16", "float32": "float", "float64": "double"}[dtype]
    text = f"g ({kind}[N,2] X) => ({kind}[N,2] Y) <{kind}[2] w = {{1, 2}}> {{ Y = Mul(X, w) }}"
    model = onnx_derivative(parsed(text))
    x, w, dy = (np.array(v, dtype) for v in ([[1, 2], [3, 4]], [3, 5], [[1, -1], [2, 0]]))
    got = run(model, {"X": x, "w": w, "Y_grad": dy})
    assert {g.dtype.name for g in got.values()} == {dtype}
    assert (got["X_grad"].tolist(), got["w_grad"].tolist()) == ((dy * w).tolist(), (dy * x).sum(axis=0).tolist())


def test_outputs_of_two_float_types_have_gradients_of_their_inputs_types():
    text = "g (float[N,2] X, double[N,2] Z) => (float[N,2] a, double[N,2] b) { a = Mul(X, X) b = Mul(Z, Z) }"
    x, z, dx, dz = (np.full((3, 2), v) for v in (2, 3, 5, 7))
    feeds = {"X": x.astype(np.float32), "Z": z + 0.0, "a_grad": dx.astype(np.float32), "b_grad": dz + 0.0}
    got = run(onnx_derivative(parsed(text)), feeds)
    assert (got["X_grad"].dtype, got["Z_grad"].dtype) == (np.float32, np.float64)
    assert (got["X_grad"].tolist(), got["Z_grad"].tolist()) == ([[20, 20]] * 3, [[42, 42]] * 3)


def test_a_scalar_output_takes_its_gradient_or_one():
    text = "g (float[N,2] X) => (float Y) <float[2] w = {1, 2}> { a = Mul(X, w) Y = ReduceSum<keepdims=0>(a) }"
    x, w = np.array([[1, 2], [3, 4]], np.float32), np.array([1, 1], np.float32)
    model = onnx_derivative(parsed(text))
    assert names(model) == (["X", "w", "Y_grad"], ["X_grad", "w_grad"])
    got = run(model, {"X": x, "w": w, "Y_grad": np.array(3, np.float32)})
    assert got["w_grad"].tolist() == [12, 18]
    filled = onnx_derivative(parsed(text), options=KeepOutputs | FillGrad)
    assert names(filled) == (["X", "w"], ["X_grad", "w_grad", "Y"])
    assert run(filled, {"X": x, "w": w})["w_grad"].tolist() == [4, 6]


LINEAR = """g (double[N,3] X) => (double[N,2] Y)
 <double[3,2] coef = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}, double[2] b = {1, 2}>
 { a = MatMul(X, coef) Y = Add(a, b) }"""
BINARY = """g (double[N,3] X) => (double[N,2] Y) <double[3,2] coef = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}>
 { a = MatMul(X, coef) Y = Softmax(a) }"""


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("score", ["squared_error", "l1", "elastic", "log"])
def test_a_loss_gives_itself_the_outputs_and_every_gradient(score, named, tmp_path):
    onx = parsed(BINARY if score == "log" else LINEAR)
    model = add_loss_output(onx, score, weight_name="weight", penalty={"*": {"l1": 0.1, "l2": 0.2}})
    said = {"loss": "loss", "label": "label"} if named else {}
    gradient = onnx_derivative(model, options=Loss, path_name=tmp_path / "gradient.onnx", **said)
    weights = ["coef"] if score == "log" else ["coef", "b"]
    grads = [f"{n}_grad" for n in ["X", "weight", *weights]]
    assert names(gradient) == (["X", "label", "weight", *weights], ["loss", "Y", *grads])
    rng = np.random.default_rng(1)
    label = np.arange(4).reshape(-1, 1) % 2 if score == "log" else rng.normal(size=(4, 2))
    feeds = {"X": rng.normal(size=(4, 3)), "label": label, "weight": rng.uniform(1, 2, 4)}
    got, own = run(gradient, feeds), run(model, feeds)
    assert got["loss"].shape == (1, 1)
    np.testing.assert_allclose(got["loss"], own["loss"])
    np.testing.assert_allclose(got["Y"], own["Y"])
    for name in ("X", "weight", *weights):
        wanted = central_differences(gradient, "loss", feeds, name)
        np.testing.assert_allclose(got[f"{name}_grad"], wanted, rtol=1e-6, atol=1e-8)
    assert onnx.load(tmp_path / "gradient.onnx") == gradient


def test_a_loss_is_differentiated_by_the_weights_and_inputs_that_are_named():
    gradient = onnx_derivative(add_loss_output(parsed(LINEAR)), ["b"], [], Loss)
    assert names(gradient) == (["X", "label", "b"], ["loss", "Y", "b_grad"])


def test_linear_models_of_ai_onnx_ml_have_gradients():
    from skl2onnx import to_onnx
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    estimator = make_pipeline(StandardScaler(), LinearRegression()).fit(x, x[:, 0] - 2 * x[:, 1])
    model = onnx_derivative(to_onnx(estimator, x, target_opset=18), weights=[])
    got = run(model, {"X": x, f"{names(model)[0][-1]}": np.ones((20, 1), np.float32)})
    slope = estimator[-1].coef_ / estimator[0].scale_
    np.testing.assert_allclose(got["X_grad"], np.tile(slope, (20, 1)), rtol=1e-4, atol=1e-5)


def test_the_callers_model_is_untouched_and_the_same_call_gives_the_same_bytes():
    onx = parsed(TWO)
    before = onx.SerializeToString(deterministic=True)
    first, second = (onnx_derivative(onx).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
    assert onx.SerializeToString(deterministic=True) == before


COMBINATIONS = [
    sum(chosen, Zero)
    for count in range(2, 5)
    for chosen in itertools.combinations([KeepYieldOp, KeepOutputs, FillGrad, Loss], count)
]


@pytest.mark.parametrize("options", [FillGrad, *(c for c in COMBINATIONS if c != KeepOutputs | FillGrad)])
def test_options_that_do_not_go_together_are_refused(options):
    with pytest.raises(AssertionError, match=r"cannot be (combined|used)"):  # as in experimental-experiment
        onnx_derivative(parsed(ADD), options=DerivativeOptions(options))


LOSSES = add_loss_output(parsed(LINEAR))
REFUSED = {
    "a number": (parsed(ADD), {"options": 1}, "must be DerivativeOptions"),
    "an unknown weight": (parsed(ADD), {"weights": ["Ad_Addst"]}, "Did you mean 'Ad_Addcst'"),
    "a weight that no output reads": (parsed(TWO), {"weights": ["unused"]}, "'unused'"),
    "an unknown input": (parsed(ADD), {"inputs": ["Z"]}, "'Z'"),
    "a loss without the option": (LOSSES, {"loss": "loss"}, "belong to DerivativeOptions.Loss"),
    "no loss": (parsed(ADD), {"options": Loss}, "Run add_loss_output first"),
    "a loss that is no number": (parsed(ADD), {"options": Loss, "loss": "Y", "label": "X"}, "of one element"),
    "an unknown label": (LOSSES, {"options": Loss, "label": "y"}, "inputs: X, label"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_differentiated_is_refused_with_the_way_out(name):
    model, arguments, message = REFUSED[name]
    with pytest.raises(DeriveError, match=message):
        onnx_derivative(model, **arguments)


def test_it_says_what_it_differentiates_when_verbose(capsys):
    onnx_derivative(parsed(ADD), verbose=1)
    assert capsys.readouterr().out == "onnx_derivative: Y by X, Ad_Addcst\n"


TWINS = {  # options → what the command line says instead
    Zero: ["derive.forward_outputs=false"],
    KeepOutputs: [],
    KeepOutputs | FillGrad: ["derive.fill_gradient=true"],
    KeepYieldOp: ["derive=ort", "derive.engine.yield_op=true"],
}


@pytest.mark.parametrize("options", TWINS)
def test_every_combination_of_options_has_a_twin_in_the_config_of_derive(options, request):
    from ortpipe.app.schema import build

    forward = parsed(TWO)
    if options == KeepYieldOp:
        request.getfixturevalue("training_build")
        forward = parsed(TWO.replace("Reciprocal(u)", "Exp(u)"))
    said = ["derive.output=[y,z]", "derive.inputs=[X,B]", *TWINS[options]]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = build(OmegaConf.to_container(compose("config", ["name=twin", "paths.outputs=.", *said]), resolve=True))
    facts = Facts("regression", ("X", "B"), ("y", "z", "k"), "y", ("w", "u"))
    twin = derive(Artifact(checked(forward), facts), config.derive).model
    model = onnx_derivative(forward, options=options)
    assert sorted(names(twin)[0]) == sorted(names(model)[0])
    assert sorted(names(twin)[1]) == sorted(names(model)[1])
    assert [n.op_type for n in twin.graph.node] == [n.op_type for n in model.graph.node]


def test_a_random_feed_has_the_types_and_shapes_of_the_inputs():
    model = parsed(
        """g (float[N,3] X, double[2,M] W, int64[N,1] label, bool[N] mask, float16[4] h, float one) => (float[N,3] Y)
         { Y = Abs(X) }"""
    )
    shapes = {"X": (7, 3), "W": (2, 5), "label": (7, 1), "mask": (7,), "h": (4,), "one": ()}
    types = {"X": "float32", "W": "float64", "label": "int64", "mask": "bool", "h": "float16", "one": "float32"}
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for inputs in (model.graph.input, session.get_inputs()):
        feeds = random_feed(inputs, batch=7, empty_dimension=5)
        assert {name: value.shape for name, value in feeds.items()} == shapes
        assert {name: value.dtype.name for name, value in feeds.items()} == types
        assert set(np.unique(feeds["label"])) <= {0, 1}


def test_a_random_feed_repeats_with_its_seed():
    inputs = parsed(ADD).graph.input
    for _ in range(2):
        np.random.seed(0)
        feed = random_feed(inputs)["X"]
        np.random.seed(0)
        np.testing.assert_array_equal(feed, np.random.standard_normal((10, 10)).astype(np.float32))


def test_a_random_feed_of_words_is_refused():
    model = parsed("g (string[N] words) => (string[N] Y) { Y = Identity(words) }")
    with pytest.raises(DataError, match="'words' of type string"):
        random_feed(model.graph.input)
