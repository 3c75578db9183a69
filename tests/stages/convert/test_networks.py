"""Networks by config: what they predict, by NumPy; how their weights are drawn; their gradients; what labels are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import save_file
from scipy.special import expit, softmax

from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, ConvertError
from ortpipe.graph.modes import to_inference
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.init import WeightsFrom
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive

RNG = np.random.default_rng(0)
X = RNG.normal([1, -2, 30], [1, 2, 5], (24, 3))
LABELS = {
    "regression": X[:, 0] * 50 + 200,
    "targets": np.stack([X[:, 0], X[:, 1] * 9], axis=1),
    "binary": np.where(X[:, 0] > 1, "yes", "no"),
    "multiclass": np.arange(24) % 3 + 5,
    "multilabel": (X[:, :2] > [1, -2]).astype(np.int64),
}
LOSS = {"regression": "l2", "targets": "l2", "binary": "log", "multiclass": "cross_entropy", "multilabel": "log"}


def build(name, label, inputs=X, dtype="float64", **settings):
    data = Data(Rows(inputs, LABELS.get(label, label) if isinstance(label, str) else label))
    return convert(None, ConvertConfig(SOURCES[name](**settings), dtype=dtype), data=data), data


def predict(artifact, data, *outputs):
    model = artifact.ir_model()
    to_inference(model)
    inputs = {n: np.asarray(a, np.float64) for n, a in data.train.inputs.items()}
    return Session(ir.to_proto(model)).run(inputs, list(outputs or [artifact.facts.prediction]))


def standard(x):
    return (x - x.mean(axis=0)) / x.std(axis=0)


def linear(x, p, name):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def layer_norm(x, p, name):
    normal = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    return normal * p[f"{name}.weight"] + p[f"{name}.bias"]


def mlp(x, p, depth, normalize=lambda x, p, name: x):
    for i in range(depth):
        x = np.maximum(normalize(linear(x, p, f"layers.{i}"), p, f"norms.{i}"), 0)
    return linear(x, p, "output")


def resnet(x, p, depth):
    x = linear(x, p, "input")
    for i in range(depth):
        inner = np.maximum(linear(layer_norm(x, p, f"blocks.{i}.norm"), p, f"blocks.{i}.linear1"), 0)
        x = x + linear(inner, p, f"blocks.{i}.linear2")
    return linear(np.maximum(layer_norm(x, p, "norm"), 0), p, "output")


MLPS = {  # settings, and the raw outputs from standardized inputs
    "plain": ({"hidden": [5, 4]}, lambda x, p: mlp(x, p, 2)),
    "layer": ({"hidden": [5], "norm": "layer"}, lambda x, p: mlp(x, p, 1, layer_norm)),
    "batch": ({"hidden": [5], "norm": "batch"}, lambda x, p: mlp(x, p, 1, lambda x, p, name: x / np.sqrt(1 + 1e-5))),
    "residual": ({"hidden": [4, 6, 6], "residual": True, "norm": "layer"}, lambda x, p: resnet(x, p, 2)),
}


@pytest.mark.parametrize("case", MLPS)
def test_an_mlp_predicts_what_its_formula_says_in_the_units_of_the_labels(case):
    settings, raw = MLPS[case]
    artifact, data = build("mlp", "regression", **settings)
    y = LABELS["regression"]
    expected = raw(standard(X), artifact.initializers) * y.std() + y.mean()
    np.testing.assert_allclose(predict(artifact, data)[0], expected, rtol=1e-9)


@pytest.mark.parametrize("label", LABELS)
def test_the_end_is_what_the_labels_are(label):
    artifact, data = build("mlp", label, hidden=[4])
    z, facts = mlp(standard(X), artifact.initializers, 1), artifact.facts
    p = {"binary": lambda: np.hstack([1 - expit(z), expit(z)]), "multiclass": lambda: softmax(z, axis=1)}
    if facts.task == "regression":
        y = LABELS[label].reshape(24, -1)
        expected = z * y.std(axis=0) + y.mean(axis=0)
    else:
        assert facts.task == label
        expected = p.get(label, lambda: expit(z))()
        said = predict(artifact, data, "label")[0]
        wanted = (expected > 0.5) if facts.classes is None else np.array(facts.classes)[expected.argmax(axis=1)]
        np.testing.assert_array_equal(said, wanted)
    np.testing.assert_allclose(predict(artifact, data)[0], expected, rtol=1e-9)


NETWORKS = {
    "mlp": ("mlp", X, {"hidden": [4], "norm": "batch", "activation": "silu"}),
    "residual mlp": ("mlp", X, {"hidden": [3, 4], "norm": "layer", "residual": True, "activation": "tanh"}),
}


@pytest.mark.parametrize("label", ["regression", "binary", "multiclass"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_the_slopes_of_the_loss(name, label):
    kind, inputs, settings = NETWORKS[name]
    artifact, data = build(kind, label, inputs, dropout=0.0, **settings)
    loss = add_loss(artifact, AddLossConfig(LOSSES[LOSS[label]]()))
    derive(loss, DeriveConfig(check=True), data=data)


def test_the_seed_decides_the_weights_and_the_law_how_they_are_drawn():
    first, again, other = (build("mlp", "regression", hidden=[64], seed=seed)[0] for seed in (1, 1, 2))
    assert first.digest() == again.digest() != other.digest()
    wide = RNG.normal(size=(8, 300))
    drawn = {law: build("mlp", np.ones(8), wide, hidden=[200], weights=law)[0] for law in ("pytorch", "he", "xavier")}
    weights = {law: artifact.initializers["layers.0.weight"] for law, artifact in drawn.items()}
    for law, bound in {"pytorch": 300**-0.5, "xavier": (6 / 500) ** 0.5}.items():
        assert 0.99 * bound < np.abs(weights[law]).max() <= bound
    assert weights["he"].std() == pytest.approx((2 / 300) ** 0.5, rel=0.01)
    assert 0 < np.abs(drawn["pytorch"].initializers["layers.0.bias"]).max() <= 300**-0.5
    assert not drawn["he"].initializers["layers.0.bias"].any()


def test_dropout_and_batch_normalization_are_those_of_training_until_the_model_is_trained():
    artifact, data = build("mlp", "regression", hidden=[8], dropout=0.5, norm="batch")
    running = [n for n in artifact.initializers if "running" in n]
    assert running == ["norms.0.running_mean", "norms.0.running_var"]
    assert not {*running} & {*artifact.facts.parameters}
    given = feeds(artifact.model, artifact.facts, data.train)
    session = Session(artifact.model)
    assert (session.run(given, ["prediction"])[0] != session.run(given, ["prediction"])[0]).any()


def test_what_labels_are_taken_for_is_said_and_can_be_said_otherwise():
    counts = np.arange(24) % 4
    artifact, _ = build("mlp", counts, hidden=[2])
    assert any("4 whole numbers: a multiclass model" in note for note in artifact.facts.lineage[0]["notes"])
    values, _ = build("mlp", counts, hidden=[2], task="regression")
    assert values.facts.task == "regression"
    assert build("mlp", np.arange(24), hidden=[2])[0].facts.task == "regression"


@pytest.mark.parametrize(
    ("label", "settings", "said"),
    [
        ("binary", {"task": "regression"}, "labels of <U3"),
        ("multiclass", {"task": "binary"}, "3 in labels"),
        (np.zeros(24, np.int64), {}, "1 in labels"),
        ("regression", {"activation": "gelu"}, "gelu in a model of float64"),
        ("targets", {"task": "multiclass"}, r"labels of shape \(24, 2\)"),
    ],
)
def test_labels_that_are_not_of_the_task_and_what_does_not_run_are_refused(label, settings, said):
    with pytest.raises(ConvertError, match=said):
        build("mlp", label, **settings)


def test_residual_blocks_want_a_width_and_a_size_each():
    with pytest.raises(ConfigError, match="first size"):
        SOURCES["mlp"](hidden=[8], residual=True)


def test_weights_come_from_elsewhere_by_the_names_of_a_state_dict(tmp_path):
    theirs = {"0.weight": np.ones((4, 3)), "0.bias": np.zeros(4), "2.weight": np.ones((1, 4)), "2.bias": np.ones(1)}
    save_file(theirs, tmp_path / "w.safetensors")
    names = {"0.*": "layers.0.*", "2.*": "output.*"}
    settings = {"path": str(tmp_path / "w.safetensors"), "map": names}
    data = Data(Rows(X, LABELS["regression"]))
    config = ConvertConfig(SOURCES["mlp"](hidden=[4]), dtype="float64", init=WeightsFrom(**settings))
    artifact = convert(None, config, data=data)
    assert (artifact.initializers["layers.0.weight"] == 1).all()
    assert not [name for name in artifact.tensors if name.startswith("source/")]
