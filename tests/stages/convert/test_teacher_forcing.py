"""A file with an encoder and a decoder, as Whisper and T5 are exported, trains by teacher forcing."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import pytest
from scipy import special

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    ConvertConfig,
    Data,
    EvaluateConfig,
    Given,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    evaluate,
    train,
)

WORDS, START, PAD, WIDTH = 7, 0, -100, 8
# The decoder attends to the encoder's steps, and its position t only reads the tokens up to t.
TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[batch,frames,4] input_features, int64[batch,length] decoder_input_ids) => (float[batch,length,7] logits)
<float[4,8] encoder = {*32}, float[7,8] tokens = {*56}, float[8,7] output = {*56}, int64 zero = {0}, int64 one = {1}> {
  projected = MatMul(input_features, encoder) states = Tanh(projected)
  embedded = Gather(tokens, decoder_input_ids) keys = Transpose<perm=[0, 2, 1]>(states)
  scores = MatMul(embedded, keys) shares = Softmax<axis=-1>(scores) context = MatMul(shares, states)
  past = CumSum(embedded, one) both = Add(context, past) hidden = Tanh(both) logits = MatMul(hidden, output) }"""


def file():
    """Return the model with random weights."""
    random = np.random.default_rng(1)
    numbers = re.compile(r"\*(\d+)")
    text = numbers.sub(lambda count: ", ".join(f"{x:.4f}" for x in random.normal(size=int(count[1]))), TEXT)
    return onnx.parser.parse_model(text)


@pytest.fixture(scope="module")
def data():
    """Return sequences of which each token follows from the one before and from the row's features."""
    random = np.random.default_rng(0)
    features = random.normal(size=(64, 5, 4)).astype(np.float32)
    label, first = np.full((64, 6), PAD), features.mean(axis=1).argmax(axis=1)
    for row, length in enumerate(random.integers(2, 7, 64)):
        label[row, :length] = 1 + (first[row] + np.arange(length)) % (WORDS - 1)
    shifted = np.concatenate([np.full((64, 1), START), np.where(label == PAD, START, label)[:, :-1]], axis=1)
    rows = Rows({"input_features": features, "decoder_input_ids": shifted}, label)
    return Data(rows, test=rows)


@pytest.fixture(scope="module")
def scored(data):
    settings = Given(task="multiclass", scores="logits", classes=tuple(range(WORDS)))
    model = convert(file(), ConvertConfig(settings), data=data)
    return add_loss(model, AddLossConfig(LOSSES["cross_entropy"](), padding=PAD), data=data)


@pytest.fixture(scope="module")
def trained(scored, data):
    return train(derive(scored), TrainConfig(OPTIMIZERS["adam"](lr=0.02), epochs=100), data=data)


def test_the_loss_is_the_mean_cross_entropy_of_the_real_tokens_of_each_row(scored, data, run) -> None:
    label, real = data.train.label, data.train.label != PAD
    logits = run(file(), data.train.inputs)["logits"].astype(np.float64)
    chosen = np.where(real, label, 0)[..., None]
    terms = -np.take_along_axis(special.log_softmax(logits, axis=-1), chosen, -1)[..., 0]
    expected = np.mean((terms * real).sum(axis=1) / real.sum(axis=1))
    fed = {**data.train.inputs, scored.facts.label: np.where(real, label, -1)[..., None]}
    assert run(scored.model, fed)["loss"] == pytest.approx(expected, rel=1e-5)


def test_training_teaches_each_token_from_those_before_it(trained, data, run) -> None:
    accuracy = evaluate(trained, EvaluateConfig(metrics=("accuracy",)), data=data).facts.metrics["accuracy"]
    assert accuracy["trained"] > 0.9 > 0.5 > accuracy["before"]
    tokens, label = np.full((64, 1), START), data.train.label
    for _ in range(label.shape[1]):  # generate: the trained file reads its own tokens
        inputs = {"input_features": data.train.inputs["input_features"], "decoder_input_ids": tokens}
        tokens = np.concatenate([tokens, run(trained.model, inputs)["logits"][:, -1:].argmax(axis=-1)], axis=1)
    assert np.mean((tokens[:, 1:] == label)[label != PAD]) > 0.8
