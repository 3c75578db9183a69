"""Bundles: their graphs train as ortpipe does, and their folder alone is enough."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx.parser
import onnx_ir
import pytest

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    Artifact,
    Data,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    train,
)
from ortpipe.bundle import read_state, training_graphs, write_bundle
from ortpipe.errors import TrainError
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.lora import Lora
from ortpipe.stages.train.config import ClipConfig
from ortpipe.stages.train.schedules import SCHEDULES

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "ortpipe" / "bundle" / "schema.json").read_text())
rng = np.random.default_rng(0)
X, CLASSES = rng.normal(size=(24, 3)).astype(np.float32), rng.integers(0, 4, 24)
NETWORK = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,3] X) => (float[N,4] p) {
  a = MatMul(X, w) h = Add(a, b) n = BatchNormalization<training_mode = MODE>(h, scale, bias, mean, variance)
  r = Relu(n) z = MatMul(r, v) p = Softmax(z) }"""
ARRAYS = {"w": (3, 16), "b": (16,), "v": (16, 4), "scale": (16,), "bias": (16,), "mean": (16,), "variance": (16,)}


def gradient(config: DeriveConfig | None = None, *, moving: bool = False) -> Artifact:
    text = NETWORK.replace("training_mode = MODE", "training_mode = 1" if moving else "epsilon = 0.00001")
    text = text.replace("n = Batch", "n, mean1, variance1 = Batch") if moving else text
    model = onnx.parser.parse_model(text)
    arrays = {name: np.abs(np.random.default_rng(1).normal(size=shape)) for name, shape in ARRAYS.items()}
    held = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    model.graph.initializer.extend(held)
    forward = convert(model, data=Data(Rows({"X": X}, CLASSES)))
    return derive(add_loss(forward, AddLossConfig(LOSSES["cross_entropy"]())), config)


def trained(bundle: dict[str, np.ndarray], graphs: object, steps: int) -> dict[str, np.ndarray]:
    """Return the state after some steps of the epoch graph on batches of six rows."""
    batches = {"X": X.reshape(4, 6, 3)[:steps], "label": CLASSES.reshape(4, 6, 1)[:steps]}
    rows = dict(zip(graphs.rows, (batches["X"], batches["label"]), strict=True))  # type: ignore[attr-defined]
    scalars = {n: np.resize(a[:steps], steps) if len(a) == 1 else a[:steps] for n, a in graphs.scalars.items()}  # type: ignore[attr-defined]
    results = Session(graphs.models["train"]).run({**bundle, **rows, **scalars})  # type: ignore[attr-defined]
    return dict(zip([*bundle, "losses"], results, strict=True))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "lbfgs"])
def test_the_epoch_trains_as_ortpipe_does(name: str) -> None:
    artifact = gradient()
    config = TrainConfig(OPTIMIZERS[name](), epochs=1, batch_size=6, shuffle=False)
    expected = train(artifact, config, data=Data(Rows({"X": X}, CLASSES)))
    graphs = training_graphs(artifact, config)
    state = trained(dict(graphs.state), graphs, 4)
    np.testing.assert_allclose(state["losses"], expected.tensors["losses/step"], rtol=1e-5)
    flat = np.concatenate([expected.tensors[f"parameter/{name}"].ravel() for name in graphs.parameters])
    np.testing.assert_allclose(state[graphs.weights[0]], flat, rtol=1e-4, atol=1e-6)


def test_statistics_clipping_averages_and_schedules_are_those_of_the_config() -> None:
    artifact = gradient(moving=True)
    schedule = SCHEDULES["cosine"]()
    settings = {"clip": ClipConfig(norm=0.1), "average": 0.5, "warmup": 2, "schedule": schedule, "shuffle": False}
    config = TrainConfig(OPTIMIZERS["sgd"](lr=0.5), epochs=1, batch_size=6, **settings)
    expected = train(artifact, config, data=Data(Rows({"X": X}, CLASSES)))
    graphs = training_graphs(artifact, config, steps=4)
    state = trained(dict(graphs.state), graphs, 4)
    np.testing.assert_allclose(state["losses"], expected.tensors["losses/step"], rtol=1e-5)
    weights = {name: state[name] for name in graphs.weights}
    assert len(weights) == 3  # the averages of the parameters, and two statistics
    predicted = Session(graphs.models["predict"]).run({**weights, "X": X}, ["p"])[0]
    np.testing.assert_allclose(predicted, Session(expected.model).run({"X": X}, ["p"])[0], rtol=1e-4, atol=1e-6)
    rows = dict(zip(graphs.rows, (X, CLASSES[:, None]), strict=True))
    [loss] = Session(graphs.models["validate"]).run({**weights, **rows})
    np.testing.assert_allclose(loss, -np.log(predicted[np.arange(24), CLASSES]).mean(), rtol=1e-4)


def test_only_chosen_parameters_and_adapters_train() -> None:
    graphs = training_graphs(gradient(DeriveConfig(parameters=("v",))), TrainConfig())
    assert graphs.parameters == {"v": (16, 4)}
    lora = training_graphs(gradient(DeriveConfig(adapters=Lora(rank=1, targets=("w",)))), TrainConfig())
    assert sum(int(np.prod(shape)) for shape in lora.parameters.values()) == 3 + 16


def test_a_folder_is_described_by_the_schema_and_used_by_its_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundle"
    description = write_bundle(gradient(), TrainConfig(OPTIMIZERS["adam"](lr=0.01)), folder, steps=5)
    written = json.loads((folder / "bundle.json").read_text())
    assert written == json.loads(json.dumps(description, default=str))
    jsonschema.validate(written, SCHEMA)
    assert (written["predictions"][0]["classes"], written["onnxruntime"]) == ([0, 1, 2, 3], ">=1.19")
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    monkeypatch.chdir(folder)
    namespace = dict[str, Any]()
    exec(code, namespace)
    batches, labels = X.reshape(4, 6, 3), CLASSES.reshape(4, 6, 1)
    losses = [*namespace["fit"](batches[:1], labels[:1]), *namespace["fit"](batches[1:], labels[1:])]
    graphs = training_graphs(gradient(), TrainConfig(OPTIMIZERS["adam"](lr=0.01)), steps=5)
    expected = trained(dict(graphs.state), graphs, 4)
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-6)
    np.testing.assert_allclose(namespace["state"]["parameters"], expected["parameters"], rtol=1e-6)


def test_float16_halves_state_and_constants_and_tells_what_the_loss_becomes(tmp_path: Path) -> None:
    artifact, config = gradient(DeriveConfig(parameters=("v",))), TrainConfig(OPTIMIZERS["sgd"]())
    trained = train(gradient(), config, data=Data(Rows({"X": X}, CLASSES)))
    description = write_bundle(artifact, config, tmp_path / "half", trained=trained, float16=True)
    jsonschema.validate(json.loads((tmp_path / "half" / "bundle.json").read_text()), SCHEMA)
    exact = write_bundle(artifact, config, tmp_path / "exact", trained=trained)
    storage = description["storage"]
    assert storage["loss"] != storage["float32_loss"]
    assert storage["loss"] == pytest.approx(storage["float32_loss"], rel=1e-3)
    one = read_state(tmp_path / "half", description)["parameters"]
    other = read_state(tmp_path / "exact", exact)["parameters"]
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, other.astype(np.float16))
    np.testing.assert_array_equal(other.reshape(16, 4), trained.initializers["v"])
    frozen = {t.name for t in onnx.load(tmp_path / "half" / "predict.onnx").graph.initializer if t.data_type == 10}
    assert not frozen  # all have fewer than 64 numbers
    large = gradient()
    model = large.ir_model()
    model.graph.initializers["v"].const_value = onnx_ir.tensor(np.full((16, 4), 1e5, np.float32), name="v")
    with pytest.raises(TrainError, match=r"at most 65,504(.|\n)*got: 1e\+05 in parameters(.|\n)*--float16"):
        write_bundle(Artifact(model, large.facts), config, tmp_path / "other", float16=True)
    assert not (tmp_path / "other").exists()


def test_batches_have_the_rows_of_an_update(tmp_path: Path) -> None:
    config = TrainConfig(batch_size=8, accumulate=4)
    assert write_bundle(gradient(), config, tmp_path / "bundle")["batch_size"] == 32


def test_numbers_of_an_optimizer_end_where_they_are_constant() -> None:
    lengths = {n: len(a) for n, a in training_graphs(gradient(), TrainConfig(OPTIMIZERS["sgd"]())).scalars.items()}
    assert lengths == {"rate": 1}
    adam = training_graphs(gradient(), TrainConfig(OPTIMIZERS["adam"]())).scalars["rate"]
    assert 10_000 < len(adam) < 20_000
    np.testing.assert_allclose(adam[-1], -0.001, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "most", "message"),
    [
        ({"optimizer": OPTIMIZERS["lbfgs"]()}, None, "must work on batches"),
        ({}, 1000, r"at most 1,000 bytes(.|\n)*got: \d(.|\n)*--max-size"),
    ],
)
def test_a_bundle_that_cannot_be_is_rejected_before_anything_is_written(
    settings: dict[str, object], most: int | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainError, match=message):
        write_bundle(gradient(), TrainConfig(**settings), tmp_path / "bundle", most_bytes=most)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(TrainError, match="which is no bundle"):
        write_bundle(gradient(), TrainConfig(), tmp_path / "mine")
