from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from sklearn.neural_network import MLPRegressor

from ortpipe.artifact import in_folder
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import DeriveError, TrainError
from ortpipe.graph.core.protos import all_nodes
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.restore import restore
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines import ENGINES
from ortpipe.stages.derive.lora import Lora
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

pytestmark = pytest.mark.filterwarnings("ignore:Stochastic Optimizer")  # of the fixture, whichever test is first
ADAM = OPTIMIZERS["adam"](lr=0.01)


@pytest.fixture(scope="module")
def regressor(diabetes):
    rows = diabetes.train
    return MLPRegressor(hidden_layer_sizes=(12,), max_iter=5, random_state=0).fit(rows.inputs["X"], rows.label)


@pytest.fixture(scope="module")
def loss(regressor, diabetes):
    return add_loss(convert(regressor, data=diabetes), AddLossConfig(LOSSES["l2"]()))


@pytest.mark.parametrize("engine", ENGINES)
def test_only_adapters_train_and_the_result_is_the_source_with_other_weights(
    engine, loss, regressor, diabetes, request
):
    if engine == "ort":
        request.getfixturevalue("training_build")
    config = DeriveConfig(ENGINES[engine](), parameters=("layer1.*",), adapters=Lora(rank=2, alpha=4), check=True)
    gradient = derive(loss, config, data=diabetes)
    matrices = ["layer0.weight/lora_A", "layer0.weight/lora_B"]
    assert set(gradient.facts.gradients) == {*matrices, "layer1.weight", "layer1.bias"}
    rows = {n: a for n, a in feeds(gradient.model, gradient.facts, diabetes.test).items() if n != "loss_grad"}
    names = [gradient.facts.prediction, gradient.facts.loss]
    plain = derive(loss, dataclasses.replace(config, adapters=None, check=False))
    first, adapted = (Session(artifact.model).run(rows, names) for artifact in (plain, gradient))
    assert [a.tobytes() for a in first] == [a.tobytes() for a in adapted]

    trained = train(gradient, TrainConfig(ADAM, epochs=3), data=diabetes)
    weights = in_folder("parameter", trained.tensors)
    rows = {name: array for name, array in rows.items() if name in trained.facts.inputs}
    opened = {name: array for name, array in weights.items() if name in gradient.facts.gradients}
    label = feeds(gradient.model, gradient.facts, diabetes.test)
    [unmerged] = Session(gradient.model).run({**label, **opened}, names[:1])
    [merged] = Session(trained.model).run(rows, names[:1])
    np.testing.assert_allclose(merged, unmerged, rtol=1e-4, atol=1e-5)
    assert set(trained.facts.parameters) == {"layer0.weight", "layer1.weight", "layer1.bias"}
    np.testing.assert_array_equal(trained.initializers["layer0.weight"], weights["layer0.weight"])
    np.testing.assert_array_equal(trained.initializers["layer0.bias"], loss.initializers["layer0.bias"])
    assert np.linalg.matrix_rank(weights["layer0.weight"] - loss.initializers["layer0.weight"], 1e-5) == 2

    measured = evaluate(trained, data=diabetes).facts.metrics["r2"]
    assert measured["before"] == measured["source"] != measured["trained"]
    written = restore(trained, regressor, data=diabetes)
    np.testing.assert_allclose(written.coefs_[0], trained.initializers["layer0.weight"], rtol=1e-6)
    continued = train(gradient, TrainConfig(ADAM, epochs=5), data=diabetes, start=trained.tensors)
    assert continued.digest() == train(gradient, TrainConfig(ADAM, epochs=5), data=diabetes).digest()


def test_the_run_says_what_is_adapted_and_what_is_not(loss):
    [note] = derive(loss, DeriveConfig(adapters=Lora(rank=2))).facts.lineage[-1]["notes"]
    assert note == (
        "trains adapters of 44 numbers in the place of weights of 120, which stay until they are merged: layer0.weight"
        "; trains neither layer0.bias, layer1.bias (no matrix or kernel), layer1.weight (12 x 1 numbers, too few for "
        "an adapter of rank 2)"
    )


@pytest.mark.parametrize(
    ("lora", "got"),
    [
        (Lora(targets=("layer0.bias",)), "layer0.bias: no matrix or kernel"),
        (Lora(rank=8), "too few for an adapter of rank 8"),
        (Lora(targets=("layer9.*",)), "'layer9.*'"),
    ],
)
def test_a_target_that_gets_no_adapter_is_named(loss, lora, got):
    with pytest.raises(DeriveError, match="adapters") as error:
        derive(loss, DeriveConfig(adapters=lora))
    assert got in str(error.value)


def test_adapters_do_not_begin_at_random_weights(loss, diabetes):
    gradient = derive(loss, DeriveConfig(adapters=Lora(rank=2)))
    with pytest.raises(TrainError, match="they start at zero"):
        train(gradient, TrainConfig(ADAM, epochs=1, init="random"), data=diabetes)


BODIES = {  # a weight that every turn reads from around the body
    "Scan": "t = Transpose<perm=[1,0,2]>(X) zero = Constant<value_ints=[0]>() i = ReduceSum<keepdims=0>(t, zero) "
    "e, seen = Scan<num_scan_inputs=1, body = step (float[N,6] h, float[N,6] x) => (float[N,6] k, float[N,6] p) "
    "{ m = MatMul(h, w) s = Add(m, x) k = Tanh(s) p = Identity(k) }>(i, t)",
    "Loop": "last = Constant<value_int=1>() h0 = Gather<axis=1>(X, last) turns = Constant<value_int=3>() "
    "go = Constant<value = bool {1}>() e = Loop(turns, go, h0) <body = turn (int64 i, bool c, float[N,6] h) => "
    "(bool d, float[N,6] k) { d = Identity(c) m = MatMul(h, w) k = Tanh(m) }>",
}


@pytest.mark.parametrize("kind", BODIES)
def test_adapters_inside_a_body_get_the_chain_rules_gradients_and_are_merged(kind):
    rng = np.random.default_rng(0)
    head = '<ir_version: 10, opset_import: ["": 21]> g (float[N,2,6] X) => (float[N,1] y)'
    text = f"{head} {{ {BODIES[kind]} y = MatMul(e, v) }}"
    model = onnx.parser.parse_model(text)
    arrays = {"w": rng.normal(size=(6, 6)) / 3, "v": rng.normal(size=(6, 1))}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    X, y = rng.normal(size=(8, 2, 6)).astype(np.float32), rng.normal(size=(8, 1)).astype(np.float32)
    loss = add_loss(convert(model), AddLossConfig(LOSSES["l2"]()))
    plain, adapted = derive(loss), derive(loss, DeriveConfig(adapters=Lora(rank=2, alpha=4)))
    [weight] = Session(plain.model).run({"X": X, "label": y}, ["w_grad"])
    left, right = (adapted.initializers[f"w/lora_{x}"] for x in "AB")
    gradients = Session(adapted.model).run({"X": X, "label": y}, ["w/lora_A_grad", "w/lora_B_grad"])
    for got, expected in zip(gradients, (2 * weight @ right.T, 2 * left.T @ weight), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)

    trained = train(adapted, TrainConfig(ADAM, epochs=3, batch_size=4), data=Data(Rows({"X": X}, y)))
    now = in_folder("parameter", trained.tensors)
    assert not np.array_equal(now["w"], arrays["w"].astype(np.float32))
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(now.get(tensor.name, arrays[tensor.name].astype(np.float32)), tensor.name)
        )
    [expected], [got] = (Session(m).run({"X": X}, [m.graph.output[0].name]) for m in (model, trained.model))
    np.testing.assert_array_equal(got, expected)
    assert not any("lora" in name for node in all_nodes(trained.model.graph) for name in (*node.input, *node.output))
