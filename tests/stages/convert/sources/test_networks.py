"""Networks by config: what they predict, by NumPy; how their weights are drawn; their gradients; what labels are."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import onnx_ir as ir
import pytest
from differences import slopes
from numpy.lib.stride_tricks import sliding_window_view
from safetensors.numpy import save_file
from scipy.signal import correlate2d
from scipy.special import expit, softmax

from ortpipe.artifact import Artifact
from ortpipe.data.feeds import feed_inputs, feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.data.sources import SOURCES as DATA
from ortpipe.errors import ConfigError, ConvertError, LossError
from ortpipe.graph.core import query
from ortpipe.graph.core.edit import set_initializers
from ortpipe.graph.forms.modes import to_inference
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.changes.config import WeightsFrom
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.convert.sources.networks.network import read_labels
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


def predict(artifact, data, *outputs, given=None):
    model = artifact.ir_model()
    to_inference(model)
    wanted = list(outputs or [artifact.facts.prediction])
    model.graph.outputs[:] = [query.value(model.graph, name) for name in wanted]
    return Session(ir.to_proto(model)).run(given or feed_inputs(artifact.model, artifact.facts, data.train), wanted)


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


def tabm(x, p, settings):
    """TabM as its paper and the package tabm 0.0.3 have it: embeddings, layers of members, an output layer each."""
    x, name = standard(x)[:, :, None], "num_module.linear"
    if settings["numbers"] == "periodic":
        angle = 2 * np.pi * p["num_module.periodic.weight"] * x
        waves = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
        x = np.maximum(np.einsum("nfi,fio->nfo", waves, p[f"{name}.weight"]) + p[f"{name}.bias"], 0)
    if settings["numbers"] == "piecewise":
        through, weight = np.zeros((len(x), *p[f"{name}.weight"].shape[:2])), p[f"{name}.weight"]
        for f, column in enumerate(x[..., 0].T):
            edges = np.unique(np.quantile(column, np.linspace(0, 1, settings["bins"] + 1)))
            assert len(edges) == through.shape[-1] + 1
            for b, (left, right) in enumerate(itertools.pairwise(edges)):
                first, final = b == 0, b == len(edges) - 2
                share = (column - left) / (right - left)
                through[:, f, b] = np.clip(share, -np.inf if first else 0, np.inf if final else 1)
        line = x * p["num_module.linear0.weight"] + p["num_module.linear0.bias"]
        x = line + np.einsum("nfi,fio->nfo", through, weight)
    x = x.reshape(len(x), 1, -1)
    if settings.get("mini"):
        x = x * p["backbone.affine.weight"]
    for i in range(settings["blocks"]):
        name = f"backbone.blocks.{i}.0"
        if settings.get("mini"):
            x = linear(x, p, name)
        else:
            x = (x * p[f"{name}.r"]) @ p[f"{name}.weight"].T * p[f"{name}.s"] + p[f"{name}.bias"]
        x = np.maximum(x, 0)
    return np.einsum("nki,kio->nko", x, p["output.weight"]) + p["output.bias"]


SMALL = {"members": 3, "width": 4, "blocks": 2, "bins": 4, "size": 3, "frequencies": 2}
TABULAR = {
    "piecewise": {**SMALL, "numbers": "piecewise"},
    "periodic": {**SMALL, "numbers": "periodic", "frequency_scale": 1.0},
    "plain": {**SMALL, "numbers": "plain"},
    "mini": {**SMALL, "numbers": "plain", "mini": True},
}


@pytest.mark.parametrize("label", ["regression", "multiclass"])
@pytest.mark.parametrize("case", TABULAR)
def test_tabm_predicts_the_mean_of_its_members_and_its_loss_is_the_mean_of_theirs(case, label):
    dtype, close = "float64", 1e-9
    artifact, data = build("tabular", label, dropout=0.0, dtype=dtype, **TABULAR[case])
    rng = np.random.default_rng(1)  # other weights than the first: those of the bins begin at 0
    moved = {n: (a + 0.3 * rng.normal(size=a.shape)).astype(dtype) for n, a in artifact.initializers.items()}
    model = artifact.ir_model()
    set_initializers(model, moved)
    artifact = Artifact(model, artifact.facts)
    z, y = tabm(X, moved, TABULAR[case]), LABELS[label]
    assert z.shape[1] == 3
    if label == "regression":
        members = z * y.std() + y.mean()
        losses = (members - y[:, None, None]) ** 2
    else:
        members = softmax(z, axis=-1)
        losses = -np.log(members[np.arange(24), :, y - 5])
    np.testing.assert_allclose(predict(artifact, data)[0], members.mean(axis=1), rtol=close)
    loss = add_loss(artifact, AddLossConfig(LOSSES[LOSS[label]]()))
    [got] = Session(loss.model).run(feeds(loss.model, loss.facts, data.train), ["loss"])
    assert got == pytest.approx(losses.mean(), rel=close)


def test_members_begin_with_one_scale_for_each_column_and_are_alike_but_for_that():
    artifact, _ = build("tabular", "regression", **TABULAR["piecewise"])
    weights = artifact.initializers
    first = weights["backbone.blocks.0.0.r"].reshape(3, 3, 3)  # members, columns, the column's vector
    assert (first == first[:, :, :1]).all()
    assert len(np.unique(first)) == 9
    for name in ("blocks.0.0.s", "blocks.1.0.r", "blocks.1.0.s"):
        assert (weights[f"backbone.{name}"] == 1).all()
    assert (np.ptp(weights["backbone.blocks.1.0.bias"], axis=0) == 0).all()
    assert not weights["num_module.linear.weight"].any()
    plain, _ = build("tabular", "regression", **TABULAR["mini"])
    assert set(plain.initializers["backbone.affine.weight"].ravel()) == {-1.0, 1.0}
    assert {*artifact.facts.parameters} == {*weights}


def test_weights_of_rows_count_in_every_members_loss():
    weight = np.arange(24.0)
    data = Data(Rows(X, LABELS["binary"], sample_weight=weight))
    source = SOURCES["tabular"](**TABULAR["plain"], dropout=0.0)
    artifact = convert(None, ConvertConfig(source, dtype="float64"), data=data)
    [y] = [LABELS["binary"] == "yes"]
    loss = add_loss(artifact, AddLossConfig(LOSSES["log"](), sample_weight=True))
    given = feeds(loss.model, loss.facts, data.train)
    got, members = predict(loss, data, "loss", "members", given=given)
    losses = np.logaddexp(0, np.where(y[:, None, None], -members, members))
    assert got == pytest.approx((losses.mean(axis=(1, 2)) * weight).mean())


IMAGES = RNG.normal(size=(24, 2, 5, 4))
FLAT = IMAGES[:, 0].reshape(24, 20)
STEPS = RNG.normal(size=(24, 3, 2))
TOKENS = RNG.integers(0, 5, (24, 4))
ENCODER = {"width": 4, "heads": 2, "inner": 3, "blocks": 2, "dropout": 0.0}


def cnn(x, p, depth):
    x = (x - x.mean(axis=(0, 2, 3), keepdims=True)) / x.std(axis=(0, 2, 3), keepdims=True)
    for i in range(depth):
        kernels, bias = p[f"convs.{i}.weight"], p[f"convs.{i}.bias"]
        x = np.array(
            [
                [
                    sum(map(partial(correlate2d, mode="same"), row, kernel)) + b
                    for kernel, b in zip(kernels, bias, strict=True)
                ]
                for row in x
            ]
        )
        x = np.maximum(x / np.sqrt(1 + 1e-5), 0)  # running statistics are 0 and 1 at first
        if min(x.shape[2:]) > 1:
            x = sliding_window_view(x, (2, 2), axis=(2, 3))[:, :, ::2, ::2].max(axis=(4, 5))
    return x


def encoder(x, p, counts):
    """The formulas of PyTorch's TransformerEncoderLayer with norm_first, of two heads, and the mean of what counts."""
    x = x + p["positions"]
    for i in range(2):
        name = f"encoder.layers.{i}"
        normal = layer_norm(x, p, f"{name}.norm1")
        both = normal @ p[f"{name}.self_attn.in_proj_weight"].T + p[f"{name}.self_attn.in_proj_bias"]
        q, k, v = (part.reshape(*part.shape[:2], 2, 2).swapaxes(1, 2) for part in np.split(both, 3, axis=-1))
        scores = np.where(counts[:, None, None], q @ k.swapaxes(2, 3) / np.sqrt(2), -np.inf)
        heads = (softmax(scores, axis=-1) @ v).swapaxes(1, 2).reshape(x.shape)
        x = x + linear(heads, p, f"{name}.self_attn.out_proj")
        inner = np.maximum(linear(layer_norm(x, p, f"{name}.norm2"), p, f"{name}.linear1"), 0)
        x = x + linear(inner, p, f"{name}.linear2")
    x = layer_norm(x, p, "encoder.norm") * counts[..., None]
    return linear(x.sum(axis=1) / counts.sum(axis=1, keepdims=True), p, "output")


@pytest.mark.parametrize(
    ("inputs", "settings", "read"),
    [
        (IMAGES, {"channels": [2, 3]}, lambda x: x.reshape(24, -1)),
        (FLAT, {"channels": [2], "image": [1, 5, 4], "join": "mean"}, lambda x: x.mean(axis=(2, 3))),
    ],
)
def test_a_convolutional_network_predicts_what_its_formula_says(inputs, settings, read):
    artifact, data = build("cnn", "multiclass", inputs, "float32", **settings)
    p, images = artifact.initializers, inputs if inputs is IMAGES else IMAGES[:, :1]
    expected = softmax(linear(read(cnn(images, p, len(settings["channels"]))), p, "output"), axis=1)
    np.testing.assert_allclose(predict(artifact, data)[0], expected, rtol=1e-4)


def test_an_encoder_predicts_what_its_formula_says_and_padding_counts_nothing():
    artifact, data = build("transformer", "regression", STEPS, **ENCODER)
    y, p = LABELS["regression"], artifact.initializers
    x = linear(standard(STEPS), p, "input")
    expected = encoder(x, p, np.ones((24, 3))) * y.std() + y.mean()
    np.testing.assert_allclose(predict(artifact, data)[0], expected)
    flat, data = build("transformer", "regression", STEPS.reshape(24, -1), **ENCODER, sequence=STEPS.shape[1:])
    np.testing.assert_allclose(predict(flat, data)[0], expected)
    artifact, data = build("transformer", "multiclass", TOKENS, **ENCODER, tokens=5, padding=0)
    p, counts = artifact.initializers, (TOKENS != 0).astype(float)
    assert (counts.sum(axis=1) > 0).all()
    assert (counts == 0).any()
    expected = softmax(encoder(p["embedding.weight"][TOKENS], p, counts), axis=1)
    np.testing.assert_allclose(predict(artifact, data)[0], expected)


NETWORKS = {
    "cnn": ("cnn", IMAGES, {"channels": [2, 2], "activation": "tanh"}),
    "encoder of steps": ("transformer", STEPS, ENCODER),
    "encoder of tokens": ("transformer", TOKENS, {**ENCODER, "tokens": 5, "padding": 0}),
    **{f"tabm {case}": ("tabular", X, TABULAR[case]) for case in ("piecewise", "mini")},
    "mlp": ("mlp", X, {"hidden": [4], "norm": "batch", "activation": "silu"}),
    "residual mlp": ("mlp", X, {"hidden": [3, 4], "norm": "layer", "residual": True, "activation": "tanh"}),
}


@pytest.mark.parametrize("label", ["regression", "binary", "multiclass"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_the_slopes_of_the_loss(name, label):
    kind, inputs, settings = NETWORKS[name]
    dtype = "float32" if kind == "cnn" else "float64"
    artifact, data = build(kind, label, inputs, dtype, **{"dropout": 0.0, **settings})
    loss = add_loss(artifact, AddLossConfig(LOSSES[LOSS[label]]()))
    ready, few = derive(loss), data.train.head(7)
    names, fed = ready.facts.gradients, feeds(loss.model, loss.facts, few)
    got = dict(zip(names, Session(ready.model).run(fed, list(names.values())), strict=True))
    step, limit = (1e-5, 1e-7) if dtype == "float64" else (1e-3, 5e-3)
    expected = slopes(loss.model, loss.facts.loss, fed, list(names), step)
    largest = max(1, *(np.abs(slope).max() for slope in expected.values()))
    for parameter, slope in expected.items():
        np.testing.assert_allclose(got[parameter], slope, atol=limit * largest, err_msg=parameter)


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
    floats, _ = build("mlp", counts.astype(float), hidden=[2])  # as pandas has whole numbers beside a gap
    said = "labels are 4 whole numbers, written as 1.0: a regression model; convert.source.task says otherwise"
    assert said in floats.facts.lineage[0]["notes"]
    values, _ = build("mlp", counts, hidden=[2], task="regression")
    assert values.facts.task == "regression"
    assert build("mlp", np.arange(24), hidden=[2])[0].facts.task == "regression"
    told, _ = build("mlp", np.arange(24) % 2, hidden=[2], classes=[0, 1, 7])
    assert (told.facts.task, told.facts.classes) == ("multiclass", (0, 1, 7))


UNCLEAR = {
    "Poisson counts": (np.minimum(RNG.poisson(4, 400), 14), "have fewer than 5 training rows each"),
    "a rare class": (np.repeat([0, 1, 2], [200, 200, 3]), "of which 2 have fewer than 5 training rows each"),
    "grades": (np.repeat(np.arange(3, 9), [10, 53, 681, 638, 199, 18]), "rise and fall like those of counts or grades"),
}


@pytest.mark.parametrize(("label", "why"), UNCLEAR.values(), ids=UNCLEAR)
def test_whole_numbers_that_may_be_classes_or_values_stop_until_the_task_is_set(label, why):
    with pytest.raises(ConvertError, match=f"must clearly be classes or values.*(?s:.*){why}") as error:
        read_labels(label, None)
    assert error.value.key == "task"
    assert [read_labels(label, task).task for task in ("regression", "multiclass")] == ["regression", "multiclass"]


@pytest.mark.parametrize(
    "rows", [[99, 3], [178, 182, 177, 183, 181, 182, 181, 179], [3, 4, 5, 2], [70, 30, 80, 9, 60, 7]]
)
def test_whole_numbers_are_classes_if_few_common_and_of_no_order(rows):
    assert read_labels(np.repeat(np.arange(len(rows)), rows), None).classes == tuple(range(len(rows)))


@pytest.mark.parametrize(
    ("label", "settings", "said"),
    [
        ("binary", {"task": "regression"}, "labels of <U3"),
        ("multiclass", {"task": "binary"}, "got: 3 classes"),
        ("binary", {"task": "multilabel"}, "labels of text, such as"),
        (np.zeros(24, np.int64), {}, "only 0 as a label"),
        ("regression", {"activation": "gelu"}, "got: gelu"),
        ("targets", {"task": "multiclass"}, r"labels of shape \(24, 2\)"),
    ],
)
def test_labels_that_are_not_of_the_task_and_what_does_not_run_are_refused(label, settings, said):
    with pytest.raises(ConvertError, match=said):
        build("mlp", label, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("mlp", {"hidden": [8], "residual": True}, "common width"),
        ("transformer", {"heads": 3}, "heads must divide the width"),
        ("transformer", {"tokens": 5, "padding": 5}, "one of the tokens"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(name, settings, said):
    with pytest.raises(ConfigError, match=said):
        SOURCES[name](**settings)


@pytest.mark.parametrize(
    ("name", "inputs", "settings", "said"),
    [
        ("cnn", IMAGES, {"dtype": "float64"}, "Leave out convert's dtype"),
        ("cnn", X, {}, "channels, rows and columns"),
        ("cnn", IMAGES, {"image": [1, 5, 4]}, "channels, rows and columns"),
        ("transformer", TOKENS, {"tokens": 4}, "up to 4"),
        ("transformer", X, {"tokens": 4}, "integers"),
        ("transformer", IMAGES, {}, "must have steps"),
        ("transformer", X, {"sequence": [2, 2]}, r"\[3\] per row"),
        ("cnn", {"a": IMAGES, "b": IMAGES}, {}, "must have one input"),
        ("mlp", np.array([["a", "b"]] * 24), {}, "columns of numbers"),
    ],
)
def test_inputs_that_a_network_does_not_read_are_refused(name, inputs, settings, said):
    with pytest.raises(ConvertError, match=said):
        build(name, "regression", inputs, **{"dtype": "float32", **settings})


def test_a_logarithm_is_not_scaled_to_the_labels():
    label = np.arange(len(X)).astype(float)
    config = AddLossConfig(LOSSES["poisson"]())
    artifact, data = build("mlp", label)
    with pytest.raises(LossError, match="scale_target=false"):
        add_loss(artifact, config, data=data)
    artifact, data = build("mlp", label, scale_target=False)
    assert add_loss(artifact, config, data=data).facts.link == "log"


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


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    rows = [
        f"{'' if i % 5 == 0 else i},{'red' if i % 3 else 'blue'},2024-0{1 + i % 6}-0{1 + i % 7},{i * 2.5 + i % 3}"
        for i in range(40)
    ]
    path.write_text("age,colour,day,price\n" + "\n".join(rows) + "\n")
    return Data(DATA["csv"](path=str(path), label="price")())


@pytest.mark.parametrize("words", ["embedding", "one_hot"])
@pytest.mark.parametrize("name", ["mlp", "tabular"])
def test_a_network_reads_a_tables_columns_as_they_stand(name, words, table):
    small = {"mlp": {"hidden": [4], "activation": "tanh"}, "tabular": SMALL}[name]
    source = SOURCES[name](**small, words=words, dropout=0.0)
    artifact = convert(None, ConvertConfig(source, dtype="float64"), data=table)
    assert artifact.facts.inputs == ("age", "colour", "day")
    kept = {n: np.repeat(array[1:2], 4, axis=0) for n, array in table.train.inputs.items()}
    kept["age"] = np.array([1.0, np.nan, 1.0, 1.0])
    kept["colour"] = np.array(["red", "red", "green", "violet"], object)
    [y] = Session(artifact.model).run(kept, ["prediction"])
    assert np.isfinite(y).all()
    assert (y[2] == y[3]).all()  # unknown words are one
    assert len(np.unique(y[:3])) == 3
    embedded = [n for n in artifact.facts.parameters if n.startswith("embeddings.")]
    assert embedded == (["embeddings.colour.weight"] if words == "embedding" else [])
    if embedded:
        vectors = artifact.initializers["embeddings.colour.weight"]
        assert vectors.shape == (3, 2)  # round(1.6 · 2^0.56)
        assert not vectors[0].any()
    assert any("missing value is the median" in note for note in artifact.facts.lineage[0]["notes"])
    derive(add_loss(artifact, AddLossConfig(LOSSES["l2"]())), DeriveConfig(check=True), data=table)


@pytest.mark.parametrize("inputs", [X, STEPS], ids=["columns", "steps"])
def test_a_row_of_weight_2_is_standardized_as_the_row_twice(inputs):
    y, weight = LABELS["regression"], np.array([2.0, *[1] * 23])
    twice = [0, *range(24)]
    source = ConvertConfig(SOURCES["mlp"](hidden=[3]), dtype="float64")
    made = [convert(None, source, data=Data(rows)) for rows in (Rows(inputs, y, weight), Rows(inputs[twice], y[twice]))]
    np.testing.assert_allclose(*(predict(one, None, given={"X": inputs})[0] for one in made), rtol=1e-9)
