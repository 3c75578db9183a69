"""InfoNCE over the rows of a batch, pairs of embeddings, and their metrics, against published ones and scikit-learn."""

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
from ortpipe.errors import ConvertError, EvaluateError, LossError, TrainError
from ortpipe.metrics.pairs import hit_rate, mean_reciprocal_rank, ranks
from ortpipe.stages.add_loss.early import checked_losses
from ortpipe.stages.convert.changes.config import NewHead
from ortpipe.stages.derive.config import DeriveConfig

RNG = np.random.default_rng(0)
PAIRS = "g (float[N,6] X) => (float[N,6] y) <float[6] w = {0, 0, 0, 0, 0, 0}> { y = Add(X, w) }"
HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
# as CLIP's export: two towers, and a matrix of scores, whose second axis is that of the rows, too
TOWERS = f"""{HEAD} g (float[B,6] image, float[B,4] text)
  => (float[B,B] logits, float[B,3] u, float[B,3] v, float[B,4] wide)
  <float[6,3] p = {{*18}}, float[4,3] q = {{*12}}> {{
    u = MatMul(image, p) t = Tanh(text) v = MatMul(t, q) vt = Transpose(v) logits = MatMul(u, vt) wide = Relu(t) }}"""
ENCODER = f"""{HEAD} g (int64[B,T] ids, int64[B,T] mask) => (float[B,T,3] hidden, float[B,3] mean)
  <float[20,3] words = {{*60}}, int64[1] one = {{1}}, int64[1] two = {{2}}> {{
    hidden = Gather(words, ids) kept = Cast<to=1>(mask) each = Unsqueeze(kept, two) real = Mul(hidden, each)
    sum = ReduceSum<keepdims=0>(real, one) count = ReduceSum<keepdims=0>(each, one) mean = Div(sum, count) }}"""
NUMBERS = np.arange(32.0)


def file(text):
    """Return a model with random numbers in place of each *count."""
    random = np.random.default_rng(1)
    return onnx.parser.parse_model(
        re.sub(r"\*(\d+)", lambda count: ", ".join(f"{x:.4f}" for x in random.normal(size=int(count[1]))), text)
    )


def published(pairs, temperature=0.05, symmetric=True, label=None):
    """Return the loss of open_clip 3.2 (ClipLoss) or sentence-transformers 6.2 (MultipleNegativesRankingLoss).

    The former is the mean of cross_entropy(s, arange) and cross_entropy(s.T, arange), the latter only the first.
    """
    a, b = (half / np.linalg.norm(half, axis=1, keepdims=True) for half in np.split(pairs, 2, axis=1))
    scores = a @ b.T / temperature
    if label is not None:
        scores[(label == label.T) & ~np.eye(len(label), dtype=bool)] = -np.inf
    ways = [scores, scores.T] if symmetric else [scores]
    return np.mean([-np.diag(special.log_softmax(s, axis=1)).mean() for s in ways])


def scored(from_text, reduction="mean", dtype="float64", **settings):
    return add_loss(from_text(PAIRS, dtype=dtype), AddLossConfig(LOSSES["info_nce"](**settings), reduction))


@pytest.mark.parametrize("symmetric", [True, False], ids=["CLIP", "MultipleNegativesRankingLoss"])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_its_value_is_that_of_the_published_losses(from_text, run, symmetric, temperature) -> None:
    pairs, label = RNG.normal(size=(8, 6)), np.arange(8.0)[:, None]
    model = scored(from_text, temperature=temperature, symmetric=symmetric)
    expected = published(pairs, temperature, symmetric)
    assert run(model.model, {"X": pairs, "label": label})["loss"] == pytest.approx(expected, rel=1e-12)
    label[5] = label[2]
    expected = published(pairs, temperature, symmetric, label)
    assert run(model.model, {"X": pairs, "label": label})["loss"] == pytest.approx(expected, rel=1e-12)


def test_its_value_is_that_of_sentence_transformers(from_text, run) -> None:
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    pairs = RNG.normal(size=(8, 6))
    halves = [torch.tensor(half) for half in np.split(pairs, 2, axis=1)]
    expected = losses.MultipleNegativesRankingLoss(None, scale=20).compute_loss_from_embeddings(halves, None)
    got = run(scored(from_text, symmetric=False).model, {"X": pairs, "label": np.arange(8.0)[:, None]})["loss"]
    assert got == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("symmetric", [True, False])
def test_its_gradient_is_that_of_central_differences(from_text, run, central_differences, symmetric) -> None:
    model = scored(from_text, "sum", symmetric=symmetric, temperature=0.5)
    feeds = {"X": RNG.normal(size=(5, 6)), "label": np.array([[0.0], [1], [2], [1], [4]])}
    slope = central_differences(model.model, "loss", feeds, "X")
    gradient = derive(model, DeriveConfig(inputs=("X",)))
    np.testing.assert_allclose(run(gradient.model, feeds)["X_grad"], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("pairs", [np.zeros((4, 6)), np.tile(RNG.normal(size=6), (4, 1)) * 1e3, np.ones((1, 6))])
def test_zero_equal_and_single_rows_have_finite_values(from_text, run, pairs) -> None:
    gradient = derive(scored(from_text, dtype="float32"), DeriveConfig(inputs=("X",)))
    feeds = {"X": pairs.astype(np.float32), "label": np.arange(len(pairs), dtype=np.float32)[:, None]}
    got = run(gradient.model, feeds)
    assert got["loss"] == pytest.approx(np.log(len(pairs)), abs=1e-5)  # of one row, which has no others, 0
    assert np.isfinite(got["X_grad"]).all()


def views(rows=32):
    """Return rows whose image and text show the same three numbers."""
    shown = RNG.normal(size=(rows, 3))
    mixed = [(shown @ RNG.normal(size=(3, width)) / 3).astype(np.float32) for width in (6, 4)]
    return dict(zip(("image", "text"), mixed, strict=True))


@pytest.fixture(scope="module")
def two_towers():
    rows = Rows(views(), NUMBERS)
    data = Data(rows, validation=rows, test=rows)
    return data, convert(file(TOWERS), ConvertConfig(Given(pair=("u", "v"))), data=data)


def trained(model, data, epochs=40, **settings):
    gradient = derive(add_loss(model, AddLossConfig(LOSSES["info_nce"]()), data=data))
    return train(gradient, TrainConfig(OPTIMIZERS["adam"](lr=0.02), epochs=epochs, **settings), data=data)


def test_two_outputs_are_trained_as_a_pair(two_towers, run) -> None:
    data, model = two_towers
    inputs = data.train.inputs
    outputs = run(file(TOWERS), inputs)
    np.testing.assert_allclose(run(model.model, inputs)["pair"], np.hstack([outputs["u"], outputs["v"]]), rtol=1e-5)
    result = evaluate(trained(model, data, epochs=150), EvaluateConfig(), data=data)
    metrics = result.facts.metrics
    assert metrics["hit_rate"]["trained"] > metrics["hit_rate"]["before"] + 0.3
    assert {*metrics} == {"hit_rate", "mean_reciprocal_rank"}
    assert "baseline" not in metrics["hit_rate"]


def test_the_automatic_loss_of_a_pair_is_info_nce(two_towers) -> None:
    data, model = two_towers
    config, notes = checked_losses(model.facts, AddLossConfig(LOSSES["auto"]()), data)
    assert config.loss == LOSSES["info_nce"]()
    assert notes == ["the automatic loss is info_nce (temperature=0.05, symmetric=True)"]


def test_the_automatic_loss_of_a_pair_with_a_new_head_is_that_of_the_head(two_towers) -> None:
    inputs = two_towers[0].train.inputs
    data = Data(Rows(inputs, np.arange(32.0) % 2))
    config = ConvertConfig(Given(pair=("u", "v")), head=NewHead(({"linear": 1}, "sigmoid"), cut="pair"))
    model = convert(file(TOWERS), config, data=data)
    chosen, _ = checked_losses(model.facts, AddLossConfig(LOSSES["auto"]()), data)
    assert chosen.loss == LOSSES["log"]()


def test_one_output_is_that_of_both_inputs_of_a_row(run) -> None:
    ids = RNG.integers(0, 20, (32, 2, 5))
    mask = (np.arange(5) < RNG.integers(1, 6, (32, 2, 1))).astype(np.int64)
    rows = Rows({"ids": ids, "mask": mask}, NUMBERS)
    data = Data(rows, test=rows)
    model = convert(file(ENCODER), ConvertConfig(Given(pair=("mean",))), data=data)
    each = [run(file(ENCODER), {"ids": ids[:, i], "mask": mask[:, i]})["mean"] for i in (0, 1)]
    np.testing.assert_allclose(run(model.model, rows.inputs)["pair"], np.hstack(each), rtol=1e-5)
    losses = trained(model, data).tensors["losses/train"]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("text", "pair", "message"),
    [
        (TOWERS, ("u", "wide"), r"one or two embeddings \[N, K\] of the same width(.|\n)*wide"),
        (TOWERS, ("u", "v", "u"), "one or two embeddings"),
        (TOWERS, ("u", "w"), "must name outputs, or values(.|\n)*'w'"),
        (TOWERS, ("u", "image"), "must name outputs, or values(.|\n)*'image'"),
        (ENCODER, ("hidden",), "one vector of floats per row(.|\n)*Choose mean"),
    ],
)
def test_values_that_are_no_pair_are_rejected(text, pair, message) -> None:
    with pytest.raises(ConvertError, match=message):
        convert(file(text), ConvertConfig(Given(pair=pair)))


def test_rows_without_a_second_input_are_rejected() -> None:
    rows = Rows({"ids": np.ones((8, 5), np.int64), "mask": np.ones((8, 5), np.int64)}, np.arange(8.0))
    with pytest.raises(Exception, match=r"ids(.|\n)*2"):
        convert(file(ENCODER), ConvertConfig(Given(pair=("mean",))), data=Data(rows))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (np.full(32, 3.0), "rows with different labels(.|\n)*32 rows with the label 3"),
        (NUMBERS + 2**24, "whole numbers from 0 to 2²⁴"),
        (NUMBERS / 2, "whole numbers"),
    ],
)
def test_labels_that_do_not_number_pairs_are_rejected(two_towers, label, message) -> None:
    data, model = two_towers
    with pytest.raises(LossError, match=message):
        add_loss(model, AddLossConfig(LOSSES["info_nce"]()), data=Data(Rows(data.train.inputs, label)))


def test_predictions_that_are_no_pairs_are_rejected(from_text) -> None:
    for sizes in ("N,3", "N,2,4"):
        text = f"g (float[{sizes}] X) => (float[{sizes}] y) <float[1] w = {{0}}> {{ y = Add(X, w) }}"
        with pytest.raises(LossError, match=r"pairs of embeddings(.|\n)*convert.source.pair|pairs of embeddings"):
            add_loss(from_text(text), AddLossConfig(LOSSES["info_nce"]()))
    with pytest.raises(LossError, match="padding"):
        add_loss(from_text(PAIRS), AddLossConfig(LOSSES["info_nce"](), padding=-1))
    with pytest.raises(LossError, match="info_nce has no row weights"):
        add_loss(from_text(PAIRS), AddLossConfig(LOSSES["info_nce"](), sample_weight=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"accumulate": 4}, "info_nce reads a whole batch"), ({"batch_size": 1}, "info_nce compares the rows of a batch")],
)
def test_parts_of_a_batch_and_single_rows_are_rejected(two_towers, settings, message) -> None:
    data, model = two_towers
    with pytest.raises(TrainError, match=message):
        trained(model, data, epochs=1, **settings)


def test_a_last_batch_of_one_row_is_rejected_and_can_be_dropped(two_towers) -> None:
    _, model = two_towers
    data = Data(Rows(views(33), np.arange(33.0)))
    with pytest.raises(TrainError, match=r"32 for 33 rows: the last batch has one row(.|\n)*drop_last=true"):
        trained(model, data, epochs=1, batch_size=32)
    result = trained(model, data, epochs=1, batch_size=32, drop_last=True)
    assert result.tensors["losses/train"] == pytest.approx(result.tensors["losses/step"])


def test_sorted_labels_need_shuffled_rows(two_towers) -> None:
    _, model = two_towers
    data = Data(Rows(views(), NUMBERS // 8))
    with pytest.raises(TrainError, match=r"label 0 for all rows from 0 to 7(.|\n)*shuffle=true"):
        trained(model, data, epochs=1, batch_size=8, shuffle=False)
    assert trained(model, data, epochs=1, batch_size=8).tensors["losses/step"].all()


def test_intervals_of_rows_that_are_compared_with_each_other_are_rejected(two_towers) -> None:
    data, model = two_towers
    with pytest.raises(EvaluateError, match="one prediction per row"):
        evaluate(trained(model, data, epochs=1), EvaluateConfig(bootstrap=10), data=data)


def test_ranks_are_those_of_scikit_learn_and_equal_embeddings_come_last() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    pairs, label = RNG.normal(size=(50, 6)), np.arange(50.0)[:, None]
    similar = sklearn.pairwise.cosine_similarity(*np.split(pairs, 2, axis=1))
    top = sklearn.top_k_accuracy_score(np.arange(50), similar, k=3)
    assert hit_rate(label, pairs, None, 3) == pytest.approx(top)
    rank = sklearn.label_ranking_average_precision_score(np.eye(50), similar)  # with one match each, the mean of 1/rank
    assert mean_reciprocal_rank(label, pairs, None) == pytest.approx(rank)
    assert ranks(label, np.ones((50, 6))).tolist() == [50] * 50
    assert ranks(label // 2, np.ones((50, 6))).tolist() == [49] * 50
