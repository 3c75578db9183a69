"""ortpipe restore: the original file with trained weights predicts what the trained artifact predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import onnx
import onnxruntime
import pytest
from command import ROOT
from safetensors.numpy import load_file, save_file

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    Artifact,
    ConvertConfig,
    Data,
    DeriveConfig,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    load_artifact,
    save_artifact,
    train,
)
from ortpipe.app.words import SETTINGS
from ortpipe.errors import ConfigError, ModelError
from ortpipe.graph.core.edit import set_initializers
from ortpipe.stages.convert.sources.onnx_file import OnnxFile

HEAD = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]> '
MODELS = {
    "regressor": """g (float[N,2] X) => (float[N,1] y) {
        y = ai.onnx.ml.LinearRegressor<coefficients = [1.0, 0.0], intercepts = [0.5]>(X) }""",
    "classifier of two": """g (float[N,2] X) => (int64[N] label, float[N,2] p) {
        label, p = ai.onnx.ml.LinearClassifier<coefficients = [-1.0, -0.0, 1.0, 0.0], intercepts = [0.0, 0.0],
            classlabels_ints = [0, 1], post_transform = "LOGISTIC">(X) }""",
    "classifier of three": """g (float[N,2] X) => (int64[N] label, float[N,3] p) {
        label, p = ai.onnx.ml.LinearClassifier<coefficients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            intercepts = [0.0, 1.0, 2.0], classlabels_ints = [0, 1, 2], post_transform = "SOFTMAX">(X) }""",
    "batches": """g (float[N,2] X) => (float[N,1] y)
        <float[2,2] w = {1, 2, 3, 4}, float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] mean = {0, 0},
         float[2] var = {1, 1}, float[2,1] v = {1, -1}>
        { h = MatMul(X, w) n, m1, v1 = BatchNormalization<training_mode = 1>(h, s, b, mean, var) y = MatMul(n, v) }""",
}


def _rows(label: np.ndarray) -> Data:
    x = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
    return Data(train=Rows({"X": x}, label))


def _trained(source: Artifact, data: Data, loss: str) -> Artifact:
    ready = derive(add_loss(source, AddLossConfig(loss=LOSSES[loss]())), DeriveConfig())
    return train(ready, TrainConfig(epochs=2, batch_size=8, optimizer=OPTIMIZERS["sgd"](lr=0.1)), data=data)


@pytest.mark.parametrize("name", MODELS)
def test_the_restored_file_predicts_what_the_trained_model_does(
    name: str, tmp_path: Path, call: Callable[..., str]
) -> None:
    file = tmp_path / "file.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + MODELS[name]), file)
    classes = {"classifier of two": 2, "classifier of three": 3}.get(name)
    label = np.arange(16) % classes if classes else np.linspace(0, 1, 16, dtype=np.float32)[:, None]
    data = _rows(label)
    source = convert(str(file), data=data)
    trained = _trained(source, data, {2: "log", 3: "cross_entropy", None: "l2"}[classes])
    save_artifact(source, tmp_path / "source")
    save_artifact(trained, tmp_path / "trained")

    call("restore", "source", "--into", "file.onnx", "--output", "same.onnx")
    assert onnx.load("same.onnx") == onnx.load(file)
    said = call("restore", "trained", "--into", "file.onnx")
    restored = onnx.load("file.trained.onnx")
    assert said.splitlines()[-1] == "file     file.trained.onnx"
    assert [n.op_type for n in restored.graph.node] == [n.op_type for n in onnx.load(file).graph.node]
    if name == "batches":  # which predicts in training mode: the weights themselves are compared
        arrays = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in restored.graph.initializer}
        assert arrays == {t: array.tolist() for t, array in trained.initializers.items()}
        assert arrays["mean"] != [0, 0] != arrays["b"]
        return
    feed = {"X": data.train.inputs["X"]}
    session = onnxruntime.InferenceSession("file.trained.onnx")
    ours = onnxruntime.InferenceSession(trained.model.SerializeToString())
    output = trained.facts.prediction
    np.testing.assert_allclose(session.run([output], feed)[0], ours.run([output], feed)[0], rtol=1e-5, atol=1e-6)


def test_what_a_quantized_file_rounds_is_said(tmp_path: Path, call: Callable[..., str]) -> None:
    text = """g (float[N,2] X) => (float[N,2] y)
        <int8[2,2] q = {1, -2, 3, 4}, float s = {0.5}, int8 z = {0}, int8[2,2] r = {1, 2, 3, 4}>
        { w = DequantizeLinear(q, s, z) v = DequantizeLinear(r, s, z) h = MatMul(X, w) y = MatMul(h, v) }"""
    file = tmp_path / "file.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), file)
    source = convert(str(file))
    save_artifact(source, tmp_path / "source")
    call("restore", "source", "--into", "file.onnx", "--output", "same.onnx")
    assert onnx.load("same.onnx") == onnx.load(file)
    model = source.ir_model()
    shifts = {"q": np.float32([[0.75, 0], [0, 0]]), "r": np.float32(0.125)}
    set_initializers(model, {name: source.initializers[name] + shift for name, shift in shifts.items()})
    save_artifact(Artifact(model, source.facts, source.tensors), tmp_path / "moved")
    said = call("restore", "moved", "--into", "file.onnx")
    assert "written  1 of 2 weights: q\n" in said
    assert "rounded  q by at most 0.25 to the file's type\n" in said
    assert "rounded  r by at most 0.125 to the file's type: unchanged in the file, for training" in said
    arrays = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in onnx.load("file.trained.onnx").graph.initializer}
    assert (arrays["q"], arrays["r"]) == ([[2, -2], [3, 4]], [[1, 2], [3, 4]])  # 2.5 to the even one


def test_copies_of_a_merged_weight_go_back_while_they_are_equal(tmp_path: Path, call: Callable[..., str]) -> None:
    text = """g (float[N,2] X) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}>
        { [a] h = MatMul(X, w) [b] y = MatMul(h, w) }"""
    file = tmp_path / "file.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), file)
    data = _rows(np.zeros((16, 2), np.float32))
    source = convert(None, ConvertConfig(source=OnnxFile(path=str(file)), tie=False), data=data)
    assert source.facts.lineage[0]["origins"] == {"w/a": {"initializer": "w"}, "w/b": {"initializer": "w"}}
    save_artifact(source, tmp_path / "source")
    save_artifact(_trained(source, data, "l2"), tmp_path / "trained")
    call("restore", "source", "--into", "file.onnx", "--in-place")
    with pytest.raises(ModelError, match="w/a differ after training") as error:
        call("restore", "trained", "--into", "file.onnx")
    assert "(convert.tie=null)" in str(error.value.said_in(SETTINGS))


def test_of_a_bare_file_weights_go_back_by_their_names(
    tmp_path: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "digits.onnx"
    file.write_bytes((ROOT / "conf" / "models" / "digits.onnx").read_bytes())
    call("run-stage", "convert", "--input", "digits.onnx", "--output", "forward.onnx")
    said = call("restore", "forward.onnx", "--into", "digits.onnx", "--in-place")
    assert said.splitlines()[-1] == "file     digits.onnx: unchanged"
    with pytest.raises(ConfigError, match="must not exist"):
        call("restore", "forward.onnx", "--into", "digits.onnx", "--output", "forward.onnx")
    with pytest.raises(ConfigError, match="must record which of its weights were trained"):
        call("restore", "digits.onnx", "--into", "digits.onnx")
    with pytest.raises(ModelError, match="must exist"):
        call("restore", "forward.onnx", "--into", "nowhere.onnx")


def test_weights_of_an_estimator_have_no_place_in_another_file(linear: Path, call: Callable[..., str]) -> None:
    into = str(ROOT / "conf" / "models" / "digits.onnx")
    with pytest.raises(ModelError, match="has none for coefficient, intercept"):
        call("restore", str(linear), "--into", into, "--output", "new.onnx")
    assert load_artifact(linear / "stages" / "5_train").facts.parameters == ("coefficient", "intercept")
    assert not Path("new.onnx").exists()


def test_what_a_run_fitted_becomes_a_file_that_predicts_as_its_model(linear: Path, call: Callable[..., str]) -> None:
    import skops.io

    said = call("restore", str(linear), "--into", "trained.skops")
    assert said.splitlines()[0] == "written  2 of 2 weights: coefficient, intercept"
    assert said.splitlines()[1].startswith("verified on 256 rows of the run: largest difference ")
    [estimator] = [skops.io.load(file) for file in Path().glob("*.skops")]
    x = np.random.default_rng(0).normal(size=(5, estimator.n_features_in_)).astype(np.float32)
    [expected] = onnxruntime.InferenceSession(linear / "model.onnx").run(["prediction"], {"X": x})
    np.testing.assert_allclose(estimator.predict(x).reshape(expected.shape), expected, rtol=1e-4)
    joblib.dump(estimator, "fitted.joblib")
    with pytest.raises(ConfigError, match="--trust"):
        call("restore", str(linear), "--into", "fitted.joblib")
    said = call("restore", str(linear), "--into", "fitted.joblib", "--trust", "--stage", "convert")
    assert said.splitlines()[-1] == "file     fitted.trained.joblib"
    before = joblib.load("fitted.trained.joblib")
    np.testing.assert_array_equal(
        before[-1].coef_.ravel(), load_artifact(linear / "stages" / "1_convert").initializers["coefficient"].ravel()
    )


def test_an_empty_name_is_rejected(linear: Path, call: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="--into must name a file"):
        call("restore", str(linear), "--into", "")


def test_a_state_dict_is_written_beside_its_file_or_anew(tmp_path: Path, call: Callable[..., str]) -> None:
    text = """g (float[N,2] X) => (float[N,2] y) <float[2,2] weight = {1, 2, 3, 4}, float[2] bias = {0, 1}>
        { y = Gemm<transB = 1>(X, weight, bias) }"""
    source = convert(onnx.parser.parse_model(HEAD + text))
    arrays = {name: source.initializers[name] for name in ("weight", "bias")}
    save_file({**arrays, "steps": np.int64([3])}, "fc.safetensors")
    model = source.ir_model()
    set_initializers(model, {name: array + 1 for name, array in arrays.items()})
    save_artifact(Artifact(model, source.facts, source.tensors), tmp_path / "trained")
    assert call("restore", "trained", "--into", "fc.safetensors").splitlines()[-1] == "file     fc.trained.safetensors"
    call("restore", "trained", "--into", "new.safetensors")
    for file in ("fc.trained.safetensors", "new.safetensors"):
        stored = load_file(file)
        assert {name: stored[name].tolist() for name in arrays} == {n: (a + 1).tolist() for n, a in arrays.items()}
    assert load_file("fc.trained.safetensors")["steps"].tolist() == [3]
    with pytest.raises(ModelError, match="must exist"):
        call("restore", "trained", "--into", "new.pt")
