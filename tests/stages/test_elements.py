"""Predictions of any shape: steps, images, one number per row; their loss, gradient, metrics and training."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from scipy.special import expit, softmax
from sklearn import metrics

from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, ConvertError, DataError, LossError
from ortpipe.metrics.elements import classes_last
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.early import check
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.early import check as check_training
from ortpipe.stages.train.stage import train

N = 6
RNG = np.random.default_rng(0)


def model(shape, end, weight=(1,), out=None):
    """Return x [N, …] scaled by w and then put through `end`, from z to Y."""
    dims = ", ".join(map(str, shape))
    numbers = ", ".join(f"{number:.4f}" for number in np.linspace(0.6, 1.4, int(np.prod(weight))))
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g (double[N, {dims}] X) => (double[{out or f"N, {dims}"}] Y) '
        f"<double[{', '.join(map(str, weight))}] w = {{{numbers}}}> {{ z = Mul(X, w) {end} }}"
    )


# name: model, settings of its source, task, class axis, the loss, element losses [N, E…] from z and the label, label
SHAPES = {
    "numbers [N]": (
        model((1,), "a = Constant <value = int64[1] {1}> () Y = Squeeze(z, a)", out="N"),
        {},
        ("regression", 1),
        "l2",
        lambda z, y: (z[:, 0] - y) ** 2,
        RNG.normal(size=N),
    ),
    "probabilities [N]": (
        model((1,), "a = Constant <value = int64[1] {1}> () s = Sigmoid(z) Y = Squeeze(s, a)", out="N"),
        {},
        ("binary", 1),
        "log",
        lambda z, y: -np.log(np.where(y, expit(z[:, 0]), 1 - expit(z[:, 0]))),
        np.arange(N) % 2,
    ),
    "steps [N, T, K]": (
        model((4, 3), "Y = Softmax(z)", (3,)),
        {},
        ("multiclass", 2),
        "cross_entropy",
        lambda z, y: -np.log(np.take_along_axis(softmax(z, -1), y[..., None], -1)[..., 0]),
        RNG.integers(0, 3, (N, 4)),
    ),
    "steps [N, K, T], raw": (
        model((3, 4), "Y = Identity(z)", (3, 1)),
        {"class_axis": 1, "task": "multiclass", "scores": "logits"},
        ("multiclass", 1),
        "cross_entropy",
        lambda z, y: -np.log(np.take_along_axis(softmax(z, 1), y[:, None], 1)[:, 0]),
        RNG.integers(0, 3, (N, 4)),
    ),
    "steps turned around [T, N, K]": (
        model((4, 3), "t = Transpose <perm = [1, 0, 2]> (z) s = LogSoftmax(t) Y = Transpose <perm = [1, 0, 2]> (s)"),
        {},
        ("multiclass", 2),
        "cross_entropy",
        lambda z, y: -np.log(np.take_along_axis(softmax(z, -1), y[..., None], -1)[..., 0]),
        RNG.integers(0, 3, (N, 4)),
    ),
    "steps flattened, as opset 12 had it": (
        model((4, 3), "f = Flatten <axis = 2> (z) s = Softmax(f) d = Shape(z) Y = Reshape(s, d)", (3,)),
        {},
        ("multiclass", 2),
        "cross_entropy",
        lambda z, y: -np.log(np.take_along_axis(softmax(z, -1), y[..., None], -1)[..., 0]),
        RNG.integers(0, 3, (N, 4)),
    ),
    "images [N, K, H, W]": (
        model((3, 2, 2), "Y = Softmax <axis = 1> (z)", (3, 1, 1)),
        {},
        ("multiclass", 1),
        "cross_entropy",
        lambda z, y: -np.log(np.take_along_axis(softmax(z, 1), y[:, None], 1)[:, 0]),
        RNG.integers(0, 3, (N, 2, 2)),
    ),
    "images, channels moved last": (
        model((3, 2, 2), "s = Softmax <axis = 1> (z) Y = Transpose <perm = [0, 2, 3, 1]> (s)", (3, 1, 1), "N, 2, 2, 3"),
        {},
        ("multiclass", 3),
        "cross_entropy",
        lambda z, y: -np.log(np.take_along_axis(softmax(z, 1), y[:, None], 1)[:, 0]),
        RNG.integers(0, 3, (N, 2, 2)),
    ),
    "masks [N, 1, H, W]": (
        model((1, 2, 2), "Y = Sigmoid(z)"),
        {},
        ("binary", 1),
        "log",
        lambda z, y: -np.log(np.where(y, expit(z[:, 0]), 1 - expit(z[:, 0]))),
        RNG.integers(0, 2, (N, 1, 2, 2)),
    ),
    "masks [N, H, W]": (
        model((2, 2), "Y = Sigmoid(z)"),
        {"task": "binary", "class_axis": "none"},
        ("binary", 3),
        "log",
        lambda z, y: -np.log(np.where(y, expit(z), 1 - expit(z))),
        RNG.integers(0, 2, (N, 2, 2)),
    ),
    "activity of each step [N, T]": (
        model((5,), "Y = Sigmoid(z)"),
        {"task": "binary", "class_axis": "none"},
        ("binary", 2),
        "log",
        lambda z, y: -np.log(np.where(y, expit(z), 1 - expit(z))),
        RNG.integers(0, 2, (N, 5)),
    ),
    "labels of each step [N, T, K]": (
        model((4, 3), "Y = Sigmoid(z)", (3,)),
        {},
        ("multilabel", 2),
        "log",
        lambda z, y: -np.log(np.where(y, expit(z), 1 - expit(z))).sum(-1),
        RNG.integers(0, 2, (N, 4, 3)),
    ),
    "images of values [N, C, H, W]": (
        model((3, 2, 2), "Y = Identity(z)", (3, 1, 1)),
        {},
        ("regression", 1),
        "l1",
        lambda z, y: np.abs(z - y).sum(1),
        RNG.normal(size=(N, 3, 2, 2)),
    ),
}
NAMES = list(SHAPES)


def weight_of(found):
    return onnx.numpy_helper.to_array(found.graph.initializer[0])


@pytest.fixture
def made(tmp_path):
    def make(name, weighted=False, reduction="mean", **told):
        found, settings, *_, label = SHAPES[name]
        onnx.save(found, tmp_path / "model.onnx")
        shape = [d.dim_value for d in found.graph.input[0].type.tensor_type.shape.dim][1:]
        x = np.random.default_rng(1).normal(size=(N, *shape))
        weight = np.linspace(0.5, 2, N) if weighted else None
        rows = Rows({"X": x}, label, weight)
        config = ConvertConfig(OnnxFile(str(tmp_path / "model.onnx"), **settings))
        forward = convert(None, config, data=Data(rows, test=rows))
        loss = LOSSES[SHAPES[name][3]]()
        return add_loss(forward, AddLossConfig(loss, reduction, weighted, **told)), rows

    return make


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_rows_loss_is_the_mean_over_its_elements(made, run, name, weighted, reduction):
    found, _, known, _, element, label = SHAPES[name]
    artifact, rows = made(name, weighted, reduction)
    facts = artifact.facts
    assert (facts.task, facts.class_axis) == known
    got = run(artifact.model, feeds(artifact.model, facts, rows), [facts.loss])[facts.loss]
    y = label[:, 0] if name == "masks [N, 1, H, W]" else label
    per_row = element(rows.inputs["X"] * weight_of(found), y).reshape(N, -1).mean(axis=1)
    weighed = per_row * (1 if rows.sample_weight is None else rows.sample_weight)
    assert got == pytest.approx(weighed.sum() / (N if reduction == "mean" else 1), rel=1e-12)


@pytest.mark.parametrize("name", [name for name, row in SHAPES.items() if row[2][0] in ("binary", "multiclass")])
def test_its_logits_are_found(made, name):
    assert made(name)[0].facts.logits is not None


@pytest.mark.parametrize("name", NAMES)
def test_its_gradient_is_the_slope(made, run, central_differences, name):
    loss, rows = made(name)
    artifact = derive(loss, DeriveConfig(parameters=("w",)))
    fed = feeds(artifact.model, artifact.facts, rows)
    gradient = run(artifact.model, fed, [artifact.facts.gradients["w"]])[artifact.facts.gradients["w"]]
    expected = central_differences(artifact.model, artifact.facts.loss, fed, "w")
    np.testing.assert_allclose(gradient, expected, atol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_metrics_count_elements_as_rows(made, run, name, weighted):
    loss, rows = made(name, weighted)
    data = Data(rows, test=rows, validation=rows)
    gradients = derive(loss, DeriveConfig(parameters=("w",)))
    monitor = {"regression": "r2", "multilabel": "accuracy"}.get(loss.facts.task, "log_loss")
    trained = train(
        gradients, TrainConfig(epochs=3, batch_size=2, early_stop=EarlyStopConfig(monitor=monitor)), data=data
    )
    result = evaluate(trained, EvaluateConfig(), data=data)
    prediction = run(trained.model, {"X": rows.inputs["X"]}, ["Y"])["Y"]
    values = classes_last(prediction, loss.facts.class_axis)
    of_each = None if not weighted else np.repeat(rows.sample_weight, values[0, ..., 0].size)
    found, truth = result.facts.metrics, rows.label
    if loss.facts.task in ("binary", "multiclass"):
        p = np.exp(values) if "T, N, K" in name else softmax(values, -1) if "raw" in name else values
        p = np.concatenate([1 - p, p], -1) if p.shape[-1] == 1 else p
        p = p.reshape(-1, p.shape[-1])
        expected = metrics.accuracy_score(truth.ravel(), p.argmax(1), sample_weight=of_each)
        assert found["accuracy"]["trained"] == pytest.approx(expected)
        expected = metrics.log_loss(truth.ravel(), p, sample_weight=of_each, labels=range(p.shape[1]))
        assert found["log_loss"]["trained"] == pytest.approx(expected)
    else:
        flat = values.reshape(-1, values.shape[-1])
        truth = classes_last(truth, loss.facts.class_axis).reshape(flat.shape)
        of = metrics.r2_score if loss.facts.task == "regression" else metrics.accuracy_score
        read = flat if loss.facts.task == "regression" else flat > 0.5
        name = "r2" if loss.facts.task == "regression" else "accuracy"
        assert found[name]["trained"] == pytest.approx(of(truth, read, sample_weight=of_each))
    assert f"monitor/{monitor}" in trained.tensors


def test_labels_of_another_shape_are_refused_with_the_one_that_fits(made):
    artifact, rows = made("images [N, K, H, W]")
    with pytest.raises(DataError, match=r"got: 2×3 per row\n.*2×2 classes per row"):
        feeds(artifact.model, artifact.facts, Rows(rows.inputs, np.zeros((N, 2, 3), int)))
    other = Rows(rows.inputs, np.zeros((N, 3), int))
    forward = convert(SHAPES["images [N, K, H, W]"][0], data=Data(rows))
    with pytest.raises(DataError, match="3 per row"):
        evaluate(forward, data=Data(rows, test=other))


def test_the_run_refuses_labels_of_a_length_that_only_it_knows(run):
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, T, 2] X) => (float[N, T, 2] Y)
    <float[2] w = {1, 2}> { z = Mul(X, w) Y = Softmax(z) }"""
    artifact = add_loss(convert(onnx.parser.parse_model(text)), AddLossConfig(LOSSES["cross_entropy"]()))
    x = np.ones((3, 4, 2), np.float32)
    right = feeds(artifact.model, artifact.facts, Rows({"X": x}, np.zeros((3, 4), int)))
    assert run(artifact.model, right)[artifact.facts.loss] == pytest.approx(np.log(1 + np.e))
    wrong = feeds(artifact.model, artifact.facts, Rows({"X": x}, np.zeros((3, 1), int)))
    with pytest.raises(Exception, match="Reshape"):
        run(artifact.model, wrong)
    derived = derive(artifact, DeriveConfig(parameters=("w",)))
    with pytest.raises(DataError, match=r"\[1\] in the first row, for \[4\] that 'Y' has"):
        train(derived, TrainConfig(epochs=1, batch_size=3), data=Data(Rows({"X": x}, np.zeros((3, 1), int))))


def test_a_guess_of_the_axis_is_said(tmp_path):
    artifact = convert(model((3, 2, 2), "Y = Identity(z)"))
    [*_, note] = artifact.facts.lineage[0]["notes"]
    assert "'Y' of shape [?, 3, 2, 2] are taken to lie along axis 1" in note
    said = convert(model((3, 2, 2), "Y = Softmax <axis = 1> (z)"))
    assert not any("class_axis" in note for note in said.facts.lineage[0]["notes"])


@pytest.mark.parametrize("axis", [0, 4, -4])
def test_an_axis_that_the_prediction_does_not_have_is_refused(tmp_path, axis):
    onnx.save(model((3, 2, 2), "Y = Identity(z)"), tmp_path / "model.onnx")
    with pytest.raises(ConvertError, match=r"class_axis must(.|\n)*\[\?, 3, 2, 2\]"):
        convert(None, ConvertConfig(OnnxFile(str(tmp_path / "model.onnx"), class_axis=axis)))


# torch 2.13.0, F.cross_entropy(z, y, reduction="sum", ignore_index=-100), of these numbers
Z = np.array([[[1.0, -1.0, 0.5], [0.0, 2.0, 0.25]], [[0.5, 0.5, -2.0], [3.0, 1.0, 0.0]], [[1, 2, 3], [0, 0, 0]]])
PADDED = np.array([[2, -100], [0, 1], [-100, -100]])
TORCH = 3.9581727340254877


def cross_entropy(z, y):
    """Return Σ −log softmax(z)[y] over the elements that are no padding, and how many each row has."""
    terms = -np.log(np.take_along_axis(softmax(z, -1), np.maximum(y, 0)[..., None], -1)[..., 0])
    return np.where(y >= 0, terms, 0.0).sum(axis=1), (y >= 0).sum(axis=1)


@pytest.mark.parametrize("elements", ["sum", "mean"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_padded_elements_count_nothing(run, central_differences, elements, reduction):
    forward = convert(model((2, 3), "Y = Softmax(z)", (3,)))
    config = AddLossConfig(LOSSES["cross_entropy"](), reduction, elements=elements, padding=-100)
    artifact = derive(add_loss(forward, config), DeriveConfig(inputs=("X",)))
    facts = artifact.facts
    fed = feeds(artifact.model, facts, Rows({"X": Z / weight_of(forward.model)}, PADDED))
    found = run(artifact.model, fed)
    total, count = cross_entropy(Z, PADDED)
    per_row = total / np.maximum(count, 1) if elements == "mean" else total
    assert found[facts.loss] == pytest.approx(per_row.sum() / (3 if reduction == "mean" else 1), rel=1e-12)
    if elements == reduction == "sum":
        assert found[facts.loss] == pytest.approx(TORCH, rel=1e-12)
    gradient = found[facts.input_gradients["X"]]
    np.testing.assert_allclose(gradient, central_differences(artifact.model, facts.loss, fed, "X"), atol=1e-8)
    assert not gradient[PADDED < 0].any()


def test_padded_values_count_nothing_even_where_the_loss_is_infinite(run):
    text = """<ir_version: 10, opset_import: ["" : 21]> g (double[N, 3, 2] X) => (double[N, 3, 2] Y)
    <double[2] w = {1, 1}> { Y = Mul(X, w) }"""
    forward = convert(onnx.parser.parse_model(text))
    x, y = np.full((2, 3, 2), 1e200), np.full((2, 3, 2), -100.0)
    x[0, 0], y[0, 0], y[0, 1, 1] = (1, 2), (2, 4), 5  # one of two values is marked: the element counts nothing
    artifact = derive(add_loss(forward, AddLossConfig(LOSSES["l2"](), padding=-100)), DeriveConfig(parameters=("w",)))
    found = run(artifact.model, feeds(artifact.model, artifact.facts, Rows({"X": x}, y)))
    assert found[artifact.facts.loss] == 5 / 2
    np.testing.assert_allclose(found[artifact.facts.gradients["w"]], [-1, -4])


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_metrics_leave_padded_elements_out(task, run):
    forward = convert(model((2, 3), "Y = Softmax(z)" if task == "multiclass" else "Y = Identity(z)", (3,)))
    loss = AddLossConfig(LOSSES["cross_entropy" if task == "multiclass" else "l2"](), padding=-100, sample_weight=True)
    weight = np.array([1.0, 2.0, 3.0])
    label = PADDED if task == "multiclass" else np.where(PADDED[..., None] < 0, -100.0, Z**2)
    rows = Rows({"X": Z / weight_of(forward.model)}, label, weight)
    data = Data(rows, test=rows)
    trained = train(derive(add_loss(forward, loss), DeriveConfig(parameters=("w",))), TrainConfig(epochs=1), data=data)
    found = evaluate(trained, data=data)
    counts, of_each = PADDED >= 0, np.repeat(weight, 2).reshape(3, 2)
    values = run(trained.model, {"X": rows.inputs["X"]}, ["Y"])["Y"][counts]
    if task == "multiclass":
        expected = metrics.accuracy_score(label[counts], values.argmax(1), sample_weight=of_each[counts])
        assert found.facts.metrics["accuracy"]["trained"] == expected
    else:
        expected = metrics.mean_squared_error(label[counts], values, sample_weight=of_each[counts])
        assert found.facts.metrics["mean_squared_error"]["trained"] == pytest.approx(expected)
    assert found.tensors["evaluation/label"].shape[0] == counts.sum()


def test_words_may_mark_padding(tmp_path):
    onnx.save(model((2, 3), "Y = Softmax(z)", (3,)), tmp_path / "model.onnx")
    forward = convert(None, ConvertConfig(OnnxFile(str(tmp_path / "model.onnx"), classes=("a", "b", "c"))))
    artifact = add_loss(forward, AddLossConfig(LOSSES["cross_entropy"](), padding="pad"))
    rows = Rows({"X": Z}, np.array([["a", "pad"], ["b", "c"], ["pad", "pad"]]))
    fed = feeds(artifact.model, artifact.facts, rows)[artifact.facts.label]
    assert fed[..., 0].tolist() == [[0, -1], [1, 2], [-1, -1]]


def test_a_class_marks_no_padding_and_nan_is_no_mark():
    forward = convert(model((2, 3), "Y = Softmax(z)", (3,)))
    with pytest.raises(LossError, match="padding must not be a class"):
        add_loss(forward, AddLossConfig(LOSSES["cross_entropy"](), padding=0))
    with pytest.raises(ConfigError, match="padding must be a label"):
        AddLossConfig(LOSSES["cross_entropy"](), padding=float("nan"))


def test_later_checks_know_what_marks_padding(tmp_path):
    onnx.save(model((2, 3), "Y = Softmax(z)", (3,)), tmp_path / "model.onnx")
    forward = convert(None, ConvertConfig(OnnxFile(str(tmp_path / "model.onnx"), classes=("a", "b", "c"))))
    data = Data(Rows({"X": Z}, np.array([["a", "pad"], ["b", "c"], ["pad", "pad"]])))
    foreseen = check(forward.facts, AddLossConfig(LOSSES["cross_entropy"](), padding="pad"))
    check_training(foreseen, TrainConfig(batch_size=1), data=data)
    with pytest.raises(DataError, match="got: 'pad'"):
        check_training(forward.facts, TrainConfig(batch_size=1), data=data)


def test_steps_marked_as_ignored_leave_the_other_labels_classes():
    text = "g (float[N,5,3] X) => (float[N,5,4] Y) <float[3,4] w = {1,2,3,4,5,6,7,8,9,1,2,3}> { Y = MatMul(X, w) }"
    steps = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    labels = RNG.integers(0, 4, (12, 5))
    labels[::3, 3:] = -100
    data = Data(Rows({"X": RNG.normal(size=(12, 5, 3)).astype(np.float32)}, labels))
    artifact = convert(steps, data=data)
    assert (artifact.facts.task, artifact.facts.classes) == ("multiclass", (0, 1, 2, 3))
    unmarked, marked = (AddLossConfig(LOSSES["cross_entropy"](), padding=mark) for mark in (None, -100))
    with pytest.raises(DataError, match=r"got: -100(.|\n)*If -100 marks elements to ignore"):
        train(derive(add_loss(artifact, unmarked)), TrainConfig(epochs=1), data=data)
    trained = train(derive(add_loss(artifact, marked)), TrainConfig(epochs=1), data=data)
    assert not np.array_equal(trained.initializers["w"], artifact.initializers["w"])
