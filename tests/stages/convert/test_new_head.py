"""convert.head: new layers in the place of a network's end."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command import ROOT

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
from ortpipe.errors import ConfigError, ConvertError
from ortpipe.pipeline.digest import identity
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.changes.config import NewHead, WeightsFrom
from ortpipe.stages.convert.sources.onnx_file import OnnxFile

ROWS = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,3] y, float[N,4] more)
    <float[2,4] w0 = {1, -2, 3, 4, 5, 6, -7, 8}, float[4,3] w1 = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}>
    { h = MatMul(X, w0) r = Relu(h) z = MatMul(r, w1) y = Softmax(z) more = Neg(r) }"""
IMAGES = """<ir_version: 10, opset_import: ["": 17]> g (float[N,1,H,W] X) => (float[N,2,P,Q] y)
    <float[3,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[2,3,1,1] v = {1, 2, 3, 4, 5, 6}>
    { c = Conv(X, w) r = Relu(c) y = Conv(r, v) }"""
X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)


@pytest.fixture
def rows(tmp_path: Path) -> OnnxFile:
    (path := tmp_path / "rows.onnx").write_bytes(onnx.parser.parse_model(ROWS).SerializeToString())
    return OnnxFile(path=str(path))


@pytest.fixture
def images(tmp_path: Path) -> OnnxFile:
    (path := tmp_path / "images.onnx").write_bytes(onnx.parser.parse_model(IMAGES).SerializeToString())
    return OnnxFile(path=str(path))


def _headed(source: OnnxFile, *layers: Any, cut: str | None = "r", seed: int = 0, **settings: Any) -> Artifact:
    head = NewHead(cut=cut, layers=layers)
    return convert(None, ConvertConfig(source=source, head=head, seed=seed, **settings))


def test_layers_stand_behind_the_cut_and_nothing_else(rows: OnnxFile) -> None:
    artifact = _headed(rows, {"linear": 5}, "relu", {"dropout": 0.5}, {"linear": 2}, "softmax")
    facts = artifact.facts
    assert facts.outputs == (facts.prediction,) == ("prediction",)
    assert (facts.task, facts.classes, facts.logits) == ("multiclass", (0, 1), "head/Gemm_1")
    names = ("head/0/weight", "head/0/bias", "head/3/weight", "head/3/bias")
    assert facts.parameters == ("w0", *names)
    assert [artifact.initializers[name].shape for name in names] == [(5, 4), (5,), (2, 5), (2,)]
    assert not artifact.tensors  # there is no source that predicts the same thing
    assert facts.lineage[0]["head"] == {
        "cut": "r", "layers": "linear 5, relu, dropout 0.5, linear 2, softmax", "seed": 0
    }  # fmt: skip
    [note, _] = facts.lineage[0]["notes"]
    assert note.startswith("cuts at 'r' [N, 4]; behind it linear 5, relu, dropout 0.5, linear 2, softmax: new weights")


def test_the_layers_compute_what_they_are_called(rows: OnnxFile, images: OnnxFile) -> None:
    artifact = _headed(rows, {"linear": 3}, "tanh", "gelu")
    w, b = (artifact.initializers[f"head/0/{name}"].astype(float) for name in ("weight", "bias"))
    t = np.tanh(np.maximum(X @ artifact.initializers["w0"], 0) @ w.T + b)
    from scipy.special import erf

    [y] = Session(artifact.model).run({"X": X}, ["prediction"])
    np.testing.assert_allclose(y, 0.5 * t * (1 + erf(t / np.sqrt(2))), rtol=1e-5, atol=1e-6)  # torch's gelu, by erf

    picture = np.random.default_rng(0).normal(size=(2, 1, 4, 5)).astype(np.float32)
    for pool in ("mean", "max"):
        artifact = _headed(images, {"pool": pool})
        cut = _headed(images, {"pool": pool}, {"linear": 2}, "sigmoid")
        [pooled] = Session(artifact.model).run({"X": picture}, ["prediction"])
        w, b = (cut.initializers[f"head/1/{name}"].astype(float) for name in ("weight", "bias"))
        [y] = Session(cut.model).run({"X": picture}, ["prediction"])
        assert (pooled.shape, cut.facts.task) == ((2, 3), "multilabel")
        np.testing.assert_allclose(y, 1 / (1 + np.exp(-(pooled @ w.T + b))), rtol=1e-5, atol=1e-6)


def test_first_weights_are_pytorchs_and_the_same_everywhere(rows: OnnxFile) -> None:
    artifact = _headed(rows, {"linear": 1000}, {"linear": 1})
    wide, deep = artifact.initializers["head/0/weight"], artifact.initializers["head/1/weight"]
    for array, fan_in in ((wide, 4), (artifact.initializers["head/0/bias"], 4), (deep, 1000)):
        bound = 1 / np.sqrt(fan_in)  # kaiming_uniform_(a=√5): √6 / √((1 + 5) fan_in)
        assert bound * 0.99 < np.abs(array).max() <= bound
        assert abs(array.mean()) < 0.05 * bound
        assert abs(array.std() * np.sqrt(3) / bound - 1) < 0.05
    digest = hashlib.sha256(b"".join(a.astype("<f4").tobytes() for a in (wide, deep))).hexdigest()
    assert digest.startswith("d10a2c8cce10")
    assert _headed(rows, {"linear": 1000}, {"linear": 1}).digest() == artifact.digest()
    assert (_headed(rows, {"linear": 1000}, seed=1).initializers["head/0/weight"] != wide).any()


def test_the_seed_counts_only_where_a_head_has_it(rows: OnnxFile) -> None:
    a, b = (identity(ConvertConfig(source=rows, seed=seed)) for seed in (0, 1))
    assert a == b
    head = NewHead(layers=("relu",))
    a, b = (identity(ConvertConfig(source=rows, head=head, seed=seed)) for seed in (0, 1))
    assert a != b


@pytest.mark.parametrize(
    ("layers", "task", "expected"),
    [
        ([{"linear": 2}, "softmax"], None, ("multiclass", "head/Gemm", (0, 1))),
        ([{"linear": 2}, "softmax"], "binary", ("binary", "head/Gemm", (0, 1))),
        ([{"linear": 1}, "sigmoid"], None, ("binary", "head/Gemm", (0, 1))),
        ([{"linear": 3}, "sigmoid"], None, ("multilabel", "head/Gemm", None)),
        ([{"linear": 3}], None, ("regression", None, None)),
        ([{"linear": 3}], "multiclass", ("multiclass", "prediction", (0, 1, 2))),
        ([{"linear": 1}], "binary", ("binary", "prediction", (0, 1))),
    ],
)
def test_the_task_follows_from_the_layers_or_the_config(
    layers: list[Any], task: Any, expected: tuple[Any, ...], rows: OnnxFile
) -> None:
    facts = _headed(OnnxFile(path=rows.path, task=task), *layers).facts
    assert (facts.task, facts.logits, facts.classes) == expected


@pytest.mark.parametrize(
    ("layers", "settings", "message"),
    [
        (
            ["softmax"],
            {"cut": None},
            r"(?s)got: none.*Nearest the end: y \[N, 3\], z \[N, 3\], r \[N, 4\], h \[N, 4\]\.",
        ),
        (["softmax"], {"cut": "q*"}, "'q\\*', which matches no values"),
        (["softmax"], {"cut": "?"}, "which matches 4 values: h, r, z, y"),
        ([{"linear": 1}, "softmax"], {"task": "regression"}, "1 columns behind softmax of a regression model"),
        ([{"linear": 1}, "softmax"], {}, "1 columns behind softmax of a multiclass model"),
        ([{"linear": 3}, "sigmoid"], {"task": "binary"}, "3 columns behind sigmoid of a binary model"),
        ([{"linear": 3}, "softmax"], {"classes": ("a", "b")}, "2 labels, 3 classes"),
        ([{"pool": "mean"}], {}, r"A layer pool reads \[N, C, …\]"),
    ],
)
def test_what_does_not_fit_is_refused(
    layers: list[Any], settings: dict[str, Any], message: str, rows: OnnxFile
) -> None:
    cut = settings.pop("cut", "r")
    with pytest.raises(ConvertError, match=message):
        _headed(OnnxFile(path=rows.path, **settings), *layers, cut=cut)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["relu"], r"(?s)A head must end with shape \[N, K\].*\[N, 3, \?, \?\]"),
        ([{"linear": 2}], r"(?s)A layer linear reads \[N, F\].*pool"),
        (["flatten"], r"(?s)a known number of positions.*\{pool: mean\}"),
        (["softmax"], "A layer softmax reads"),
    ],
)
def test_maps_are_pooled_first(layers: list[Any], message: str, images: OnnxFile) -> None:
    with pytest.raises(ConvertError, match=message):
        _headed(images, *layers)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "A head has layers"),
        (["lineer"], "Did you mean 'linear'"),
        (["linear"], r"A layer linear has a width, as in \{linear: 10\}"),
        ([{"linear": 0}], "has a width"),
        ([{"dropout": 1.5}], "has a share"),
        ([{"pool": "sum"}], "has mean or max"),
        ([{"relu": 2}], "has no setting"),
        ([{"linear": 1, "relu": None}], "Each entry of layers must be a layer"),
    ],
)
def test_layers_are_checked_with_the_config(layers: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NewHead(layers=tuple(layers))


def _trained(source: Artifact, settings: DeriveConfig, data: Data) -> Artifact:
    ready = derive(add_loss(source, AddLossConfig(loss=LOSSES["cross_entropy"]())), settings)
    return train(ready, TrainConfig(epochs=40, batch_size=6, optimizer=OPTIMIZERS["adam"](lr=0.1)), data=data)


def test_a_head_learns_new_classes_while_the_rest_stays(rows: OnnxFile, tmp_path: Path) -> None:
    data = Data(train=Rows({"X": X}, (X[:, 0] > 0).astype(np.int64)))
    source = _headed(rows, {"linear": 8}, "relu", {"dropout": 0.1}, {"linear": 2}, "softmax")
    trained = _trained(source, DeriveConfig(parameters=("head/*",)), data)
    assert trained.tensors["losses/train"][-1] < 0.3 < trained.tensors["losses/train"][0]
    assert trained.initializers["w0"].tolist() == source.initializers["w0"].tolist()
    save_artifact(trained, tmp_path / "trained")  # whose weights another run with the same head begins with
    again = _headed(
        rows, {"linear": 8}, "relu", {"dropout": 0.1}, {"linear": 2}, "softmax",
        init=WeightsFrom(path=str(tmp_path / "trained")),
    )  # fmt: skip
    kept = load_artifact(tmp_path / "trained").initializers
    assert {n: a.tolist() for n, a in again.initializers.items()} == {n: a.tolist() for n, a in kept.items()}


def test_the_weights_of_a_backbone_go_under_a_new_head(rows: OnnxFile) -> None:
    artifact = _headed(rows, {"linear": 2}, init=WeightsFrom(path=rows.path, map={"w1": None}))
    assert "takes 1 weights from rows.onnx: w0" in artifact.facts.lineage[0]["notes"]


def test_a_real_network_gets_new_classes() -> None:
    digits = OnnxFile(path=str(ROOT / "conf" / "models" / "digits.onnx"))
    with pytest.raises(ConvertError) as caught:
        _headed(digits, {"linear": 3}, cut=None)
    last = str(caught.value.fix).removeprefix("Nearest the end: ").split(" [")[0]
    artifact = _headed(digits, {"linear": 3}, "softmax", cut="next_activations1")
    assert last
    assert artifact.facts.classes == (0, 1, 2)
    [y] = Session(artifact.model).run({artifact.facts.inputs[0]: np.zeros((2, 64), np.float32)}, ["prediction"])
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-6)


def test_a_new_head_leaves_what_is_known_of_the_rows(rows: OnnxFile) -> None:
    of_source = {"columns": {"X": ("age", "height")}, "prepared": {"scale": 255.0}}
    data = Data(Rows({"X": X}, np.arange(6) % 2, **of_source))  # type: ignore[arg-type]
    source = OnnxFile(path=rows.path, prediction="y")
    config = ConvertConfig(source=source, head=NewHead(cut="r", layers=({"linear": 2}, "softmax")))
    facts = convert(None, config, data=data).facts
    assert {"columns": facts.columns, "prepared": facts.prepared} == of_source
