"""What goes around an optimizer: clipping, decay, factors, accumulation, averaging, loss scaling."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from stages.train.parts import BATCH, CASES, EPOCHS, ROWS, START, WEIGHTS, rows, trained, updates

from ortpipe.artifact import in_folder
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, TrainError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.early import check
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (TYPE[N,3] X) => (TYPE[N,1] y)
 <TYPE[3,2] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}, TYPE[2] b = {0.2, -0.1}, TYPE[2,1] u = {0.8, -0.6}>
 { h = MatMul(X, w) a = Add(h, b) t = Tanh(a) y = MatMul(t, u) }"""
RECORDED = json.loads(WEIGHTS.read_text())  # by PyTorch 2.13


def parsed(dtype, text=TEXT):
    """Return the model of `text` in a type; the text format writes no halves."""
    model = onnx.parser.parse_model(text.replace("TYPE", "float" if dtype == "float16" else dtype))
    if dtype == "float16":
        for tensor in model.graph.initializer:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(dtype), tensor.name))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return model


def gradients(dtype="double", reduction="mean", text=TEXT):
    return derive(add_loss(convert(parsed(dtype, text)), AddLossConfig(LOSSES["l2"](), reduction)))


def config(optimizer="sgd", settings=None, clip=None, **parts):
    given = {"epochs": EPOCHS, "batch_size": BATCH, "shuffle": False, **parts}
    return TrainConfig(OPTIMIZERS[optimizer](**(settings or {})), clip=ClipConfig(**(clip or {})), **given)


def data(dtype=np.float64):
    X, y = (array.astype(dtype) for array in rows())
    part = Rows({"X": X}, y)
    return Data(part, part, part)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_pytorch(case):
    optimizer, settings, parts, *_ = CASES[case]
    result = train(gradients(), config(optimizer, settings, **parts), data=data())
    for name, expected in RECORDED[case].items():
        np.testing.assert_allclose(result.tensors[f"parameter/{name}"], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_the_recorded_weights_are_what_pytorch_gives(case):
    pytest.importorskip("torch", reason="its weights are recorded in parts.json")
    for name, array in trained(case).items():
        np.testing.assert_allclose(array, RECORDED[case][name], rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_every_case_differs_from_the_optimizer_alone(case):
    optimizer, settings, *_ = CASES[case]
    alone = train(gradients(), config(optimizer, settings), data=data())
    assert abs(alone.tensors["parameter/w"] - RECORDED[case]["w"]).max() > 1e-4


def test_accumulated_batches_are_one_large_batch():
    parts = config(accumulate=2, epochs=3), config(batch_size=2 * BATCH, epochs=3)
    whole = Rows({"X": rows()[0][:16]}, rows()[1][:16])
    small, large = (train(gradients(), part, data=Data(whole)).tensors for part in parts)
    for name in ("parameter/w", "parameter/u", "losses/step", "losses/train"):
        np.testing.assert_allclose(small[name], large[name], rtol=1e-12)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_the_partial_batch_may_be_left_out(accumulate):
    whole = Rows({"X": rows()[0][:20]}, rows()[1][:20])  # five batches of four, without the half
    dropped = train(gradients(), config(drop_last=True, accumulate=accumulate), data=data())
    expected = train(gradients(), config(accumulate=accumulate), data=Data(whole, data().validation))
    for name in (n for n in expected.tensors if n.startswith(("parameter/", "losses/"))):
        np.testing.assert_array_equal(dropped.tensors[name], expected.tensors[name])


def test_leaving_out_the_only_batch_is_refused():
    with pytest.raises(TrainError, match=r"22 rows, batches of 23(.|\n)*batch_size=22"):
        train(gradients(), config(drop_last=True, batch_size=23), data=data())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_accumulated_losses_are_counted_by_update_and_by_row(reduction):
    source, settings = gradients(reduction=reduction), {"lr": 1e-12}
    result = train(source, config(settings=settings, accumulate=3), data=data()).tensors
    alone = train(source, config(settings=settings, batch_size=1), data=data()).tensors
    per_row = alone["losses/step"][:ROWS]
    assert len(result["losses/step"]) == len(result["losses/rate"]) == EPOCHS * len(updates(3))
    found = [np.mean([getattr(per_row[batch], reduction)() for batch in group]) for group in updates(3)]
    np.testing.assert_allclose(result["losses/step"][: len(found)], found, rtol=1e-9)
    np.testing.assert_allclose(result["losses/train"], alone["losses/train"], rtol=1e-9)


def test_running_statistics_move_with_every_accumulated_batch():
    more = "TYPE[3] g = {1, 2, 0.5}, TYPE[3] c = {0, 1, 0}, TYPE[3] m = {0, 1, 0}, TYPE[3] v = {1, 1, 2}"
    normalized = "n, s, r = BatchNormalization<training_mode=1>(X, g, c, m, v) h = MatMul(n, w)"
    text = TEXT.replace("<TYPE[3,2]", f"<{more}, TYPE[3,2]").replace("h = MatMul(X, w)", normalized)
    parts = (config(settings={"lr": 1e-12}, accumulate=k) for k in (1, 3))
    one, three = (train(gradients(text=text), part, data=data()).tensors for part in parts)
    np.testing.assert_allclose(three["parameter/m"], one["parameter/m"], rtol=1e-6)
    assert abs(one["parameter/m"] - one["initial/m"]).max() > 0.01


def test_averages_are_what_is_kept_and_validated_and_the_weights_go_on_as_without():
    parts = config(average=0.9), config()
    averaged, plain = (train(gradients(), part, data=data()) for part in parts)
    for name in START:
        np.testing.assert_allclose(
            averaged.tensors[f"optimizer/iterate/{name}"], plain.tensors[f"parameter/{name}"], rtol=1e-12
        )
    np.testing.assert_allclose(averaged.tensors["losses/train"], plain.tensors["losses/train"], rtol=1e-12)
    kept = {t.name: onnx.numpy_helper.to_array(t) for t in averaged.model.graph.initializer}
    np.testing.assert_array_equal(kept["w"], averaged.tensors["parameter/w"])
    squares = averaged.tensors["losses/validation"][-1]
    assert evaluate(averaged, data=data()).facts.metrics["mean_squared_error"]["trained"] == pytest.approx(
        squares, rel=1e-9
    )


@pytest.mark.parametrize("case", CASES)
def test_a_continued_training_has_the_bytes_of_a_whole_one(case):
    optimizer, settings, parts, *_ = CASES[case]
    first = train(gradients(), config(optimizer, settings, **parts, epochs=1), data=data())
    whole, rest = (
        train(gradients(), config(optimizer, settings, **parts), data=data(), start=start)
        for start in (None, first.tensors)
    )
    assert whole.digest() == rest.digest()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_model_of_halves_is_trained_in_float32(optimizer):
    half = train(gradients("float16"), config(optimizer, epochs=5), data=data(np.float32))
    full = train(gradients("float"), config(optimizer, epochs=5), data=data(np.float32))
    assert {str(array.dtype) for array in in_folder("parameter", half.tensors).values()} == {"float32"}
    assert {t.data_type for t in half.model.graph.initializer} == {onnx.TensorProto.FLOAT16}
    moved = abs(full.tensors["parameter/w"] - full.tensors["initial/w"]).max()
    assert abs(half.tensors["parameter/w"] - full.tensors["parameter/w"]).max() < 0.02 * moved


@pytest.mark.parametrize(("scale", "moves"), [(1.0, False), (None, True)])
def test_scaling_the_loss_saves_gradients_that_halves_cannot_hold(scale, moves):
    X, noise = rows()
    y = np.tanh(START["b"]) @ START["u"] + 0.01 * noise
    source = add_loss(convert(parsed("float16")), AddLossConfig(LOSSES["l2"](), "mean"))
    part = config(settings={"lr": 1e3}, loss_scale=scale, epochs=1)
    result = train(derive(source, DeriveConfig(frozen=("b", "u"))), part, data=Data(Rows({"X": X * 1e-6}, y))).tensors
    assert (abs(result["parameter/w"] - result["initial/w"]).max() > 0) == moves


def test_a_pattern_that_matches_nothing_is_refused_before_training():
    source = convert(parsed("float"))
    for key in ("factors", "weight_decay"):
        with pytest.raises(TrainError, match=rf"{key} must match(.|\n)*'layer\.\*'"):
            check(source.facts, config(**{key: {"layer.*": 0.5}}), data=data())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("clip", {name: value}) for name in ("value", "norm") for value in (0.0, -1.0, np.inf)],
        *[("weight_decay", value) for value in (-0.1, np.nan, {"w": np.inf})],
        *[("factors", {"w": value}) for value in (-1.0, np.nan)],
        *[("average", value) for value in (1.0, -0.1)],
        *[("loss_scale", value) for value in (0.0, np.inf)],
        ("accumulate", 0),
    ],
)
def test_a_part_out_of_its_range_is_refused(key, value):
    with pytest.raises(ConfigError, match=next(iter(value)) if key == "clip" else key):
        config(**{key: value})
