"""Losses that an .onnx file computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from ortpipe.errors import LossError
from ortpipe.pipeline.digest import identity
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.stage import derive

STUDENT = """g (double[N,2] X) => (double[N,3] y) <double[2,3] w = {0.1, -0.2, 0.3, 0.4, 0.5, -0.6}>
 { z = MatMul(X, w) y = Softmax(z) }"""
LINEAR = "g (double[N,2] X) => (double[N,1] y) <double[2,1] w = {0.5, -2}> { y = MatMul(X, w) }"
SQUARED = """l (double[N,K] {a}, double[N,K] {b}) => (double[N,K] terms) <double c = {{2}}>
 {{ d = Sub({a}, {b}) q = Mul(d, d) terms = Mul(q, c) }}"""
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


def test_the_content_of_the_file_is_part_of_the_key_and_its_place_is_not(file):
    texts = (SQUARED.format(a="a", b="b"), SQUARED.format(a="a", b="b"), SQUARED.format(a="c", b="d"))
    told = [identity(AddLossConfig(LOSSES["onnx"](file(text, name=f"{i}.onnx")))) for i, text in enumerate(texts)]
    assert told[0] == told[1] != told[2]


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
