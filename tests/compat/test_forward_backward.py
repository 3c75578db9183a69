from __future__ import annotations

import logging
import pickle

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression

from ortpipe.compat import OrtGradientForwardBackward
from ortpipe.errors import ConfigError, DeriveError, ModelError, TrainError

HEAD = '<ir_version: 10, opset_import: ["": 21]> '
# weights out of alphabetical order, more outputs than inputs, an output that is another one's input, one of integers
MANY = """g (double[N,3] X) => (double[N,2] h, double[N,1] y, double s, int64[N] best)
 <double[3,2] w = {0.5, -1, 0.3, 0.8, -0.2, 0.1}, double[2] b = {0.1, -0.2}, double[2,1] a = {1.5, -0.7},
  double half = {0.5}>
 { z = Gemm(X, w, b) h = Tanh(z) v = MatMul(h, a) y = Mul(v, half) q = Mul(y, y) s = ReduceSum<keepdims=0>(q)
   best = ArgMax<axis=1, keepdims=0>(h) }"""
DROPOUT = """g (double[N,50] X) => (double[N,50] y) <double[50] w = {ONES}>
 { ratio = Constant<value_float=0.5>() on = Constant<value=bool {1}>()
   z = Mul(X, w) y = Dropout(z, ratio, on) }""".replace("ONES", ", ".join(["1"] * 50))
RNG = np.random.default_rng(0)


def parsed(text):
    return onnx.parser.parse_model(HEAD + text)


def weights_of(model, names):
    values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return [values[name] for name in names]


def differences(model, names, inputs, seeds, step=1e-6):
    """Return central differences of Σ output · seed in every input and weight, by onnxruntime alone."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    for tensor in model.graph.initializer:
        own.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    session = ort.InferenceSession(own.SerializeToString(), providers=["CPUExecutionProvider"])

    def value(arrays):
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        return sum((y * g).sum() for y, g in zip(outputs, seeds, strict=True) if g is not None)

    found = []
    for k, array in enumerate(inputs):
        gradient = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            up, down = ([a.copy() for a in inputs] for _ in range(2))
            up[k][place] += step
            down[k][place] -= step
            gradient[place] = (value(up) - value(down)) / (2 * step)
        found.append(gradient)
    return found


def many(rows, order=("w", "b", "a")):
    model = parsed(MANY)
    run = OrtGradientForwardBackward(model, list(order)).new_instance()
    inputs = [RNG.normal(size=(rows, 3)), *weights_of(model, order)]
    seeds = [RNG.normal(size=(rows, 2)), RNG.normal(size=(rows, 1)), np.array(0.7), None]
    return model, run, inputs, seeds


@pytest.mark.parametrize("order", [("w", "b", "a"), ("a", "b", "w"), ("b", "w", "a")])
def test_gradients_of_every_output_are_central_differences_in_the_order_of_the_weights(order):
    model, run, inputs, seeds = many(4, order)
    outputs = run.forward(inputs, training=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, expected in zip(outputs, session.run(None, {"X": inputs[0]}), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    for got, expected in zip(run.backward(seeds), differences(model, ["X", *order], inputs, seeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-8)


def test_several_forwards_may_come_before_their_backwards():
    model, run, first, first_seeds = many(4)
    second, second_seeds = [RNG.normal(size=a.shape) for a in many(7)[2]], many(7)[3]
    run.forward(first, training=True)
    run.forward(second, training=True)
    for inputs, seeds in ((second, second_seeds), (first, first_seeds)):  # the last one first
        expected = differences(model, ["X", "w", "b", "a"], inputs, seeds)
        for got, wanted in zip(run.backward(seeds), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)
    with pytest.raises(TrainError, match="training=True"):
        run.backward(first_seeds)


def test_instances_do_not_know_each_other():
    model, _, inputs, seeds = many(4)
    owner = OrtGradientForwardBackward(model, ["w", "b", "a"])
    one, two = owner.new_instance(), owner.new_instance()
    one.forward(inputs, training=True)
    two.forward([2 * a for a in inputs], training=True)
    expected = differences(model, ["X", "w", "b", "a"], inputs, seeds)
    for got, wanted in zip(one.backward(seeds), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)
    with pytest.raises(TrainError, match="saved_tensors needs"):
        _ = owner.new_instance().saved_tensors
    assert two.saved_tensors[0][0, 0] == 2 * inputs[0][0, 0]


def test_arrays_handed_out_never_change_and_changes_to_them_reach_nothing():
    model, run, inputs, seeds = many(4)
    expected = differences(model, ["X", "w", "b", "a"], inputs, seeds)
    outputs = run.forward(inputs, training=True)
    before = [y.copy() for y in outputs]
    for _ in range(3):
        run.forward([3 * a for a in inputs], training=True)
        run.backward(seeds)
    for y, old in zip(outputs, before, strict=True):
        np.testing.assert_array_equal(y, old)
        y[...] = 0
    for array in inputs:
        array[...] = 0
    for got, wanted in zip(run.backward(seeds), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


def test_missing_gradients_count_as_zeros_and_flat_ones_are_shaped():
    _, run, inputs, seeds = many(4)
    run.forward(inputs, training=True)
    run.forward(inputs, training=True)
    got = run.backward([None, seeds[1].reshape(1, -1), None, None])
    expected = run.backward([np.zeros((4, 2)), seeds[1], np.zeros(()), None])
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_dropout_drops_the_same_in_both_passes_and_nothing_without_training():
    run = OrtGradientForwardBackward(parsed(DROPOUT), ["w"]).new_instance()
    X, w = np.ones((20, 50)), np.ones(50)
    [y], [other] = (run.forward([X, w], training=True) for _ in range(2))
    assert (y != other).any()
    for output in (other, y):
        dX, dw = run.backward([np.ones((20, 50))])
        np.testing.assert_array_equal(dX, output)
        np.testing.assert_allclose(dw, output.sum(axis=0))
    np.testing.assert_array_equal(run.forward([X, w])[0], X)


def test_batches_normalize_themselves_in_training_only():
    text = """g (float[N,2] X) => (float[N,2] y)
     <float[2] s = {2, 3}, float[2] b = {1, -1}, float[2] m = {0.5, 0.5}, float[2] v = {4, 9}>
     { y, mean, var = BatchNormalization<training_mode=1, epsilon=0.0>(X, s, b, m, v) }"""
    owner = OrtGradientForwardBackward(parsed(text))
    assert owner.weights_to_train == ["s", "b"]
    run, X = owner.new_instance(), RNG.normal(size=(30, 2)).astype(np.float32)
    s, b = (owner.get_initializer(name) for name in "sb")
    normal = (X - X.mean(axis=0)) / X.std(axis=0)
    np.testing.assert_allclose(run.forward([X, s, b], training=True)[0], normal * s + b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run.forward([X, s, b])[0], (X - 0.5) / [2, 3] * s + b, rtol=1e-4, atol=1e-5)
    g = RNG.normal(size=(30, 2)).astype(np.float32)
    dX, ds, db = run.backward([g])
    np.testing.assert_allclose(ds, (g * normal).sum(axis=0), rtol=1e-3)
    np.testing.assert_allclose(db, g.sum(axis=0), rtol=1e-3)
    expected = s / X.std(axis=0) * (g - g.mean(axis=0) - normal * (g * normal).mean(axis=0))
    np.testing.assert_allclose(dX, expected, rtol=1e-3, atol=1e-4)


def test_a_linear_layer_and_a_scalar_alone_have_gradients():
    text = "g (double[N,2] X) => (double[N,2] y) <double[2] b = {1, 2}> { y = Add(X, b) }"
    run, g = OrtGradientForwardBackward(parsed(text), ["b"]).new_instance(), RNG.normal(size=(5, 2))
    run.forward([np.ones((5, 2)), np.ones(2)], training=True)
    dX, db = run.backward([g])
    np.testing.assert_array_equal(dX, g)
    np.testing.assert_allclose(db, g.sum(axis=0))
    text = "g (double[N,2] X) => (double s) <double[2] b = {1, 2}> { y = Mul(X, b) s = ReduceSum<keepdims=0>(y) }"
    run = OrtGradientForwardBackward(parsed(text)).new_instance()
    assert run.forward([np.ones((5, 2)), np.ones(2)], training=True)[0] == 10
    np.testing.assert_array_equal(run.backward([np.array(3.0)])[1], [15, 15])


def test_an_input_that_no_output_depends_on_has_no_gradient():
    text = "g (double[N,2] X, double[N,1] Z, double[N,2] R) => (double[N,2] y) <double[2] b = {1, 2}>"
    whole = " { y0 = Mul(X, b) r = Cast<to=7>(R) rounded = Cast<to=11>(r) y = Add(y0, rounded) }"
    run = OrtGradientForwardBackward(parsed(text + whole), ["b"]).new_instance()
    run.forward([np.ones((5, 2)), np.ones((5, 1)), np.ones((5, 2)), np.ones(2)], training=True)
    assert [g is None for g in run.backward([np.ones((5, 2))])] == [False, True, True, False]


def test_integers_have_no_gradient():
    text = "g (int64[N] i, double[N,2] X) => (double[N,2] y) <double[3,2] w = {1, 2, 3, 4, 5, 6}>"
    run = OrtGradientForwardBackward(parsed(text + " { e = Gather(w, i) y = Mul(e, X) }")).new_instance()
    i, X, w = np.array([2, 0, 2]), np.ones((3, 2)), np.arange(6.0).reshape(3, 2)
    run.forward([i, X, w], training=True)
    di, dX, dw = run.backward([np.ones((3, 2))])
    assert di is None
    np.testing.assert_array_equal(dX, w[i])
    np.testing.assert_array_equal(dw, [[1, 1], [0, 0], [2, 2]])


@pytest.mark.parametrize("make", [np.asarray, ort.OrtValue.ortvalue_from_numpy, lambda a: np.asfortranarray(a)])
@pytest.mark.parametrize(
    ("estimator", "load"), [(LinearRegression(), load_diabetes), (LogisticRegression(max_iter=1000), load_iris)]
)
def test_scikit_learn_models_predict_and_have_gradients(estimator, load, make):
    from skl2onnx import to_onnx

    X, y = load(return_X_y=True)
    fitted = estimator.fit(X, y)
    classifier = isinstance(estimator, LogisticRegression)
    options = {"options": {"zipmap": False}} if classifier else {}
    onx = to_onnx(
        fitted, X.astype(np.float32), target_opset=17, black_op={"LinearRegressor", "LinearClassifier"}, **options
    )
    outputs = ["probabilities"] if classifier else None
    owner = OrtGradientForwardBackward(onx, output_names=outputs)
    run, rows = owner.new_instance(), X[:9].astype(np.float32)
    inputs = [make(a) for a in (rows, *(owner.get_initializer(name) for name in owner.weights_to_train))]
    expected = fitted.predict_proba(X[:9]) if classifier else fitted.predict(X[:9]).reshape(-1, 1)
    for training in (True, False):
        [got] = run.forward(inputs, training=training)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-3, atol=1e-4)
    assert [g.shape for g in run.backward([make(np.ones(expected.shape, np.float32))])] == [
        np.shape(a.numpy() if hasattr(a, "numpy") else a) for a in inputs
    ]


def test_it_is_pickled_and_built_again():
    model, _, inputs, seeds = many(4)
    owner = OrtGradientForwardBackward(model, ["w", "b", "a"], class_name="Mine")
    copy = pickle.loads(pickle.dumps(owner))
    assert copy.cls_type_.__name__ == "Mine"
    assert repr(copy) == "OrtGradientForwardBackward(...)"
    results = []
    for run in (owner.new_instance(), copy.new_instance()):
        run.forward(inputs, training=True)
        results.append(run.backward(seeds))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_graphs_are_saved_to_files_or_bytes(tmp_path):
    run = OrtGradientForwardBackward(parsed(MANY)).new_instance()
    saved = run.save_onnx_graph(str(tmp_path), prefix="p_", suffix="_s")
    assert set(saved) == {"_trained_onnx", "_forward", "_backward", "_optimized_pre_grad_model"}
    content = run.save_onnx_graph(bytes)
    for name, path in saved.items():
        assert path == str(tmp_path / f"p_OrtGradientForwardBackwardFunction_s.{name}.onnx")
        assert onnx.load(path) == onnx.load_model_from_string(content[name])
        onnx.checker.check_model(path, full_check=True)
    whole = onnx.load(saved["_trained_onnx"]).graph
    assert [o.name for o in whole.output][-4:] == ["X_grad", "w_grad", "b_grad", "a_grad"]
    with pytest.raises(FileNotFoundError, match="folder"):
        run.save_onnx_graph(str(tmp_path / "none"))


def test_what_is_built_and_run_is_logged(caplog):
    with caplog.at_level(logging.DEBUG, "ortpipe"):
        run = OrtGradientForwardBackward(parsed(MANY), ["w"], enable_logging=True).new_instance()
        run.forward([np.ones((2, 3)), np.ones((3, 2))], training=True)
    assert "[OrtGradientForwardBackward] weights_to_train=['w']" in caplog.text
    assert "[OrtGradientForwardBackwardFunction.forward] 2 tensors" in caplog.text


def test_the_model_stays_and_frozen_weights_keep_their_values():
    model, _, inputs, _ = many(4)
    before = model.SerializeToString()
    run = OrtGradientForwardBackward(model, ["a"]).new_instance()
    h, *_ = run.forward([inputs[0], np.zeros((2, 1))], training=True)
    w, b = weights_of(model, ["w", "b"])
    np.testing.assert_allclose(h, np.tanh(inputs[0] @ w + b))
    assert model.SerializeToString() == before


def test_mistakes_say_what_to_do():
    model, run, inputs, seeds = many(4)
    for wrong in ({"weights_to_train": ["w", "c"]}, {"weights_to_train": ["w", "w"]}, {"output_names": ["z"]}):
        with pytest.raises(ConfigError, match="once"):
            OrtGradientForwardBackward(model, **wrong)
    with pytest.raises(ConfigError, match="device must be"):
        OrtGradientForwardBackward(model, providers=["NONE"])
    with pytest.raises(RuntimeError, match="X, w, b, a"):
        run.forward(inputs[:2])
    with pytest.raises(TrainError, match="None at place 1"):
        run.forward([inputs[0], None, *inputs[2:]])
    with pytest.raises(ModelError):
        run.forward([inputs[0][:, :2], *inputs[1:]])
    run.forward(inputs, training=True)
    with pytest.raises(TrainError, match="output's shape"):
        run.backward([seeds[0][:2], *seeds[1:]])
    text = "g (double[N,2] X) => (double[N,2] y) <double[2] w = {1, 2}> { a = Mul(X, w) y = BitCast<to=11>(a) }"
    with pytest.raises((DeriveError, ModelError)):
        OrtGradientForwardBackward(parsed(text))
    with pytest.raises(RuntimeError, match="Did you mean 'w'"):
        OrtGradientForwardBackward(model).get_initializer("ww")
    assert OrtGradientForwardBackward(model).get_initializer("ww", exc=False) is None
    assert run.device_name("cpu") == "Cpu"


def test_it_is_a_torch_autograd_function():
    """The example of the docstring, with one more graph around it; PyTorch's own gradients are the reference."""
    torch = pytest.importorskip("torch")
    forward_backward = OrtGradientForwardBackward(parsed(MANY), ["w", "b", "a"], output_names=["h", "y"])

    class Graph(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.run = forward_backward.new_instance()
            outputs = ctx.run.forward(inputs, training=True)
            return tuple(torch.from_numpy(y.numpy()) for y in outputs)

        @staticmethod
        def backward(ctx, *gradients):
            return tuple(torch.from_numpy(g.numpy()) for g in ctx.run.backward(gradients, retain=True))

    def plain(X, w, b, a):
        h = torch.tanh(X @ w + b)
        return h, h @ a * 0.5

    results = []
    for function in (Graph.apply, plain):
        tensors = [torch.tensor(a, requires_grad=True) for a in (np.eye(3), *weights_of(parsed(MANY), "wba"))]
        X, *parameters = tensors
        first, second = function(X, *parameters), function(2 * X + 1, *parameters)
        (first[0].sin().sum() + (first[1] * second[1]).sum() + second[0].prod()).backward()
        results.append([t.grad.numpy() for t in tensors])
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(Graph.apply, tensors)


def test_the_class_has_the_attributes_that_the_originals_document():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
      g (float[N,2] X) => (float[N,1] y) <float[2,1] w = {1, 2}, float[1,1] b = {3}> {
        p = MatMul(X, w) y = Add(p, b) }""")
    with pytest.warns(UserWarning, match="ignores run_options, debug"):
        kind = OrtGradientForwardBackward(model, run_options="kept", debug=True).cls_type_
    assert (kind._input_names, kind._output_names, kind._weights_to_train) == (["X"], ["y"], ["w", "b"])
    assert kind._onx_inp == kind._grad_input_names == ["X", "w", "b"]
    assert kind._onx_out == kind._bw_fetches_names == ["X_grad", "w_grad", "b_grad"]
    assert [o.name for o in kind._trained_onnx.graph.output] == ["y", "X_grad", "w_grad", "b_grad"]
    assert [i.name for i in kind._optimized_pre_grad_model.graph.input] == ["X", "w", "b"]
    assert [i.name for i in kind._sess_eval.get_inputs()] == ["X", "w", "b"]
    assert (kind._debug, kind._run_options) == (True, "kept")


def test_caches_are_taken_and_weights_may_lack_leading_dimensions_of_one():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
      g (float[N,2] X) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[1,3] b = {1, 2, 3}> {
        p = MatMul(X, w) y = Add(p, b) }""")
    run = OrtGradientForwardBackward(model).new_instance()
    X, w, b = np.ones((4, 2), np.float32), np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    [y] = run.forward([X, w, b], training=True, forward_outputs_cache=[])
    np.testing.assert_array_equal(y, X @ w + b)
    gradients = run.backward([np.ones_like(y)], backward_outputs_cache=[])
    np.testing.assert_array_equal(gradients[2], [[4, 4, 4]])
    with pytest.raises(ModelError):
        run.forward([X, w, b[:2]])
