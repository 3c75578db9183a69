import importlib.util
import os
import subprocess
import sys

import numpy as np
import onnx.parser
import pytest

from ortpipe.errors import ConfigError, ModelError
from ortpipe.graph.core import protos
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.providers import check_provider
from ortpipe.runtime.session import Session

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3] X, float[N, 3] Z) => (float[N, 3] sum, float[N, 3] product)
<float[3] w = {1, 2, 3}>
{ scaled = Mul(X, w)  sum = Add(scaled, Z)  product = Mul(scaled, Z) }
"""
CUDA = RuntimeConfig(provider="cuda")
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Z = np.full((2, 3), 2, np.float32)


@pytest.fixture
def model():
    return onnx.parser.parse_model(TEXT)


def test_outputs_come_in_the_models_order_or_in_the_one_asked_for(model):
    own = Session(model)
    assert own.outputs == ("sum", "product")
    total, product = own.run({"X": X, "Z": Z})
    np.testing.assert_array_equal(total, X * [1, 2, 3] + 2)
    np.testing.assert_array_equal(product, X * [1, 2, 3] * 2)
    [again] = own.run({"X": X, "Z": Z}, ["product"])
    np.testing.assert_array_equal(again, product)


def test_running_changes_neither_model_nor_feeds(model):
    before, x = model.SerializeToString(), X.copy()
    Session(model).run({"X": x, "Z": Z})
    assert model.SerializeToString() == before
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_feeds_give_the_same_bytes(model, threads):
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(4096, 3)).astype(np.float32) for name in "XZ"}
    runs = [Session(model, RuntimeConfig(threads)).run(feeds)[0].tobytes() for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_large_model_is_loaded_through_a_file(model, monkeypatch):
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((1000, 3), np.float32), "w"))
    expected = Session(model).run({"X": X[:1], "Z": Z[:1]})[0]
    monkeypatch.setattr(protos, "LARGE_MODEL", 100)
    np.testing.assert_array_equal(Session(model).run({"X": X[:1], "Z": Z[:1]})[0], expected)


def test_a_model_that_the_runtime_refuses_is_a_model_error():
    text = TEXT.replace("Add(scaled, Z)", "Nope(scaled, Z)")
    with pytest.raises(ModelError, match=r"must load the model(.|\n)*Nope"):
        Session(onnx.parser.parse_model(text))


BAD = {
    "a missing input": ({"X": X}, None, "Z"),
    "an unknown input": ({"X": X, "Z": Z, "Q": Z}, None, "Q"),
    "another shape": ({"X": X[:, :2], "Z": Z}, None, "X"),
    "another type": ({"X": X.astype(np.float64), "Z": Z}, None, "double"),
    "an unknown output": ({"X": X, "Z": Z}, ["nope"], "nope"),
    "rows that do not fit": ({"X": X, "Z": Z[[0, 0, 0]]}, None, "Add|Mul"),
}


@pytest.mark.parametrize(("feeds", "outputs", "message"), BAD.values(), ids=BAD)
def test_feeds_that_do_not_fit_are_a_model_error(model, feeds, outputs, message):
    with pytest.raises(ModelError, match=rf"must run the model(.|\n)*({message})"):
        Session(model).run(feeds, outputs)


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_are_at_least_one(threads):
    with pytest.raises(ConfigError, match="threads must be"):
        RuntimeConfig(threads)


def has_gpu():
    try:
        check_provider(RuntimeConfig(provider="cuda"))
    except ModelError:
        return False
    return True


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU that onnxruntime can use")
def test_a_provider_that_is_not_here_is_refused_by_name(model):
    for refused in (lambda: check_provider(RuntimeConfig(provider="cuda")), lambda: Session(model, CUDA)):
        with pytest.raises(ModelError, match=r"cuda: onnxruntime (.|\n)*provider=cpu"):
            refused()


def test_beside_another_engine_onnxruntime_stays_on_the_cpu(model):
    feeds, beside = {"X": X, "Z": Z}, RuntimeConfig(provider="cuda", engine="xla")
    for a, b in zip(Session(model, beside).run(feeds), Session(model).run(feeds), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_gpu_that_jax_does_not_find_is_refused_before_any_work():
    code = """if True:
        from ortpipe.runtime.config import RuntimeConfig
        from ortpipe.runtime.providers import check_provider
        check_provider(RuntimeConfig(provider="cuda", engine="xla"))
    """
    if importlib.util.find_spec("jax") is None:
        pytest.skip("needs jax: pip install 'ortpipe[xla]'")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # also where there is one
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "cuda: jax" in done.stderr
    assert "was started with 'cpu' only" in done.stderr
    assert "provider=cpu" in done.stderr


@pytest.mark.skipif(not has_gpu(), reason="no GPU that onnxruntime can use")
def test_a_gpu_gives_what_the_cpu_gives(model):
    for a, b in zip(Session(model, CUDA).run({"X": X, "Z": Z}), Session(model).run({"X": X, "Z": Z}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("nodes", ["s = Sigmoid(x) y = Mul(x, s)", "t = Transpose<perm=[1, 0]>(x) y = MatMul(x, t)"])
def test_a_fusion_without_a_kernel_of_float64_is_left_out(nodes):
    text = f'<ir_version: 10, opset_import: ["": 18]> g (double[2,2] x) => (double[2,2] y) {{ {nodes} }}'
    model, x = onnx.parser.parse_model(text), np.array([[0.5, -1.0], [2.0, 3.0]])
    [plain] = Session(model, fused=False).run({"x": x})
    np.testing.assert_allclose(Session(model).run({"x": x})[0], plain, rtol=1e-15)


def test_a_convolution_that_only_a_branch_reads_does_not_end_the_process():
    text = """<ir_version: 10, opset_import: ["": 18]>
        g (float[1,4,5,5] x) => (float[1,4,3,3] y) <float[4,4,3,3] w = {W}> {
            total = ReduceSum<keepdims=0>(x) zero = Constant<value_float=0.0>() c = Greater(total, zero) a = Conv(x, w)
            y = If(c) <then_branch = t () => (float[1,4,3,3] r) { r = Relu(a) },
                       else_branch = e () => (float[1,4,3,3] s) { s = Neg(a) }> }"""
    numbers = np.random.default_rng(0).normal(size=144)
    model = onnx.parser.parse_model(text.replace("W", ", ".join(f"{number:.3f}" for number in numbers)))
    x = np.random.default_rng(1).uniform(size=(1, 4, 5, 5)).astype(np.float32)
    session = Session(model)
    [relu], [turned] = session.run({"x": x}), session.run({"x": -x})  # the sign of the input takes the branch
    np.testing.assert_allclose(relu, np.maximum(turned, 0), rtol=1e-5)
    assert (turned < 0).any()


WIDE = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, K] X) => (float[N] mean)
<int64[2] wide = {1, 100000}, int64[1] one = {1}>
{ row = ReduceMean<keepdims = 1>(X, one)  many = Expand(row, wide)  mean = ReduceMax<keepdims = 0>(many, one) }
"""


def test_rows_whose_values_are_large_are_predicted_in_parts():
    own = Session(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(WIDE)))
    feeds = {"X": np.arange(1_600, dtype=np.float32).reshape(800, 2)}
    assert own.rows_at_once(feeds) == 2**27 // 400_000  # 400,000 bytes of `many` per row
    [mean] = own.predict(feeds, ["mean"])
    np.testing.assert_array_equal(mean, feeds["X"].mean(axis=1))
    assert Session(onnx.parser.parse_model(TEXT)).rows_at_once({"X": X, "Z": Z}) == 2**27 // 12


def test_values_that_compare_rows_with_each_other_bound_the_rows_by_their_square():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 4] X) => (float[N] least) <int64[1] one = {1}>
    { turned = Transpose(X)  products = MatMul(X, turned)  least = ReduceMin<keepdims = 0>(products, one) }"""
    own = Session(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    assert own.rows_at_once({"X": np.zeros((9, 4), np.float32)}) == 5792  # 4 · 5792² bytes are just below 2²⁷
