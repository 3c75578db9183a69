"""Parameters that are carried in stacks are trained as each by itself."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from sample import pairs

from ortpipe.data.rows import Data, Rows
from ortpipe.fast.stacks import stacked
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.epoch_graph import build_epoch
from ortpipe.stages.train.layout import Layout
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.step import build_step
from ortpipe.stages.train.vector import VECTOR

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (double[N,3] X) => (double[N,1] y)
 <double[3,3] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9, 0.2, 0.1, -0.6}, double[3] b = {0.2, -0.1, 0.3},
  double[2,3] v = {0.1, 0.4, -0.2, 0.7, 0.6, -0.3}, double[3] c = {-0.2, 0.1, 0}, double s = {1.5},
  double[3,1] u = {0.8, -0.6, 0.4}, double[1] d = {0.1}>
 { h = MatMul(X, w) a = Add(h, b) t = Tanh(a) z = MatMul(t, w) e = Add(z, c) k = Mul(e, s) q = Transpose<perm=[1,0]>(v)
   m = MatMul(k, q) n = MatMul(m, v) p = MatMul(n, u) y = Add(p, d) }"""
ROWS = np.random.default_rng(0).normal(size=(40, 4))
DATA = Data(Rows({"X": ROWS[:, :3]}, ROWS[:, 3:]), test=Rows({"X": ROWS[:, :3]}, ROWS[:, 3:]))
ARRAYS = {
    "w": np.arange(6.0).reshape(2, 3),
    "b": np.array([7.0, 8.0]),
    "s": np.array(9.0),
    "v": np.arange(9.0).reshape(3, 3),
    "half": np.ones((2, 3), np.float32),
    "large": np.zeros((50, 3)),
    "x": np.full((1, 3), 5.0),
    VECTOR: np.array([4.0]),
    f"{VECTOR}/stack": np.array([[3.0]]),
}


def stacks(arrays, vector=None):
    layout = stacked(Layout({name: array.shape for name, array in arrays.items()}), arrays)
    return layout if vector is None else layout.as_vector(vector)


@pytest.fixture
def many_stacks(monkeypatch):
    for name, value in {"stacked_parameters": 2, "stack_height": 2, "stacked_elements": 9}.items():
        monkeypatch.setattr(THRESHOLDS, name, value)


@pytest.fixture(scope="module")
def source():
    return derive(add_loss(convert(onnx.parser.parse_model(TEXT)), AddLossConfig(LOSSES["l2"]())))


def test_small_parameters_of_one_type_and_row_lie_together(many_stacks):
    assert [[*names] for names in stacks(ARRAYS).members.values()] == [
        ["w", "v"],
        ["x"],
        ["b", VECTOR],
        ["s"],
        ["half"],
        ["large"],
        [f"{VECTOR}/stack"],
    ]
    assert [*stacks(ARRAYS).pack(ARRAYS)] == [
        f"{VECTOR}/stack_1",
        "x",
        f"{VECTOR}/stack_2",
        "s",
        "half",
        "large",
        f"{VECTOR}/stack",
    ]


def test_each_lies_by_itself_where_there_are_few():
    assert type(stacks(ARRAYS)) is Layout


@pytest.mark.parametrize("vector", [None, ir.DataType.DOUBLE])
@pytest.mark.parametrize("many", [2, 1_000])
def test_what_is_packed_comes_back(many_stacks, monkeypatch, many, vector):
    monkeypatch.setattr(THRESHOLDS, "stacked_parameters", many)
    those = stacks(ARRAYS, vector)
    packed = those.pack(ARRAYS)
    assert sum(array.size for array in packed.values()) == sum(array.size for array in ARRAYS.values())
    back = those.unpack(packed)
    assert back.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].shape == array.shape


SETTINGS = {
    "plain": {},
    "clipped": {"clip": ClipConfig(norm=0.05)},
    "decayed": {"weight_decay": {"*": 0.1, "b": 0.0, "v": 0.5}},
    "slowed": {"factors": {"w": 0.1, "u": 2.0}},
    "averaged": {"average": 0.8},
}


STEPWISE = [name for name, optimizer in OPTIMIZERS.items() if optimizer().solver == "minibatch"]
WHOLE = [(name, "plain") for name in OPTIMIZERS if name not in STEPWISE]  # a solver of all rows takes no settings


@pytest.mark.parametrize(("optimizer", "case"), [*pairs(STEPWISE, [*SETTINGS], 2), *WHOLE])
def test_stacks_are_trained_as_parameters_by_themselves_are(source, monkeypatch, optimizer, case):
    batches = {"batch_size": 8, **SETTINGS[case]} if optimizer in STEPWISE else {}
    config = TrainConfig(OPTIMIZERS[optimizer](), epochs=3, **batches)
    apart = train(source, config, data=DATA).tensors
    monkeypatch.setattr(THRESHOLDS, "stacked_parameters", 2)
    together = train(source, config, data=DATA).tensors
    assert together.keys() == apart.keys()
    assert any(not np.array_equal(apart[f"initial/{name}"], apart[f"parameter/{name}"]) for name in "wbvcsud")
    for name, array in apart.items():
        np.testing.assert_allclose(together[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


def test_one_continues_what_the_other_began(source, monkeypatch):
    config = TrainConfig(OPTIMIZERS["nesterov"](), epochs=4, batch_size=8)
    whole = train(source, config, data=DATA).tensors
    first = train(source, TrainConfig(OPTIMIZERS["nesterov"](), epochs=2, batch_size=8), data=DATA).tensors
    monkeypatch.setattr(THRESHOLDS, "stacked_parameters", 2)
    second = train(source, config, data=DATA, start=first).tensors
    for name in ("parameter/w", "parameter/b", "optimizer/velocity/v"):
        np.testing.assert_allclose(second[name], whole[name], rtol=1e-9, err_msg=name)


def test_a_session_of_a_very_deep_model_has_few_inputs_and_the_same_weights(monkeypatch):
    layers = "".join(f"z{i} = MatMul(h{i}, w{i}) a{i} = Add(z{i}, b{i}) h{i + 1} = Tanh(a{i}) " for i in range(21))
    ends = {"w": (3, 3), "b": (3,)}
    shapes = {f"{kind}{i}": shape for i in range(21) for kind, shape in ends.items()}
    declared = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[N,3] X, {declared}) => (float[N,3] h21)
      {{ h0 = Identity(X) {layers} }}"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(1)
    for value in [*model.graph.input][1:]:
        array = rng.normal(size=shapes[value.name]).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array / 2, value.name))
    monkeypatch.setattr(THRESHOLDS, "stacked_parameters", 40)
    deep = derive(add_loss(convert(model), AddLossConfig(LOSSES["l2"]())))
    config = TrainConfig(OPTIMIZERS["sgd"](lr=0.01), epochs=2, batch_size=16)
    data = Data(Rows({"X": ROWS[:, :3].astype(np.float32)}, ROWS[:, :3].astype(np.float32)))
    assert len(deep.facts.gradients) == 42
    inputs = build_epoch(build_step(deep, config)).graph.inputs
    assert len(inputs) == 2 + 3  # stacks of weights and of biases; X, y, the rate
    together = train(deep, config, data=data).tensors
    monkeypatch.setattr(THRESHOLDS, "stacked_parameters", 43)
    apart = train(deep, config, data=data).tensors
    assert not np.array_equal(apart["initial/b20"], apart["parameter/b20"])
    for name, array in apart.items():
        np.testing.assert_allclose(together[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
