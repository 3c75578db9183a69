"""Heads: further outputs of a model, each with a label, a loss and metrics of its own."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.special import softmax
from sklearn import metrics

from ortpipe.app.schema import build_key
from ortpipe.artifact_folder import load_artifact, save_artifact
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Data, Rows
from ortpipe.data.sources import SOURCES
from ortpipe.data.split import split
from ortpipe.errors import ConfigError, ConvertError, DataError, EvaluateError, LossError
from ortpipe.stages.add_loss.config import AddLossConfig, HeadLoss
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.prediction.meaning import OutputSettings
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.figures import figures
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.early import check as check_training
from ortpipe.stages.train.optimizers.sgd import SGD
from ortpipe.stages.train.stage import train

N, RATE, STEPS, NAMES = 12, 0.1, 20, ("ant", "bee", "cat")
RNG = np.random.default_rng(3)
X, KIND, SIZE = RNG.normal(size=(N, 3)), RNG.integers(0, 3, N), RNG.normal(size=(N, 2))
WEIGHTS = {"v": RNG.normal(size=(3, 4)), "w": RNG.normal(size=(4, 3)), "u": RNG.normal(size=(4, 2))}
WORDS = np.array(NAMES)[KIND]


def written(array):
    return f"double[{', '.join(map(str, array.shape))}]", ", ".join(f"{number!r}" for number in array.ravel().tolist())


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a file: h = tanh(X·v), kind = softmax(h·w), size = h·u."""
    held = ", ".join(f"{kind} {name} = {{{numbers}}}" for name, a in WEIGHTS.items() for kind, numbers in [written(a)])
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (double[N, 3] X) => (double[N, 3] kind, double[N, 2] size,
      int64[N] best) <{held}> {{ s = MatMul(X, v) h = Tanh(s) k = MatMul(h, w) kind = Softmax(k) size = MatMul(h, u)
      best = ArgMax <axis = 1, keepdims = 0> (kind) }}"""
    file = tmp_path_factory.mktemp("heads") / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), file)
    return str(file)


def rows(**heads):
    return Rows({"X": X}, WORDS, heads=heads or {"size": SIZE})


def losses(kind=1.0, size=1.0, head="l2", **settings):
    return AddLossConfig(
        LOSSES["cross_entropy"](), weight=kind, heads={"size": HeadLoss(LOSSES[head](), weight=size, **settings)}
    )


def source(path, **settings):
    told = {"prediction": "kind", "classes": NAMES, "heads": {"size": OutputSettings()}, **settings}
    return ConvertConfig(OnnxFile(path, **told))


def loss_model(path, config, data, **settings):
    return add_loss(convert(None, source(path, **settings), data=data), config, data=data)


def trained(model, data, **settings):
    gradients = derive(model, DeriveConfig(check=True), data=data)  # gradients are slopes, by finite differences
    settings = {"optimizer": SGD(lr=RATE), "epochs": STEPS, "batch_size": N, "shuffle": False, **settings}
    return train(gradients, TrainConfig(**settings), data=data)


def by_hand(kind, size):
    """Return the weights after steps of −RATE·∇(kind · mean cross-entropy + size · mean Σ squares), and the losses."""
    v, w, u = (WEIGHTS[name].copy() for name in "vwu")
    seen = []
    for _ in range(STEPS):
        h = np.tanh(X @ v)
        p, error = softmax(h @ w, axis=1), h @ u - SIZE
        seen.append(kind * -np.log(p[np.arange(N), KIND]).mean() + size * (error**2).sum(axis=1).mean())
        dk, ds = kind * (p - np.eye(3)[KIND]) / N, size * 2 * error / N
        dh = (dk @ w.T + ds @ u.T) * (1 - h**2)
        v, w, u = v - RATE * X.T @ dh, w - RATE * h.T @ dk, u - RATE * h.T @ ds
    return {"v": v, "w": w, "u": u}, seen


@pytest.mark.parametrize(("kind", "size"), [(1.0, 1.0), (1.0, 0.0), (0.5, 2.0)])
def test_training_is_that_of_the_weighted_sum(path, kind, size):
    data = Data(rows())
    result = trained(loss_model(path, losses(kind, size), data), data)
    weights, seen = by_hand(kind, size)
    for name, expected in weights.items():
        np.testing.assert_allclose(result.tensors[f"parameter/{name}"], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.tensors["losses/step"], seen, rtol=1e-9)
    assert result.facts.labels == ()
    assert result.facts.outputs == ("kind", "size", "best")


def test_one_head_with_everything_trains_as_a_single_loss(path):
    data, alone = Data(rows()), Data(Rows({"X": X}, SIZE))
    one = trained(loss_model(path, losses(0.0, 1.0), data), data)
    single = source(path, prediction="size", task="regression", classes=None, heads={})
    other = trained(add_loss(convert(None, single, data=alone), AddLossConfig(LOSSES["l2"]())), alone)
    for name in "vu":
        np.testing.assert_array_equal(one.tensors[f"parameter/{name}"], other.tensors[f"parameter/{name}"])
    np.testing.assert_array_equal(one.tensors["parameter/w"], WEIGHTS["w"])


def test_a_head_has_its_own_padding_and_weights_of_rows_are_of_all(path):
    size, weight = np.where(np.arange(N)[:, None] < 4, -100.0, SIZE), np.linspace(0.5, 2, N)
    data = Data(Rows({"X": X}, WORDS, weight, {"size": size}))
    config = AddLossConfig(
        LOSSES["cross_entropy"](), "sum", True, heads={"size": HeadLoss(LOSSES["l2"](), padding=-100, weight=3)}
    )
    model = loss_model(path, config, data)
    [first, *_] = train(derive(model), TrainConfig(epochs=1, batch_size=N), data=data).tensors["losses/step"]
    h = np.tanh(X @ WEIGHTS["v"])
    kind = -np.log(softmax(h @ WEIGHTS["w"], axis=1)[np.arange(N), KIND])
    squares = ((h @ WEIGHTS["u"] - SIZE) ** 2).sum(axis=1) * (np.arange(N) >= 4)
    assert first == pytest.approx((weight * (kind + 3 * squares)).sum(), rel=1e-9)


def test_a_head_without_a_loss_has_that_of_the_prediction(path):
    data = Data(Rows({"X": X}, SIZE, heads={"kind": np.eye(3)[KIND]}))
    told = {
        "prediction": "size",
        "task": "regression",
        "classes": None,
        "heads": {"kind": OutputSettings("regression")},
    }
    model = loss_model(path, AddLossConfig(LOSSES["l2"]()), data, **told)
    assert model.facts.lineage[-1]["notes"] == ["loss = 1 · l2 of 'size' + 1 · l2 of 'kind'"]


def test_metrics_are_of_each_head_and_can_be_watched(path, tmp_path):
    data = Data(rows(), validation=rows(), test=rows())
    watched = EarlyStopConfig(patience=30, monitor="size/mean_squared_error")
    result = evaluate(trained(loss_model(path, losses(), data), data, early_stop=watched), data=data)
    h = np.tanh(X @ result.tensors["parameter/v"])
    values = h @ result.tensors["parameter/u"]
    guess = (h @ result.tensors["parameter/w"]).argmax(axis=1)
    measured = {name: states["trained"] for name, states in result.facts.metrics.items()}
    assert list(measured) == ["accuracy", "f1_macro", "balanced_accuracy", "log_loss"] + [
        f"size/{name}" for name in ("r2", "mean_squared_error", "mean_absolute_error")
    ]
    assert measured["accuracy"] == metrics.accuracy_score(KIND, guess)
    assert measured["size/r2"] == pytest.approx(metrics.r2_score(SIZE, values))
    assert result.tensors["monitor/size/mean_squared_error"][-1] == pytest.approx(measured["size/mean_squared_error"])
    np.testing.assert_array_equal(result.tensors["evaluation/size/label"], SIZE)
    np.testing.assert_array_equal(result.tensors["evaluation/label"], KIND)
    assert list(figures(result)) == ["losses", "confusion", "curves"]
    named = evaluate(result, EvaluateConfig(("size/r2",)), data=data)
    assert list(named.facts.metrics) == ["size/r2"]
    again = load_artifact(save_artifact(result, tmp_path / "artifact"))
    assert again.facts.heads == result.facts.heads
    onnx.save(result.model, bare := tmp_path / "bare.onnx")
    fresh = convert(None, ConvertConfig(OnnxFile(str(bare), heads={"size": OutputSettings()})), data=data).facts
    assert (fresh.prediction, fresh.classes, fresh.heads["size"].task) == ("kind", NAMES, "regression")


def stored(kind, folder):
    """Return a source of the same rows."""
    columns = {**{f"x{k}": X[:, k] for k in range(3)}, "kind": WORDS, "a": SIZE[:, 0], "b": SIZE[:, 1]}
    common = {"path": str(folder / f"rows.{kind}"), "label": "kind", "heads": {"size": ("a", "b")}}
    if kind == "npz":
        np.savez(common["path"], X=X, kind=WORDS, size=SIZE)
        return SOURCES["npz"](**{**common, "heads": {"size": "size"}}, stream=True)
    common["inputs"] = {"X": None}
    table = pa.table(columns)
    if kind == "parquet":
        parquet.write_table(table, common["path"], row_group_size=5)
        return SOURCES["parquet"](**common, stream=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "rows.csv").write_text("\n".join(lines))
    return SOURCES["csv"](**common)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_every_source_has_labels_of_heads_and_the_same_training(path, tmp_path, kind):
    config = SplitConfig(test=0.25, seed=1)
    memory, read = (split(found, config) for found in (rows(), stored(kind, tmp_path)()))
    results = [trained(loss_model(path, losses(), data), data, batch_size=9) for data in (memory, read)]
    for name in "vwu":
        ours, theirs = (result.tensors[f"parameter/{name}"] for result in results)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    [table] = {tuple(result.facts.metrics) for result in (evaluate(results[1], data=read),)}
    assert "size/r2" in table


def test_a_model_for_one_row_at_a_time_keeps_its_heads(tmp_path, path):
    single = onnx.load(path)
    for value in (*single.graph.input, *single.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(single, file := tmp_path / "one.onnx")
    data = Data(rows())
    free, one = (loss_model(p, losses(), data, batch=b) for p, b in ((path, "auto"), (str(file), "rows")))
    results = [trained(model, data) for model in (free, one)]
    for name in "vwu":
        ours, theirs = (result.tensors[f"parameter/{name}"] for result in results)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize(
    ("heads", "error", "message"),
    [
        ({"sise": {}}, ConvertError, "Did you mean 'size'"),
        ({"kind": {}}, ConvertError, "the prediction itself"),
        ({"best": {}}, ConvertError, "'best', INT64"),
        (
            {"size": {"task": "multiclass", "scores": "probabilities"}},
            ConvertError,
            r"source\.heads\.size\.scores=logits",
        ),
    ],
)
def test_convert_refuses_what_is_no_head(path, heads, error, message):
    with pytest.raises(error, match=message):
        convert(
            None, source(path, heads={name: OutputSettings(**told) for name, told in heads.items()}), data=Data(rows())
        )


@pytest.mark.parametrize(
    ("config", "given", "error", "message"),
    [
        (losses(), {"sise": SIZE}, LossError, "Did you mean 'size'"),
        (
            AddLossConfig(LOSSES["cross_entropy"](), heads={"sise": HeadLoss(LOSSES["l2"]())}),
            {},
            LossError,
            "^add_loss's heads must name",
        ),
        (
            losses(head="cross_entropy"),
            {},
            LossError,
            r"regression head 'size'(.|\n)*add_loss's heads\.size\.loss\.name",
        ),
        (AddLossConfig(LOSSES["cross_entropy"]()), {}, LossError, "cross_entropy for a regression head 'size'"),
        (losses(head="gamma"), {}, LossError, r"The loss gamma is defined for labels that are positive"),
        (losses(), {"size": SIZE[:, :1]}, DataError, r"1 per row \(head 'size'\)"),
    ],
)
def test_add_loss_and_train_refuse_what_does_not_fit_a_head(path, config, given, error, message):
    data = Data(rows(**given))
    with pytest.raises(error, match=message):
        trained(loss_model(path, config, data), data)


def test_labels_of_heads_must_be_there_and_be_classes(path, tmp_path):
    np.savez(file := tmp_path / "rows.npz", X=X, kind=WORDS)
    for bare in (Rows({"X": X}, WORDS), SOURCES["npz"](path=str(file), label="kind", stream=True)()):
        with pytest.raises(DataError, match="none for 'size'"):
            loss_model(path, losses(), Data(bare))
    told = {
        "prediction": "size",
        "task": "regression",
        "classes": None,
        "heads": {"kind": OutputSettings(classes=NAMES)},
    }
    wrong = Data(Rows({"X": X}, SIZE, heads={"kind": np.where(KIND == 1, "wasp", WORDS)}))
    config = AddLossConfig(LOSSES["l2"](), heads={"kind": HeadLoss(LOSSES["cross_entropy"]())})
    with pytest.raises(DataError, match=r"'wasp' \(head 'kind'\)(.|\n)*source\.heads\.kind\.classes"):
        check_training(loss_model(path, config, wrong, **told).facts, TrainConfig(), data=wrong)


def test_labels_of_an_output_that_convert_does_not_name_say_how_to_name_it(path):
    with pytest.raises(LossError, match=r"Name the output there: \+convert's source\.heads\.size=\{\}"):
        loss_model(path, AddLossConfig(LOSSES["cross_entropy"]()), Data(rows()), heads={})


def test_a_metric_names_a_head_that_the_model_has(path):
    data = Data(rows(), validation=rows(), test=rows())
    wrong = {"sise/r2": "Did you mean 'size'", "size/accuracy": "for a regression head", "r2": "head's name: size/r2"}
    for name, message in wrong.items():
        with pytest.raises(EvaluateError, match=message):
            evaluate(convert(None, source(path), data=data), EvaluateConfig((name,)), data=data)


def test_errors_in_a_config_say_the_head():
    heads = {"size": {"loss": {"name": "l2", "gama": 1}, "weight": -1}, "kind": {"loss": {"name": "l3"}}}
    with pytest.raises(ConfigError) as error:
        build_key("add_loss", {"loss": {"name": "l2"}, "heads": heads})
    for key in ("heads.size.loss.gama is not a key", "heads.size.weight must be", "heads.kind.loss.name must be"):
        assert f"add_loss.{key}" in str(error.value)


def test_heads_may_be_inside_of_the_graph(path):
    inner = convert(None, source(path, heads={"k": OutputSettings("multiclass", "logits")}), data=Data(rows()))
    assert inner.facts.outputs == ("kind", "size", "best", "k")
    cut = convert(
        None, source(path, prediction="h", task="regression", heads={"size": OutputSettings()}), data=Data(rows())
    )
    assert cut.facts.outputs == ("h", "size")


class Innocent:
    def __call__(self, op, label, scores):
        return op.Abs(scores.prediction)


class Guilty:
    def __call__(self, op, label, scores):
        return op.Subb(label, scores.prediction)


def test_an_error_in_the_graph_names_all_own_losses(path):
    config = AddLossConfig(Innocent(), heads={"size": HeadLoss(Guilty())})
    with pytest.raises(Exception, match="Subb") as error:
        loss_model(path, config, Data(rows()))
    assert [note.rpartition(":")[2] for note in error.value.__notes__] == ["Guilty", "Innocent"]
