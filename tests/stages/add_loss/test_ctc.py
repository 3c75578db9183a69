"""CTC (the catalogue's "ctc") against torch's ctc_loss and the textbook's forward recursion."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from scipy.special import log_softmax, logsumexp

from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvergenceError, LossError
from ortpipe.metrics.elements import distance
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses.ctc import CTC
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers.adam import Adam
from ortpipe.stages.train.stage import train

Z = np.round(np.random.default_rng(11).normal(size=(3, 6, 4)), 3)
LABEL = np.array([[1, 1, 2], [3, -1, -1], [2, 3, 2]])
# torch 2.13.0, float64: F.ctc_loss(log_softmax(Z), LABEL, 6 steps each, lengths [3, 1, 3], blank=0, reduction="none"),
# its "mean", and of "sum" the gradient of the first row by Z
TORCH = np.array([5.392771179227673, 8.024646397641408, 3.0903361045945794])
TORCH_MEAN = 3.617449608527387
TORCH_GRADIENT = np.array(
    [
        [0.014794661902002407, -0.46297201570469065, 0.3809735442867149, 0.06720380951597334],
        [-0.348386214907131, -0.3222721205989009, 0.4369888472448478, 0.23366948826118408],
        [-0.6476159554423523, -0.06773794334199229, 0.6013553206740658, 0.11399857811027876],
        [0.05048359438997741, -0.4868739744631493, 0.1260245046627192, 0.31036587541045263],
        [-0.005040287147648532, -0.282472221848507, -0.04667487765673139, 0.33418738665288694],
        [0.11411798049456079, 0.08351604143379633, -0.3916690551516077, 0.19403503322325058],
    ]
)
END = {"raw": "Y = LogSoftmax(z)", "softmax": "Y = Softmax(z)"}


def model(end="Y = Softmax(z)", dtype="double", steps=6, opset=21):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({dtype}[N, {steps}, 4] X) => ({dtype}[N, {steps}, 4] Y) '
        f"<{dtype}[4] w = {{1, 1, 1, 1}}> {{ z = Mul(X, w) {end} }}"
    )


def recursion(z, label, blank):
    """Return −log p(label) by Graves et al. (2006), equations 6 to 8, of scores [T, K]."""
    log_p, label = log_softmax(z, axis=1), [k for k in label if k >= 0]
    spread = [blank, *(s for k in label for s in (k, blank))]
    alpha = np.full(len(spread), -np.inf)
    alpha[:2] = log_p[0, spread[:2]]
    for row in log_p[1:]:
        before, alpha = alpha, np.full(len(spread), -np.inf)
        for s, k in enumerate(spread):
            reach = 3 if k != blank and s > 1 and spread[s - 2] != k else 2
            alpha[s] = logsumexp(before[max(0, s - reach + 1) : s + 1]) + row[k]
    return -logsumexp(alpha[-2:])


def loss_of(run, artifact, z, label):
    fed = feeds(artifact.model, artifact.facts, Rows({"X": z}, label))
    return run(artifact.model, fed, [artifact.facts.loss])[artifact.facts.loss]


@pytest.mark.parametrize("end", END)
def test_it_is_the_loss_of_torch(run, end):
    forward = convert(model(END[end]))
    total = add_loss(forward, AddLossConfig(CTC(), "sum", elements="sum", padding=-1))
    assert loss_of(run, total, Z, LABEL) == pytest.approx(TORCH.sum(), rel=1e-12)
    mean = add_loss(forward, AddLossConfig(CTC(), "mean", padding=-1))
    assert loss_of(run, mean, Z, LABEL) == pytest.approx(TORCH_MEAN, rel=1e-12)


@pytest.mark.parametrize("blank", [0, 2, -1])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_it_is_the_textbooks_recursion(run, blank, steps):
    z = np.random.default_rng(steps).normal(size=(4, steps, 4)) * 3
    classes = [k for k in range(4) if k != blank % 4]
    label = np.array(classes)[np.random.default_rng(5).integers(0, 3, (4, 3))]
    label[0], label[1, 1:], label[2, 2:] = -9, -9, -9  # one row has no label at all
    config = AddLossConfig(CTC(blank, zero_infinity=True), "sum", elements="sum", padding=-9)
    artifact = add_loss(convert(model(steps="T")), config)
    each = np.array([recursion(row, own, blank % 4) for row, own in zip(z, label, strict=True)])
    assert loss_of(run, artifact, z, label) == pytest.approx(each[np.isfinite(each)].sum(), rel=1e-12)


def test_its_gradient_is_the_slope_and_torchs(run, central_differences):
    loss = add_loss(convert(model()), AddLossConfig(CTC(), "sum", elements="sum", padding=-1))
    artifact = derive(loss, DeriveConfig(inputs=("X",)))
    fed = feeds(artifact.model, artifact.facts, Rows({"X": Z}, LABEL))
    gradient = run(artifact.model, fed)[artifact.facts.input_gradients["X"]]
    np.testing.assert_allclose(gradient, central_differences(artifact.model, artifact.facts.loss, fed, "X"), atol=1e-8)
    np.testing.assert_allclose(gradient[0], TORCH_GRADIENT, atol=1e-12)


def test_a_blank_ends_a_row_as_padding_does(run):
    artifact = add_loss(convert(model()), AddLossConfig(CTC(), "sum", elements="sum"))
    assert loss_of(run, artifact, Z, np.maximum(LABEL, 0)) == pytest.approx(TORCH.sum(), rel=1e-12)


@pytest.mark.parametrize(("zero", "expected"), [(False, np.inf), (True, 4.1914567382201495 + 7.337811626490069)])
def test_a_label_too_long_for_the_steps_is_infinite_or_counts_nothing(run, zero, expected):  # as torch's zero_infinity
    config = AddLossConfig(CTC(zero_infinity=zero), "sum", elements="sum", padding=-1)
    loss = add_loss(convert(model(steps=3)), config)
    artifact = derive(loss, DeriveConfig(inputs=("X",)))
    fed = feeds(artifact.model, artifact.facts, Rows({"X": Z[:, :3]}, LABEL))
    found = run(artifact.model, fed)
    assert found[artifact.facts.loss] == pytest.approx(expected, rel=1e-12)
    assert not found[artifact.facts.input_gradients["X"]][0].any()
    if not zero:
        derived, data = derive(loss, DeriveConfig(parameters=("w",))), Data(Rows({"X": Z[:, :3]}, LABEL))
        with pytest.raises(ConvergenceError, match="zero_infinity=true"):
            train(derived, TrainConfig(epochs=1, batch_size=2), data=data)


@pytest.mark.parametrize(("dtype", "opset", "scale"), [("float", 17, 1), ("float", 21, 50), ("float16", 21, 1)])
def test_it_holds_in_other_types_opsets_and_scales(run, dtype, opset, scale):
    found = model("Y = Softmax(z)", dtype, opset=opset)
    one = np.ones(4, np.float16 if dtype == "float16" else np.float32)  # the parser reads halves as bits
    found.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(one, "w"))
    artifact = add_loss(convert(found), AddLossConfig(CTC(), "sum", elements="sum", padding=-1))
    expected = sum(recursion(row * scale, own, 0) for row, own in zip(Z, LABEL, strict=True))
    assert loss_of(run, artifact, Z * scale, LABEL) == pytest.approx(expected, rel=1e-5 if dtype == "float" else 5e-3)


def test_training_learns_to_read(run):
    """Rows spell their label once each; the net sees a one-hot of it, and has to find the blank between."""
    rng = np.random.default_rng(2)
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 8, 4] X) => (float[N, 8, 4] Y)
    <float[4, 4] w = {W}, float[4] b = {0, 0, 0, 0}> { h = MatMul(X, w) z = Add(h, b) Y = Softmax(z) }"""
    weights = ", ".join(f"{v:.4f}" for v in rng.normal(size=16) * 0.1)
    forward = convert(onnx.parser.parse_model(text.replace("W", weights, 1)))
    label = np.full((40, 4), -1)
    steps = np.zeros((40, 8), int)
    for row in range(40):
        length = rng.integers(1, 5)
        label[row, :length] = rng.integers(1, 4, length)
        steps[row, 1 : 2 * length : 2] = label[row, :length]
    rows = Rows({"X": np.eye(4, dtype=np.float32)[steps]}, label)
    data = Data(rows, test=rows, validation=rows)
    loss = add_loss(forward, AddLossConfig(CTC(), padding=-1))
    config = TrainConfig(
        optimizer=Adam(lr=0.1), epochs=30, batch_size=8, early_stop=EarlyStopConfig(monitor="character_error_rate")
    )
    result = evaluate(train(derive(loss), config, data=data), data=data)
    assert set(result.facts.metrics) == {"character_error_rate", "sequence_accuracy"}
    assert result.facts.metrics["character_error_rate"]["trained"] == 0
    assert result.facts.metrics["sequence_accuracy"]["trained"] == 1
    assert result.facts.metrics["character_error_rate"]["before"] > 0.2


def test_the_distance_is_levenshteins():
    def plain(a, b):
        if not a or not b:
            return len(a) + len(b)
        return min(plain(a[1:], b) + 1, plain(a, b[1:]) + 1, plain(a[1:], b[1:]) + (a[0] != b[0]))

    rng = np.random.default_rng(3)
    both = [np.where(np.arange(5) < rng.integers(0, 6, (30, 1)), rng.integers(0, 3, (30, 5)), -1) for _ in "ab"]
    expected = [plain(*([k for k in row if k >= 0] for row in pair)) for pair in zip(*both, strict=True)]
    assert distance(*both).tolist() == expected


def test_what_is_no_sequence_and_a_blank_that_is_no_class_are_refused():
    image = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 3, 2, 2] X) => (float[N, 3, 2, 2] Y)
        <float[3, 1, 1] w = {1, 1, 1}> { z = Mul(X, w) Y = Softmax <axis = 1> (z) }"""
    )
    with pytest.raises(LossError, match="steps of a sequence"):
        add_loss(convert(image), AddLossConfig(CTC()))
    with pytest.raises(LossError, match="class's index"):
        add_loss(convert(model()), AddLossConfig(CTC(blank=4)))
