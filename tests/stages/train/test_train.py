from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import onnx
import pytest
from sample import pairs
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPRegressor
from stages.train.updates import STEPWISE, slots_of, update

from ortpipe.artifact import Artifact
from ortpipe.data import batches
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, ConvergenceError, DataError, TrainError
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines import ENGINES
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty
from ortpipe.stages.train import epoch_graph, mini_batch
from ortpipe.stages.train.config import CheckpointConfig, ClipConfig, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.schedules import SCHEDULES
from ortpipe.stages.train.speed import speed
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import Checkpoint, Epoch

SGD = OPTIMIZERS["sgd"]
TEXT = """g (float[N,10] X) => (float[N,1] y)
 <float[10,4] w = {W}, float[4] b = {0.1, 0.2, -0.1, 0}, float[4,1] u = {0.8, -0.6, 0.3, 0.5}, float[1] c = {0.1}>
 { a = Gemm(X, w, b) h = Tanh(a) y = Gemm(h, u, c) }""".replace(
    "{W}", "{" + ", ".join(f"{v:.3f}" for v in np.random.default_rng(0).normal(size=40)) + "}"
)


@pytest.fixture(scope="module")
def network(from_text):
    """Return a function that returns one artifact for equal arguments: no stage changes its input."""

    @functools.cache
    def make(dtype="float64", loss="l2", reduction="mean", weighted=False, **config):
        loss_model = add_loss(from_text(TEXT, dtype=dtype), AddLossConfig(LOSSES[loss](), reduction, weighted))
        return derive(loss_model, DeriveConfig(**config))

    return make


def without_validation(data):
    return dataclasses.replace(data, validation=None)


def weighted(data):
    def add(rows):
        return None if rows is None else dataclasses.replace(rows, sample_weight=np.linspace(0.5, 2, len(rows)))

    return Data(add(data.train), add(data.validation), add(data.test))


def parameters(artifact):
    return {k.removeprefix("parameter/"): v for k, v in artifact.tensors.items() if k.startswith("parameter/")}


def test_the_trained_model_is_the_forward_model_with_other_weights(network, diabetes, run, parameters_of):
    source = network()
    result = train(source, TrainConfig(SGD(0.05), epochs=3), data=diabetes)
    assert [o.name for o in result.model.graph.output] == ["y"]
    assert [i.name for i in result.model.graph.input] == ["X"]
    for name, value in parameters(result).items():
        np.testing.assert_array_equal(parameters_of(result.model)[name], value)
        assert (value != parameters_of(source.model)[name]).any()
    facts = result.facts
    assert (facts.loss, facts.label, facts.sample_weight, facts.gradients) == (None, None, None, {})
    hidden = np.tanh(diabetes.test.inputs["X"] @ parameters(result)["w"] + parameters(result)["b"])
    expected = hidden @ parameters(result)["u"] + parameters(result)["c"]
    np.testing.assert_allclose(run(result.model, {"X": diabetes.test.inputs["X"]})["y"], expected, rtol=1e-12)


@pytest.mark.parametrize(("optimizer", "reduction"), [*((name, "mean") for name in STEPWISE), ("adam", "sum")])
def test_epochs_are_single_steps_with_every_row_once_and_the_partial_batch_last(
    network, diabetes, run, parameters_of, optimizer, reduction
):
    source, data = network(reduction=reduction, weighted=True), weighted(without_validation(diabetes))
    member = OPTIMIZERS[optimizer](lr=0.005)
    schedule = SCHEDULES["inverse_scaling"](0.3)
    config = TrainConfig(member, schedule, epochs=2, batch_size=16, shuffle=False)
    result = train(source, config, data=data)
    values = {p: parameters_of(source.model)[p] for p in source.facts.gradients}
    calls = {p: update(member, v.shape, v.dtype) for p, v in values.items()}
    state = {p: [np.zeros_like(v)] * len(slots_of(member)) for p, v in values.items()}
    rows, count = feeds(source.model, source.facts, data.train), len(data.train)
    assert count % 16 != 0
    losses, means, step = [], [], 0
    for _ in range(2):
        total = 0.0
        for first in range(0, count, 16):
            step += 1
            batch = {k: v[first : first + 16] for k, v in rows.items()}
            out = run(source.model, {**batch, **values}, ["loss", *source.facts.gradients.values()])
            losses.append(out["loss"])
            total += out["loss"] * (len(batch["X"]) if reduction == "mean" else 1)
            rate = 0.005 / step**0.3
            for p, g in source.facts.gradients.items():
                values[p], state[p] = calls[p](values[p], out[g], state[p], rate, step)
        means.append(total / count)
    np.testing.assert_allclose(result.tensors["losses/step"], losses, rtol=1e-10)
    np.testing.assert_allclose(result.tensors["losses/train"], means, rtol=1e-10)
    np.testing.assert_allclose(result.tensors["losses/rate"], 0.005 / np.arange(1, step + 1) ** 0.3, rtol=1e-12)
    for p, value in values.items():
        np.testing.assert_allclose(parameters(result)[p], value, rtol=1e-10)
        for slot, own in zip(slots_of(member), state[p], strict=True):
            np.testing.assert_allclose(result.tensors[f"optimizer/{slot}/{p}"], own, rtol=1e-8, atol=1e-15)


COUNTER = "g (float[N,70] X) => (float[N,1] y) <float[70,1] w = {ZEROS}> { y = MatMul(X, w) }".replace(
    "ZEROS", ", ".join(["0"] * 70)
)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 16, 70, 1000])
def test_every_row_is_used_once_an_epoch(from_text, shuffle, batch_size):
    # Row i is the i-th unit vector with label 1: its weight moves by 2·lr/1 the first time and by less after.
    rows = Rows({"X": np.eye(70)}, np.ones(70))
    source = derive(add_loss(from_text(COUNTER, dtype="float64"), AddLossConfig(LOSSES["l2"](), "sum")))
    config = TrainConfig(SGD(0.25), epochs=1, batch_size=batch_size, shuffle=shuffle)
    result = train(source, config, data=Data(rows))
    np.testing.assert_allclose(parameters(result)["w"], np.full((70, 1), 0.5))
    assert len(result.tensors["losses/step"]) == -(-70 // batch_size)
    assert result.tensors["losses/train"].tolist() == [1.0]


def test_shuffling_draws_another_order_for_every_epoch_and_seed(network, diabetes):
    def losses(**config):
        config = TrainConfig(SGD(1e-12), epochs=2, batch_size=1, **config)
        return train(network(), config, data=diabetes).tensors["losses/step"].reshape(2, -1)

    kept, shuffled, again, other = losses(shuffle=False), losses(seed=1), losses(seed=1), losses(seed=2)
    np.testing.assert_array_equal(shuffled, again)
    np.testing.assert_allclose(kept[0], kept[1], rtol=1e-6)
    assert not np.allclose(shuffled[0], shuffled[1])
    assert not np.allclose(shuffled, other)
    for epoch in (*shuffled, *other):
        np.testing.assert_allclose(np.sort(epoch), np.sort(kept[0]), rtol=1e-6)


def test_training_reaches_the_least_squares_solution(diabetes):
    published = LinearRegression().fit(diabetes.train.inputs["X"], diabetes.train.label)
    source = derive(
        add_loss(
            convert(published, ConvertConfig(SOURCES["sklearn"]("sklearn.linear_model.Ridge"), dtype="float64")),
            AddLossConfig(LOSSES["l2"]()),
        )
    )
    config = TrainConfig(OPTIMIZERS["nesterov"](0.02, 0.98), epochs=3000, batch_size=1000, init="random")
    result = train(source, config, data=without_validation(diabetes))
    residual = published.predict(diabetes.train.inputs["X"]) - diabetes.train.label
    assert result.tensors["losses/train"][0] > 1
    assert result.tensors["losses/train"][-1] == pytest.approx((residual**2).mean(), rel=1e-5)
    np.testing.assert_allclose(parameters(result)["coefficient"].ravel(), published.coef_, atol=0.02)


def test_keep_starts_from_the_models_own_weights_and_random_from_new_ones(network, diabetes, parameters_of):
    source = network()
    tensors = {
        name: train(source, TrainConfig(SGD(0.01), epochs=1, init=init, seed=seed), data=diabetes).tensors
        for name, init, seed in (("keep", "keep", 0), ("random", "random", 0), ("other", "random", 1))
    }
    np.testing.assert_array_equal(tensors["keep"]["initial/w"], parameters_of(source.model)["w"])
    assert (tensors["random"]["initial/w"] != tensors["keep"]["initial/w"]).all()
    assert (tensors["random"]["initial/w"] != tensors["other"]["initial/w"]).all()


@pytest.mark.parametrize("init", ["keep", "random"])
def test_frozen_parameters_keep_their_bytes(network, diabetes, parameters_of, init):
    source = network(frozen=("w", "c"))
    result = train(source, TrainConfig(SGD(0.05), epochs=2, init=init), data=diabetes)
    before, after = parameters_of(source.model), parameters_of(result.model)
    assert set(parameters(result)) == {"b", "u"} == set(result.facts.parameters)
    for name in ("w", "c"):
        assert before[name].tobytes() == after[name].tobytes()
    for name in ("b", "u"):
        assert before[name].tobytes() != after[name].tobytes()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", ["l1", "l2"])
def test_validation_losses_are_the_loss_models_own_per_row(network, diabetes, run, loss, reduction):
    source = network(loss=loss, reduction=reduction)
    seen = []
    result = train(source, TrainConfig(SGD(0.001), epochs=3), data=diabetes, report=seen.append)
    rows = feeds(source.model, source.facts, diabetes.validation)
    expected = run(source.model, {**rows, **parameters(result)}, ["loss"])["loss"]
    expected /= 1 if reduction == "mean" else len(diabetes.validation)
    assert result.tensors["losses/validation"][-1] == pytest.approx(expected, rel=1e-12)
    assert [e.validation for e in seen] == result.tensors["losses/validation"].tolist()
    assert [e.loss for e in seen] == result.tensors["losses/train"].tolist()
    assert [e.number for e in seen] == [1, 2, 3]
    assert seen[-1].steps == len(result.tensors["losses/step"])


def test_without_validation_rows_there_are_no_validation_losses(network, diabetes):
    result = train(network(), TrainConfig(SGD(0.001), epochs=1), data=without_validation(diabetes))
    assert "losses/validation" not in result.tensors


def test_early_stop_restores_the_best_weights(network, diabetes, run):
    source = network()
    config = TrainConfig(SGD(0.3), epochs=60, batch_size=8, early_stop=EarlyStopConfig(patience=4))
    result = train(source, config, data=diabetes)
    validation = result.tensors["losses/validation"]
    best = int(np.argmin(validation))
    assert len(validation) == best + 1 + 4 < 60
    rows = feeds(source.model, source.facts, diabetes.validation)
    got = run(source.model, {**rows, **parameters(result)}, ["loss"])["loss"]
    assert got == pytest.approx(validation[best], rel=1e-12)
    shorter = train(source, dataclasses.replace(config, epochs=best + 1), data=diabetes)
    for name, value in parameters(shorter).items():
        np.testing.assert_array_equal(parameters(result)[name], value)


def test_without_patience_the_last_weights_stay_and_every_epoch_is_run(network, diabetes, run):
    source = network()
    result = train(source, TrainConfig(SGD(0.3), epochs=20, batch_size=8), data=diabetes)
    validation = result.tensors["losses/validation"]
    assert len(validation) == 20
    rows = feeds(source.model, source.facts, diabetes.validation)
    got = run(source.model, {**rows, **parameters(result)}, ["loss"])["loss"]
    assert got == pytest.approx(validation[-1], rel=1e-12)


def test_without_validation_rows_the_training_loss_is_watched(network, diabetes):
    stop = EarlyStopConfig(patience=2, min_delta=1e6)
    data = without_validation(diabetes)
    result = train(network(), TrainConfig(SGD(0.001), epochs=20, early_stop=stop), data=data)
    assert len(result.tensors["losses/train"]) == 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_divergence_names_step_rate_and_last_finite_losses(network, diabetes, dtype):
    with pytest.raises(ConvergenceError) as error:
        train(network(dtype), TrainConfig(SGD(1e30), epochs=50, batch_size=4), data=without_validation(diabetes))
    message = str(error.value)
    assert "at step " in message or "after step " in message
    assert "learning rate 1e+30" in message
    assert "last finite losses " in message
    assert "nan" not in message.split("last finite losses")[1].splitlines()[0]
    assert "(optimizer.lr=1e+29" in message


@pytest.mark.parametrize(("reduction", "clip"), [("mean", None), ("sum", None), ("mean", 1e30), ("sum", 1e30)])
def test_the_advice_after_a_divergence_names_what_is_not_set_yet(from_text, reduction, clip):
    text = "g (float[N,1] X) => (float[N,1] y) <float[1,1] w = {1}> { y = MatMul(X, w) }"
    source = derive(add_loss(from_text(text), AddLossConfig(LOSSES["l2"](), reduction)))
    config = TrainConfig(SGD(1e30), schedule=SCHEDULES["exponential"](0.5), epochs=9, clip=ClipConfig(norm=clip))
    with pytest.raises(ConvergenceError) as error:
        train(source, config, data=Data(Rows({"X": np.full((4, 1), 80.0)}, np.zeros(4))))
    fix = str(error.value).partition("fix: ")[2]
    assert "(optimizer.lr=1e+29" in fix  # the setting's, not what the schedule made of it
    assert ("add_loss's reduction=mean" in fix) == (reduction == "sum")
    assert ("clip.norm" in fix) == (clip is None)


def test_divergence_on_the_validation_rows_alone_is_an_error_too(from_text):
    text = "g (float[N,1] X) => (float[N,1] y) <float[1] w = {1}> { e = Exp(X) h = Mul(e, w) y = Identity(h) }"
    source = derive(add_loss(from_text(text), AddLossConfig(LOSSES["l2"]())))
    rows = Rows({"X": np.zeros((4, 1))}, np.zeros(4))
    far = Rows({"X": np.full((4, 1), 80.0)}, np.zeros(4))
    with pytest.raises(ConvergenceError, match="validation"):
        train(source, TrainConfig(SGD(0.01), epochs=2), data=Data(rows, validation=far))


def test_a_scalar_that_is_named_is_trained(from_text):
    text = "g (float[N,1] X) => (float[N,1] y) <float[1,1] w = {1}, float s = {0.5}> { h = MatMul(X, w) y = Mul(h, s) }"
    source = derive(add_loss(from_text(text), AddLossConfig(LOSSES["l2"]())), DeriveConfig(parameters=("s",)))
    rows = Rows({"X": np.ones((7, 1))}, np.full(7, 2.0))
    result = train(source, TrainConfig(OPTIMIZERS["momentum"](0.1, 0.5), epochs=40, batch_size=2), data=Data(rows))
    assert parameters(result)["s"] == pytest.approx(2.0, abs=1e-3)
    assert parameters(result)["s"].shape == ()


def test_state_names_make_way_for_the_models_own(from_text):
    text = """g (float[N,1] X) => (float[N,1] y) <float[1,1] w = {1}, float[1] rate = {0.5}>
     { v = MatMul(X, w) y = Mul(v, rate) }"""
    forward = from_text(text)
    model = forward.model
    for node in model.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = "w/velocity" if name == "v" else name
    del model.graph.value_info[:]
    source = derive(add_loss(Artifact(model, forward.facts), AddLossConfig(LOSSES["l2"]())))
    rows = Rows({"X": np.ones((7, 1))}, np.full(7, 2.0))
    result = train(source, TrainConfig(OPTIMIZERS["momentum"](0.05, 0.5), epochs=60, batch_size=2), data=Data(rows))
    assert parameters(result)["w"] * parameters(result)["rate"] == pytest.approx(2.0, abs=1e-3)
    assert {"optimizer/velocity/w", "optimizer/velocity/rate"} <= set(result.tensors)


def test_weights_where_the_loss_takes_none_are_refused(network, diabetes):
    with pytest.raises(DataError, match="rows with weights and a loss without"):
        train(network(), TrainConfig(epochs=1), data=weighted(diabetes))


def test_missing_weights_where_the_loss_takes_some_are_refused(network, diabetes):
    with pytest.raises(DataError, match="rows without weights and a loss with"):
        train(network(weighted=True), TrainConfig(epochs=1), data=diabetes)


def test_rows_of_weight_zero_teach_nothing(network, diabetes):
    data = weighted(without_validation(diabetes))
    half = np.arange(len(data.train)) % 2
    masked = Data(dataclasses.replace(data.train, sample_weight=half.astype(float)))
    alone = data.train.take(np.flatnonzero(half))
    config = TrainConfig(SGD(0.01), epochs=5, batch_size=1000, shuffle=False)
    source = network(reduction="sum", weighted=True)
    full = train(source, config, data=masked)
    ones = train(source, config, data=Data(dataclasses.replace(alone, sample_weight=np.ones(len(alone)))))
    np.testing.assert_allclose(parameters(full)["w"], parameters(ones)["w"], rtol=1e-10)


def test_a_model_without_gradients_is_refused(from_text, diabetes):
    with pytest.raises(TrainError, match="Run derive first"):
        train(add_loss(from_text(TEXT), AddLossConfig(LOSSES["l2"]())), data=diabetes)


def test_a_model_without_forward_outputs_is_refused(network, diabetes):
    with pytest.raises(TrainError, match="forward_outputs=true"):
        train(network(forward_outputs=False), data=diabetes)


def test_its_input_stays_as_it_was(network, diabetes):
    source = network()
    before, rows = source.digest(), diabetes.digest()
    train(source, TrainConfig(SGD(0.05), epochs=2), data=diabetes)
    assert source.digest() == before
    assert diabetes.digest() == rows


@pytest.mark.parametrize(("optimizer", "dtype"), [*((name, "float32") for name in STEPWISE), ("adam", "float64")])
def test_chunks_of_an_epoch_give_the_bytes_of_one(network, diabetes, monkeypatch, dtype, optimizer):
    config = TrainConfig(OPTIMIZERS[optimizer](0.01), epochs=2, batch_size=5)
    source = network(dtype)
    whole = train(source, config, data=diabetes)
    for size in (1, 1500):
        monkeypatch.setattr(batches, "CHUNK", size)
        assert train(source, config, data=diabetes).digest() == whole.digest()


def test_two_threads_give_the_same_result(network, diabetes):
    config = TrainConfig(SGD(0.01), epochs=2)
    one, two = (train(network(), config, data=diabetes, runtime=RuntimeConfig(n)) for n in (1, 2))
    np.testing.assert_allclose(parameters(one)["w"], parameters(two)["w"], rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_tensor_has_the_models_dtype(network, diabetes, dtype):
    result = train(network(dtype), TrainConfig(OPTIMIZERS["nesterov"](0.01), epochs=2), data=diabetes)
    for name, tensor in result.tensors.items():
        narrow = not name.startswith("losses/") or name in ("losses/step", "losses/rate")
        assert tensor.dtype == (dtype if narrow else "float64"), name


def test_a_penalty_shrinks_what_it_charges(diabetes):
    forward = convert(LinearRegression().fit(diabetes.train.inputs["X"], diabetes.train.label))
    norms = []
    for strength in (0.0, 0.1, 1.0):
        loss_model = penalty(
            add_loss(forward, AddLossConfig(LOSSES["l2"]())), PenaltyConfig({"coefficient": {"l2": strength}})
        )
        result = train(derive(loss_model), TrainConfig(SGD(0.05), epochs=50), data=diabetes)
        norms.append(float(np.abs(parameters(result)["coefficient"]).sum()))
    assert norms[0] > norms[1] > norms[2]


def test_a_classifier_learns_words_as_classes(iris):
    forward = convert(LogisticRegression(max_iter=5, tol=10.0), data=iris)
    source = derive(add_loss(forward, AddLossConfig(LOSSES["cross_entropy"]())))
    result = train(source, TrainConfig(SGD(0.1), epochs=60, init="random"), data=iris)
    assert result.tensors["losses/train"][-1] < 0.5 < result.tensors["losses/train"][0]
    assert result.facts.classes == ("setosa", "versicolor", "virginica")


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_network_is_trained_as_scikit_learn_trains_it(diabetes, nesterov):
    """scikit-learn 1.9.1, MLPRegressor(solver='sgd') by partial_fit on full batches: loss ½·(ŷ − y)², half our rate."""
    rows, config = diabetes.train, ConvertConfig(SOURCES["sklearn"]("sklearn.linear_model.Ridge"), dtype="float64")
    arguments = {"hidden_layer_sizes": [5], "solver": "sgd", "alpha": 0.0, "batch_size": len(rows), "shuffle": False}
    published = MLPRegressor(**arguments, nesterovs_momentum=nesterov, learning_rate_init=0.02, random_state=0)
    still = MLPRegressor(**arguments, learning_rate_init=1e-200, random_state=0).partial_fit(
        rows.inputs["X"], rows.label
    )
    for _ in range(10):
        published.partial_fit(rows.inputs["X"], rows.label)
    source = derive(add_loss(convert(still, config), AddLossConfig(LOSSES["l2"]())))
    optimizer = OPTIMIZERS["nesterov" if nesterov else "momentum"](0.01, 0.9)
    training = TrainConfig(optimizer, epochs=10, batch_size=1000, shuffle=False)
    result = train(source, training, data=without_validation(diabetes))
    np.testing.assert_allclose(2 * np.array(published.loss_curve_), result.tensors["losses/train"], rtol=1e-9)
    for i, (weight, bias) in enumerate(zip(published.coefs_, published.intercepts_, strict=True)):
        np.testing.assert_allclose(parameters(result)[f"layer{i}.weight"], weight, rtol=1e-9)
        np.testing.assert_allclose(parameters(result)[f"layer{i}.bias"], bias, rtol=1e-9)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"validate_every": 0}, "validate_every"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_config_that_breaks_its_rule_is_refused_with_its_key(values, key):
    with pytest.raises(ConfigError, match=key):
        TrainConfig(**values)


@pytest.mark.parametrize("values", [{"patience": 0}, {"min_delta": -1.0}, {"min_delta": float("nan")}])
def test_an_early_stop_that_breaks_its_rule_is_refused(values):
    with pytest.raises(ConfigError, match=rf"^{next(iter(values))} must"):
        EarlyStopConfig(**values)


def test_the_warm_up_rises_in_a_line_and_hands_over_to_the_schedule(network, diabetes):
    config = TrainConfig(SGD(0.01), SCHEDULES["exponential"](0.9), warmup=7, epochs=8, batch_size=32)
    rates = train(network(), config, data=diabetes).tensors["losses/rate"]
    np.testing.assert_allclose(rates[:8], 0.01 * np.arange(1, 9) / 8, rtol=1e-12)
    np.testing.assert_allclose(rates[7:], 0.01 * 0.9 ** np.arange(len(rates) - 7), rtol=1e-12)


def test_a_schedule_that_watches_the_loss_lowers_the_next_epochs_rate(network, diabetes):
    schedule = SCHEDULES["reduce_on_plateau"](by=0.5, patience=0, threshold=0.5)  # half the loss, or the rate falls
    result = train(network(), TrainConfig(SGD(1e-5), schedule, epochs=4, batch_size=400), data=diabetes)
    np.testing.assert_allclose(result.tensors["losses/rate"], 1e-5 * np.array([1, 1, 0.5, 0.25]), rtol=1e-12)


# Each optimizer's state, and each schedule's beside one that has state: neither knows of the other.
STATES = dict.fromkeys([*zip(STEPWISE, itertools.cycle(SCHEDULES), strict=False), *(("adam", s) for s in SCHEDULES)])


@pytest.mark.parametrize(("optimizer", "schedule"), STATES)
def test_training_that_continues_from_a_checkpoint_gives_the_same_bytes(network, diabetes, optimizer, schedule):
    config = TrainConfig(
        OPTIMIZERS[optimizer](0.02),
        SCHEDULES[schedule](),
        epochs=7,
        init="random",
        batch_size=16,
        early_stop=EarlyStopConfig(patience=20),
        checkpoint=CheckpointConfig(epochs=3),
    )
    told, seen = [], []
    once = train(network("float32"), config, data=diabetes, report=told.append)
    kept = [report for report in told if isinstance(report, Checkpoint)]
    assert [c.epochs for c in kept] == [3, 6]
    again = train(network("float32"), config, data=diabetes, start=kept[0], report=seen.append)
    assert again.digest() == once.digest()
    assert [e.number for e in seen if isinstance(e, Epoch)] == [4, 5, 6, 7]


def test_training_that_is_stopped_hands_out_the_epochs_that_are_whole(network, diabetes):
    config, told = TrainConfig(SGD(0.02), epochs=9, checkpoint=CheckpointConfig(minutes=None)), []

    class Interruption(BaseException):
        pass

    def listen(report):
        told.append(report)
        if getattr(report, "number", 0) == 4:
            raise Interruption

    with pytest.raises(Interruption):
        train(network(), config, data=diabetes, report=listen)
    assert isinstance(told[-1], Checkpoint)
    assert told[-1].epochs == 4
    again = train(network(), config, data=diabetes, start=told[-1])
    assert again.digest() == train(network(), config, data=diabetes).digest()


@pytest.mark.parametrize("change", [{"optimizer": SGD(0.03)}, {"seed": 1}, {"batch_size": 8}])
def test_a_checkpoint_of_other_settings_is_refused(network, diabetes, change):
    told, config = [], TrainConfig(SGD(0.02), epochs=2, checkpoint=CheckpointConfig(epochs=1))
    train(network(), config, data=diabetes, report=told.append)
    with pytest.raises(TrainError, match="same model, data and train settings"):
        train(network(), dataclasses.replace(config, **change), data=diabetes, start=told[-1])
    longer = train(network(), dataclasses.replace(config, epochs=5), data=diabetes, start=told[-1])
    assert longer.digest() == train(network(), dataclasses.replace(config, epochs=5), data=diabetes).digest()


def test_a_checkpoint_of_another_model_is_refused(network, diabetes):
    told, config = [], TrainConfig(SGD(0.02), epochs=1, checkpoint=CheckpointConfig(epochs=1))
    train(network(), config, data=diabetes, report=told.append)
    with pytest.raises(TrainError, match="same model, data and train settings"):
        train(network(loss="l1"), config, data=diabetes, start=told[-1])


def test_a_start_without_the_optimizers_state_is_refused(network, diabetes):
    first = train(network(), TrainConfig(SGD(0.01), epochs=1), data=diabetes)
    with pytest.raises(TrainError, match="optimizer/velocity/w"):
        train(network(), TrainConfig(OPTIMIZERS["momentum"](0.01), epochs=1), data=diabetes, start=first.tensors)


def test_a_schedule_per_epoch_gives_every_step_of_a_pass_one_rate(network, diabetes):
    schedule = SCHEDULES["inverse_scaling"](1.0)
    config = TrainConfig(SGD(0.02), schedule, "epoch", epochs=3, batch_size=16)
    rates = train(network(), config, data=diabetes).tensors["losses/rate"].reshape(3, -1)
    np.testing.assert_allclose(rates, np.full(rates.shape, 0.02) / np.array([[1], [2], [3]]), rtol=1e-12)


def test_an_adaptive_rate_falls_when_the_loss_no_longer_does(network, diabetes):
    config = TrainConfig(SGD(0.02), SCHEDULES["adaptive"](patience=2, tolerance=1e6), epochs=7, batch_size=16)
    rates = train(network(), config, data=diabetes).tensors["losses/rate"].reshape(7, -1)[:, 0]
    np.testing.assert_allclose(rates, 0.02 / 5.0 ** np.array([0, 0, 0, 1, 1, 2, 2]), rtol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam"])
def test_both_engines_train_a_linear_model_to_the_same_weights(diabetes, optimizer, training_build):
    """The training build writes its products as Gemm with beta = 0, which must not stop what is added to them."""
    loss = add_loss(convert(LinearRegression(), data=diabetes), AddLossConfig(LOSSES["l2"]()))
    config = TrainConfig(OPTIMIZERS[optimizer](lr=0.01), epochs=5, init="random")
    native, ort = (train(derive(loss, DeriveConfig(ENGINES[e]())), config, data=diabetes) for e in ("native", "ort"))
    for name in ("parameter/coefficient", "parameter/intercept", "losses/step"):
        np.testing.assert_allclose(ort.tensors[name], native.tensors[name], rtol=1e-4, atol=1e-5)


def test_the_validation_rows_are_evaluated_every_few_epochs_and_after_the_last(network, diabetes):
    config, told = TrainConfig(SGD(0.01), epochs=8, batch_size=16), []
    always = train(network(), config, data=diabetes).tensors["losses/validation"]
    config = dataclasses.replace(config, validate_every=3)
    sparse = train(network(), config, data=diabetes, report=told.append).tensors["losses/validation"]
    turn = np.isin(np.arange(1, 9), [3, 6, 8])
    np.testing.assert_array_equal(sparse, np.where(turn, always, np.nan))
    assert [e.validation is not None for e in told] == turn.tolist()


def test_early_stopping_counts_validations_and_restores_the_best_of_them(network, diabetes):
    stop = EarlyStopConfig(patience=2)
    config = TrainConfig(SGD(0.3), epochs=60, batch_size=8, validate_every=3, early_stop=stop)
    result = train(network(), config, data=diabetes)
    validation = result.tensors["losses/validation"]
    best = int(np.nanargmin(validation))
    assert len(validation) == best + 1 + 2 * 3 < 60
    shorter = train(network(), dataclasses.replace(config, epochs=best + 1), data=diabetes)
    for name, value in parameters(shorter).items():
        np.testing.assert_array_equal(parameters(result)[name], value)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (SCHEDULES["reduce_on_plateau"](by=0.5, patience=0, threshold=0.9), [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]),
        (SCHEDULES["adaptive"](patience=1, tolerance=1e6), [1, 1, 1, 1, 0.2, 0.2, 0.04, 0.04]),
    ],
)
def test_schedules_that_watch_the_loss_count_validations(network, diabetes, schedule, factors):
    config = TrainConfig(SGD(1e-5), schedule, epochs=8, batch_size=400, validate_every=2)
    rates = train(network(), config, data=diabetes).tensors["losses/rate"]
    np.testing.assert_allclose(rates, 1e-5 * np.array(factors), rtol=1e-12)


def test_training_that_continues_between_two_validations_gives_the_same_bytes(network, diabetes):
    config = TrainConfig(
        OPTIMIZERS["adam"](0.02),
        SCHEDULES["reduce_on_plateau"](patience=0, threshold=0.5),
        epochs=11,
        batch_size=16,
        validate_every=4,
        early_stop=EarlyStopConfig(patience=20),
        checkpoint=CheckpointConfig(epochs=1),
    )
    told = []
    once = train(network("float32"), config, data=diabetes, report=told.append)
    for checkpoint in [report for report in told if isinstance(report, Checkpoint)]:
        assert train(network("float32"), config, data=diabetes, start=checkpoint).digest() == once.digest()


def test_a_training_that_continues_counts_its_own_steps_from_there(network, diabetes):
    told, config = [], TrainConfig(SGD(0.01), epochs=200, batch_size=8)
    first = train(network(), dataclasses.replace(config, epochs=199), data=diabetes)
    train(network(), config, data=diabetes, start=first.tensors, report=told.append)
    [epoch] = told
    per_epoch = len(first.tensors["losses/step"]) / 199
    assert epoch.steps == 200 * per_epoch
    assert epoch.own_steps == per_epoch


def test_a_large_step_without_a_plan_of_its_memory_gives_the_same_bytes(network, diabetes, monkeypatch):
    config, source = TrainConfig(SGD(0.05), epochs=3), network()
    planned = train(source, config, data=diabetes).digest()
    seen = []
    monkeypatch.setattr(speed(), "prepare", lambda model: {"planned": False})
    monkeypatch.setattr(
        epoch_graph, "Session", lambda *a, planned, **b: seen.append(planned) or Session(*a, **b, planned=planned)
    )
    assert train(source, config, data=diabetes).digest() == planned
    assert seen
    assert not any(seen)


class SeenSession(Session):
    """Notes how many steps each run does that writes into arrays of the trainer's own."""

    steps: list[int]

    def run_into(self, feeds, results):
        super().run_into(feeds, results)
        self.steps.append(len(feeds["X"]))


@pytest.fixture
def single_steps(monkeypatch):
    steps = []
    monkeypatch.setattr(SeenSession, "steps", steps, raising=False)
    monkeypatch.setattr(epoch_graph, "Session", SeenSession)
    return steps


WIDTH = 512  # two layers and their momentum: 2 · 2 · 512² · 4 bytes


def test_where_much_is_carried_each_step_is_a_run_and_the_bytes_are_those_of_a_scan(
    from_text, monkeypatch, single_steps
):
    monkeypatch.setattr(mini_batch, "LARGE_STATE", 2 * 2 * WIDTH**2 * 4)
    rng = np.random.default_rng(5)
    text = f"g (float[N,{WIDTH}] X) => (float[N,{WIDTH}] y) {{ a = MatMul(X, w) h = Relu(a) y = MatMul(h, u) }}"
    weights = {name: rng.normal(0, 0.02, (WIDTH, WIDTH)).astype(np.float32) for name in ("w", "u")}
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    X = rng.normal(size=(22, WIDTH)).astype(np.float32)
    data = Data(Rows({"X": X}, X[:, ::-1].copy()), Rows({"X": X[:8]}, X[:8, ::-1].copy()))
    source = derive(add_loss(convert(model, data=data), AddLossConfig(LOSSES["l2"]())))
    config = TrainConfig(OPTIMIZERS["momentum"](0.001), epochs=2, batch_size=8)
    told = []
    single = train(
        source, dataclasses.replace(config, checkpoint=CheckpointConfig(epochs=1)), data=data, report=told.append
    )
    assert single_steps == [1] * 6
    assert all(np.may_share_memory(single.initializers[n], single.tensors[f"parameter/{n}"]) for n in weights)
    start = next(report for report in told if isinstance(report, Checkpoint))
    assert train(source, config, data=data, start=start).digest() == single.digest()
    monkeypatch.setattr(mini_batch, "LARGE_STATE", np.inf)
    assert train(source, config, data=data).digest() == single.digest()
    assert single_steps == [1] * 9


PARTS = [{}, {"accumulate": 3}, {"accumulate": 3, "drop_last": True}, {"average": 0.9}]


@pytest.mark.parametrize(("optimizer", "parts"), pairs([*STEPWISE], PARTS, 3))
def test_steps_that_run_singly_give_the_bytes_of_a_scan(network, diabetes, monkeypatch, single_steps, optimizer, parts):
    config = TrainConfig(OPTIMIZERS[optimizer](0.01), epochs=2, batch_size=5, **parts)
    source = network("float32")
    together = train(source, config, data=diabetes)
    assert single_steps == []
    monkeypatch.setattr(mini_batch, "LARGE_STATE", 0)
    assert train(source, config, data=diabetes).digest() == together.digest()
    assert single_steps == [1] * len(together.tensors["losses/step"])


def test_weights_that_stopping_early_restores_come_back_from_the_disk(network, diabetes, monkeypatch):
    """The best epoch is none of the last ones; `told` continues from checkpoints whose best is on the disk, too."""
    config = TrainConfig(SGD(0.3), epochs=60, batch_size=16, early_stop=EarlyStopConfig(patience=5))
    source, told = network("float32"), []
    in_memory = train(source, config, data=diabetes)
    monkeypatch.setattr(mini_batch, "LARGE_STATE", 0)
    kept = dataclasses.replace(config, checkpoint=CheckpointConfig(epochs=1))
    assert train(source, kept, data=diabetes, report=told.append).digest() == in_memory.digest()
    assert len(in_memory.tensors["losses/train"]) < 60
    starts = [report for report in told if isinstance(report, Checkpoint)]
    assert len(starts) > 1
    for start in starts:
        assert train(source, config, data=diabetes, start=start).digest() == in_memory.digest()


def test_an_interruption_amid_single_steps_goes_back_to_the_last_whole_epoch(network, diabetes, monkeypatch):
    config, source, told = TrainConfig(OPTIMIZERS["adam"](0.01), epochs=4, batch_size=8), network("float32"), []
    whole = train(source, config, data=diabetes)
    steps = len(whole.tensors["losses/step"]) // 4

    class Interrupted(SeenSession):
        def run_into(self, feeds, results):
            if len(self.steps) == 2 * steps + 3:
                raise KeyboardInterrupt
            super().run_into(feeds, results)

    monkeypatch.setattr(SeenSession, "steps", [], raising=False)
    monkeypatch.setattr(epoch_graph, "Session", Interrupted)
    monkeypatch.setattr(mini_batch, "LARGE_STATE", 0)
    with pytest.raises(KeyboardInterrupt):
        train(source, config, data=diabetes, report=told.append)
    assert told[-1].epochs == 2
    monkeypatch.setattr(epoch_graph, "Session", SeenSession)
    assert train(source, config, data=diabetes, start=told[-1]).digest() == whole.digest()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_divergence_in_steps_that_run_singly_reads_as_that_in_a_scan(network, diabetes, monkeypatch, reduction):
    source, config = network("float32", reduction=reduction), TrainConfig(SGD(3.0), epochs=20, batch_size=8)
    said = []
    for carried in (np.inf, 0):
        monkeypatch.setattr(mini_batch, "LARGE_STATE", carried)
        with pytest.raises(ConvergenceError) as error:
            train(source, config, data=diabetes)
        said.append((str(error.value), {name: array.tobytes() for name, array in error.value.tensors.items()}))
    assert said[0] == said[1]


def test_a_start_in_columns_goes_on_as_one_in_rows_where_steps_run_singly(network, diabetes, monkeypatch):
    config, source = TrainConfig(OPTIMIZERS["momentum"](0.01), epochs=2), network("float32")
    first = train(source, config, data=diabetes)
    config = dataclasses.replace(config, epochs=4)
    together = train(source, config, data=diabetes, start=first.tensors)
    monkeypatch.setattr(mini_batch, "LARGE_STATE", 0)
    columns = {name: np.asfortranarray(array) for name, array in first.tensors.items()}
    assert train(source, config, data=diabetes, start=columns).digest() == together.digest()


NARROW = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-6}
TYPES = {"float16": "float16", "float32": "float", "float64": "double"}


@pytest.mark.parametrize(("optimizer", "types"), pairs(["sgd", "adam"], [*itertools.permutations(NARROW, 2)], 2))
def test_weights_of_two_types_are_trained_as_weights_of_one(optimizer, types):
    """The oracle is the same training in float64; a file with "keep io types" has float16 weights, a float32 output."""
    x, (inner, outer) = np.random.default_rng(0).normal(size=(16, 3)), types
    losses = []
    for first, last in ((inner, outer), ("float64", "float64")):
        of, to = (onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in (first, last))
        text = f"""<ir_version: 8, opset_import: ["": 18]> g (double[N,3] x) => ({TYPES[last]}[N,2] y)
          {{ a = Cast<to={of}>(x) z = MatMul(a, w) c = Cast<to={to}>(z) y = Add(c, b) }}"""
        model = onnx.parser.parse_model(text)
        weights = {"w": np.array([[1, 2], [-1, 0.5], [3, 0]], first), "b": np.array([0.5, 1], last)}
        model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
        data = Data(Rows({"x": x}, x @ [[1.0, 1], [0, 1], [2, 1]]))
        source = derive(add_loss(convert(model, data=data), AddLossConfig(LOSSES["l2"]())))
        trained = train(source, TrainConfig(OPTIMIZERS[optimizer](), epochs=3, batch_size=8), data=data)
        assert {name: trained.initializers[name].dtype for name in weights} == {"w": first, "b": last}
        losses.append(trained.tensors["losses/train"])
    np.testing.assert_allclose(*losses, rtol=20 * max(NARROW[inner], NARROW[outer]))
