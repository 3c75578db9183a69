from __future__ import annotations

import numpy as np
import onnx
import pytest
from autodiff.numeric import in_double, node_cases, runtime_error, scalar_loss, worst_error
from engines import expanded, native
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from plain_session import PlainSession
from sample import pairs

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import DeriveError
from ortpipe.graph.core.check import checked
from ortpipe.graph.importing.lower import lowered
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines.native import Native
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

# Central differences of step 1e-6 in float64 are off by about 1e-10; the worst seen here is 6e-9.
TOLERANCE = 1e-7
SINGLE = 1e-5  # float32
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
LEFT_OUT: dict[str, str] = {}
T, N, INPUT, HIDDEN = 4, 3, 2, 3
VARIANTS = {
    "plain": {},
    "without a bias": {"bias": False},
    "without first states": {"first": False},
    "of whole sequences": {"lengths": False},
    "clipped": {"clip": 0.5},
    "clipped and of whole sequences": {"clip": 0.5, "lengths": False},
}
OWN = {"RNN": {}, "GRU": {"linear": {"linear_before_reset": 1}}, "LSTM": {"coupled": {"input_forget": 1}}}
CASES = [
    (kind, way, name)
    for kind in GATES
    for way, name in pairs(("forward", "reverse", "bidirectional"), (*VARIANTS, *OWN[kind]), 3)
]


def recurrent(kind, way="forward", bias=True, first=True, lengths=True, peepholes=True, scale=0.7, **attributes):
    """Return a model of one recurrent node with all the inputs and outputs that are asked for, and its feeds."""
    rng = np.random.default_rng(3)
    d, gates = (2 if way == "bidirectional" else 1), GATES[kind]
    shapes = {"X": (T, N, INPUT), "W": (d, gates * HIDDEN, INPUT), "R": (d, gates * HIDDEN, HIDDEN)}
    names = ["X", "W", "R", "B" if bias else "", "L" if lengths else "", "H" if first else ""]
    if kind == "LSTM":
        names += ["C" if first else "", "P" if peepholes else ""]
    shapes |= {"B": (d, 2 * gates * HIDDEN), "H": (d, N, HIDDEN), "C": (d, N, HIDDEN), "P": (d, 3 * HIDDEN)}
    feeds = {k: (scale * rng.normal(size=shape)).astype(np.float32) for k, shape in shapes.items() if k in names}
    if lengths:
        feeds["L"] = np.array([4, 2, 1], np.int32)
    outputs = ["Y", "Y_h", *(["Y_c"] if kind == "LSTM" else [])]
    node = helper.make_node(kind, names, outputs, hidden_size=HIDDEN, direction=way, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(k, TensorProto.INT32 if k == "L" else 1, v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
    )
    return checked(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)), feeds


def plain(model, feeds):
    """Return the model with its recurrent node written as a scan."""
    return expanded(model, [name for name, v in feeds.items() if v.dtype.kind == "f"])


@pytest.mark.parametrize("case", node_cases(tuple(GATES), LEFT_OUT), ids=lambda case: case.name)
def test_onnx_own_node_tests_hold(case):
    model = lowered(case.model)
    feeds = dict(zip([i.name for i in model.graph.input], case.data_sets[0][0], strict=True))
    constants = {k: v for k, v in feeds.items() if v.dtype.kind != "f"}
    for value in [v for v in model.graph.input if v.name in constants]:
        model.graph.input.remove(value)
        model.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop(value.name), value.name))
    for got, expected in zip(
        ReferenceEvaluator(plain(model, feeds)).run(None, feeds), case.data_sets[0][1], strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert worst_error(model, feeds) < TOLERANCE


@pytest.mark.parametrize(("kind", "way", "name"), CASES)
def test_the_scan_gives_what_the_kernel_of_onnxruntime_gives(kind, way, name):
    model, feeds = recurrent(kind, way, **{**VARIANTS, **OWN[kind]}[name])
    for got, expected in zip(PlainSession(plain(model, feeds)).run(feeds), PlainSession(model).run(feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "way", "name"), CASES)
def test_gradients_are_central_differences(kind, way, name):
    model, feeds = recurrent(kind, way, **{**VARIANTS, **OWN[kind]}[name])
    assert worst_error(plain(model, feeds), feeds) < TOLERANCE


@pytest.mark.parametrize("kind", GATES)
def test_onnxruntime_and_the_reference_agree_in_float32(kind):
    model, feeds = recurrent(kind, "bidirectional")
    assert runtime_error(model, feeds) < SINGLE


ACTIVATIONS = {
    "Affine": (0.6, 0.1),
    "Elu": (0.7, None),
    "HardSigmoid": (0.3, 0.4),
    "LeakyRelu": (0.2, None),
    "Relu": (None, None),
    "ScaledTanh": (0.8, 0.6),
    "Sigmoid": (None, None),
    "Softplus": (None, None),
    "Softsign": (None, None),
    "Tanh": (None, None),
    "ThresholdedRelu": (0.1, None),
}


@pytest.mark.parametrize(("kind", "name"), pairs([*GATES], [*ACTIVATIONS], 3))
def test_every_activation_is_the_kernels_and_has_its_gradient(kind, name):
    numbers = dict(zip(("activation_alpha", "activation_beta"), ACTIVATIONS[name], strict=True))
    count = FUNCTIONS[kind]
    attributes = {k: [v] * count for k, v in numbers.items() if v is not None}
    model, feeds = recurrent(kind, scale=0.4, activations=[name] * count, **attributes)
    own = plain(model, feeds)
    for got, expected in zip(PlainSession(own).run(feeds), PlainSession(model).run(feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert worst_error(own, feeds) < TOLERANCE


@pytest.mark.parametrize("kind", GATES)
def test_time_and_batch_may_have_any_length(kind):
    model, feeds = recurrent(kind, "bidirectional")
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, name in {"X": {0: "T", 1: "N"}, "L": {0: "N"}, "H": {1: "N"}, "C": {1: "N"}}.get(
            value.name, {}
        ).items():
            dims[axis].dim_param = name
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    model = checked(model)
    assert worst_error(plain(model, feeds), feeds) < TOLERANCE
    assert runtime_error(model, feeds) < SINGLE


def test_alphas_and_betas_go_to_the_activations_that_have_one_in_order():
    names = ["HardSigmoid", "Tanh", "LeakyRelu", "Sigmoid", "ScaledTanh", "Elu"]
    model, feeds = recurrent(
        "LSTM",
        "bidirectional",
        activations=names,
        activation_alpha=[0.3, 0.1, 0.8, 0.9],
        activation_beta=[0.4, 0.6],
    )
    for got, expected in zip(PlainSession(plain(model, feeds)).run(feeds), PlainSession(model).run(feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "name"), [("LSTM", "ScaledTanh"), ("RNN", "LeakyRelu"), ("GRU", "Cube")])
def test_an_activation_without_a_number_that_all_agree_on_is_refused(kind, name):
    model, feeds = recurrent(kind)
    node = model.graph.node[0]
    node.attribute.append(helper.make_attribute("activations", [name] * FUNCTIONS[kind]))
    with pytest.raises(DeriveError, match=name):
        plain(model, feeds)


def test_what_depends_on_no_target_keeps_its_kernel():
    model, _ = recurrent("LSTM")
    assert [n.op_type for n in expanded(model).graph.node] == ["LSTM"]


def test_an_lstm_classifier_learns_which_sequences_rise():
    rng = np.random.default_rng(0)
    rows, time, hidden = 96, 6, 5
    steps = rng.normal(size=(rows, time, 2)).astype(np.float32)
    label = (steps[:, -1, 0] > steps[:, 0, 0]).astype(np.int64)
    initial = {
        "w": rng.normal(size=(1, 4 * hidden, 2)) * 0.4,
        "r": rng.normal(size=(1, 4 * hidden, hidden)) * 0.4,
        "b": np.zeros((1, 8 * hidden)),
        "v": rng.normal(size=(hidden, 2)) * 0.4,
        "c": np.zeros(2),
    }
    text = f"""g (float[N,{time},2] X) => (float[N,2] p) {{
      axis = Constant<value = int64[1] {{0}}>()
      x = Transpose<perm = [1, 0, 2]>(X)
      , last = LSTM<hidden_size = {hidden}>(x, w, r, b)
      h = Squeeze(last, axis) z = Gemm(h, v, c) p = Softmax<axis = -1>(z) }}"""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text)
    for name, value in initial.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    facts = Facts(
        task="multiclass",
        inputs=("X",),
        outputs=("p",),
        prediction="p",
        logits="z",
        classes=(0, 1),
        parameters=tuple(initial),
    )
    artifact = Artifact(checked(model), facts)
    gradient = derive(add_loss(artifact, AddLossConfig(LOSSES["cross_entropy"]())), DeriveConfig(engine=Native()))
    config = TrainConfig(OPTIMIZERS["momentum"](0.3), epochs=20, batch_size=16)
    trained = train(gradient, config, data=Data(Rows({"X": steps}, label)))
    losses = trained.tensors["losses/train"]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.5 * losses[0]
    [scan] = [n for n in trained.model.graph.node if n.op_type == "Scan"]  # it runs as what it was trained as
    assert len(scan.output) == 2  # without what the gradient had asked it for
    probabilities = ReferenceEvaluator(trained.model).run(["p"], {"X": steps})[0]
    assert np.mean(probabilities.argmax(axis=1) == label) > 0.85


@pytest.mark.parametrize("kind", GATES)
def test_float64_runs_in_onnxruntime_which_has_no_float64_kernel_of_its_own(kind):
    model, feeds = recurrent(kind, "bidirectional", lengths=False)
    own = in_double(model)
    feeds = {name: v.astype(np.float64) for name, v in feeds.items()}
    weights = {o.name: np.ones(()) for o in own.graph.output}
    derived, _ = native(scalar_loss(own, weights), "check/loss", [], list(feeds))
    for got, expected in zip(
        PlainSession(derived).run(feeds), ReferenceEvaluator(derived).run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)
