"""Losses that hold another model: one that an .onnx file computes, and what a teacher predicts."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import LossError, ModelError
from ortpipe.pipeline.digest import identity
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.stage import train

STUDENT = """g (double[N,2] X) => (double[N,3] y) <double[2,3] w = {0.1, -0.2, 0.3, 0.4, 0.5, -0.6}>
 { z = MatMul(X, w) y = Softmax(z) }"""
TEACHER = "g (double[M,2] X) => (double[M,3] y) <double[2,3] w = {1, -2, 0.5, 0.25, 3, -1}, double[3] b = {0, 1, 0}>"
W, B = np.array([[1, -2, 0.5], [0.25, 3, -1]]), np.array([0.0, 1, 0])
V = np.array([[0.1, -0.2, 0.3], [0.4, 0.5, -0.6]])
ENDS = {
    "logits": "{ z = MatMul(X, w) y = Add(z, b) }",
    "softmax": "{ h = MatMul(X, w) z = Add(h, b) y = Softmax(z) }",
    "probabilities": "{ h = MatMul(X, w) z = Add(h, b) e = Exp(z) s = ReduceSum <keepdims = 1> (e, a) y = Div(e, s) }",
}
X = np.random.default_rng(2).normal(size=(6, 2))
Y = np.arange(6).reshape(-1, 1) % 3


@pytest.fixture
def file(tmp_path):
    def write(text, opset=21, name="other.onnx"):
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]>\n{text}')
        onnx.save(model, tmp_path / name)
        return str(tmp_path / name)

    return write


@pytest.fixture
def student(from_text):
    return from_text(STUDENT, task="multiclass", logits="z", classes=(0, 1, 2))


def teacher(end):
    head = TEACHER[:-1] + ", int64[1] a = {1}>" if end == "probabilities" else TEACHER
    return head + ENDS[end]


def log_softmax(z):
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def hinton(t, z, y, temperature, alpha):
    """Return Hinton et al.'s loss of each row; PyTorch: F.kl_div(log q, p, reduction="none") and F.cross_entropy."""
    log_p, log_q = log_softmax(t / temperature), log_softmax(z / temperature)
    soft = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    return alpha * temperature**2 * soft - (1 - alpha) * np.take_along_axis(log_softmax(z), y, axis=1).ravel()


@pytest.mark.parametrize("opset", [15, 17, 18, 21])
@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 1.0), (3.0, 0.7), (2.0, 0.0)])
def test_distillation_is_its_formula_with_the_gradient_of_differences(
    student, file, run, central_differences, temperature, alpha, opset
):
    path = file(teacher("logits"), opset)
    scored = add_loss(student, AddLossConfig(LOSSES["distill"](path, temperature, alpha)))
    feeds = {"X": X, "label": Y}
    expected = hinton(X @ W + B, X @ V, Y, temperature, alpha).mean()
    assert run(scored.model, feeds)["loss"] == pytest.approx(expected, rel=1e-12)
    ready = derive(scored, DeriveConfig())
    slope = central_differences(scored.model, "loss", feeds, "w")
    np.testing.assert_allclose(run(ready.model, feeds)[ready.facts.gradients["w"]], slope, atol=1e-8)


@pytest.mark.parametrize(
    ("end", "scores"), [("softmax", None), ("softmax", "probabilities"), ("probabilities", "probabilities")]
)
def test_a_teacher_may_end_in_probabilities(student, file, run, end, scores):
    loss = LOSSES["distill"](file(teacher(end)), 2.0, 0.5, scores=scores)
    got = run(add_loss(student, AddLossConfig(loss)).model, {"X": X, "label": Y})["loss"]
    assert got == pytest.approx(hinton(X @ W + B, X @ V, Y, 2.0, 0.5).mean(), rel=1e-9)


def test_a_teacher_may_leave_its_number_of_classes_open(student, file, run):
    loss = LOSSES["distill"](file(teacher("logits").replace("[M,3]", "[M,K]")), 2.0, 0.5)
    got = run(add_loss(student, AddLossConfig(loss)).model, {"X": X, "label": Y})["loss"]
    assert got == pytest.approx(hinton(X @ W + B, X @ V, Y, 2.0, 0.5).mean(), rel=1e-12)


def test_a_student_of_probabilities_alone_learns_too(from_text, file, run):
    student = from_text(STUDENT, task="multiclass", classes=(0, 1, 2))
    got = run(add_loss(student, AddLossConfig(LOSSES["distill"](file(teacher("logits"))))).model, {"X": X, "label": Y})
    assert got["loss"] == pytest.approx(hinton(X @ W + B, X @ V, Y, 2.0, 0.5).mean(), rel=1e-9)


def test_a_teacher_of_other_operators_and_types_is_frozen_and_goes_when_training_ends(student, file):
    text = """g (float[N,2] X) => (float[N,3] y, int64[N] k) <float[2,3] w = {1, -2, 0.5, 0.25, 3, -1}> {
      n = ai.onnx.ml.Normalizer <norm = "L2"> (X)  y = MatMul(n, w)  k = ArgMax <axis = 1, keepdims = 0> (y) }"""
    scored = add_loss(student, AddLossConfig(LOSSES["distill"](file(text), alpha=1.0)))
    assert scored.facts.parameters == student.facts.parameters
    assert list(scored.initializers) == ["w"]
    rows = Data(Rows({"X": X}, Y.ravel()))
    trained = train(derive(scored), TrainConfig(epochs=40, batch_size=6), data=rows)
    losses = trained.tensors["losses/train"]
    assert losses[-1] < losses[0]
    assert not [n.op_type for n in trained.model.graph.node if n.op_type in ("Normalizer", "ArgMax")]


@pytest.mark.parametrize("loss", ["distill", "onnx"])
def test_the_content_of_the_file_is_part_of_the_key_and_its_place_is_not(file, loss):
    texts = (teacher("logits"), teacher("logits"), teacher("softmax"))
    told = [identity(AddLossConfig(LOSSES[loss](file(text, name=f"{i}.onnx")))) for i, text in enumerate(texts)]
    assert told[0] == told[1] != told[2]


WRONG = {
    "what it holds": ("probabilities", {}, r"must be known(.|\n)*'y', computed by Div(.|\n)*loss\.scores=logits"),
    "its output": ("logits", {"output": "z"}, r"loss\.output(.|\n)*Its float outputs are y"),
}


@pytest.mark.parametrize(("end", "settings", "message"), WRONG.values(), ids=WRONG)
def test_a_teacher_that_leaves_a_doubt_is_refused(student, file, end, settings, message):
    with pytest.raises(LossError, match=message):
        add_loss(student, AddLossConfig(LOSSES["distill"](file(teacher(end)), **settings)))


def test_a_teacher_of_other_inputs_or_classes_is_refused(student, file, tmp_path):
    several = "g (double[N,2] X, double[N,2] Z) => (double[N,3] y) <double[2,3] w = {1, 2, 3, 4, 5, 6}>"
    with pytest.raises(LossError, match=r"by name(.|\n)*got: Z"):
        add_loss(student, AddLossConfig(LOSSES["distill"](file(several + "{ h = Add(X, Z) y = MatMul(h, w) }"))))
    two = "g (double[N,2] X) => (double[N,2] y) <double[2,2] w = {1, 2, 3, 4}> { y = MatMul(X, w) }"
    with pytest.raises(LossError, match="a model of 3 classes"):
        add_loss(student, AddLossConfig(LOSSES["distill"](file(two))))
    with pytest.raises(ModelError, match="must exist") as error:
        add_loss(student, AddLossConfig(LOSSES["distill"](str(tmp_path / "nowhere.onnx"))))
    assert error.value.key == "loss.path"


LINEAR = "g (double[N,2] X) => (double[N,1] y) <double[2,1] w = {0.5, -2}> { y = MatMul(X, w) }"
SQUARED = """l (double[N,K] {a}, double[N,K] {b}) => (double[N,K] terms) <double c = {{2}}>
 {{ d = Sub({a}, {b}) q = Mul(d, d) terms = Mul(q, c) }}"""


@pytest.mark.parametrize(("a", "b"), [("prediction", "label"), ("input", "target")])
def test_a_loss_in_a_file_is_inlined_with_its_gradient(from_text, file, run, central_differences, a, b):
    loss = LOSSES["onnx"](file(SQUARED.format(a=a, b=b), 18))
    scored = add_loss(from_text(LINEAR), AddLossConfig(loss))
    feeds = {"X": X, "label": X[:, :1] + 1}
    difference = X @ [[0.5], [-2]] - feeds["label"]
    assert run(scored.model, feeds)["loss"] == pytest.approx(2 * (difference**2).mean(), rel=1e-12)
    assert list(scored.initializers) == ["w"]
    ready = derive(scored)
    slope = central_differences(scored.model, "loss", feeds, "w")
    np.testing.assert_allclose(run(ready.model, feeds)[ready.facts.gradients["w"]], slope, atol=1e-7)


def test_a_loss_in_a_file_may_read_logits_and_class_indices(student, file, run):
    text = """l (double[N,3] logits, int64[N,1] label) => (double[N,1] terms) {
      p = LogSoftmax(logits)  g = GatherElements <axis = 1> (p, label)  terms = Neg(g) }"""
    got = run(add_loss(student, AddLossConfig(LOSSES["onnx"](file(text)))).model, {"X": X, "label": Y})["loss"]
    ours = run(add_loss(student, AddLossConfig(LOSSES["cross_entropy"]())).model, {"X": X, "label": Y})["loss"]
    assert got == pytest.approx(ours, rel=1e-12)


def test_a_loss_in_a_file_with_other_inputs_is_refused(from_text, file):
    text = "l (double[N,K] a, double[N,K] b, double[N,K] c) => (double[N,K] t) { d = Sub(a, b) t = Mul(d, c) }"
    with pytest.raises(LossError, match=r"inputs a, b, c and outputs t"):
        add_loss(from_text(LINEAR), AddLossConfig(LOSSES["onnx"](file(text))))
