from __future__ import annotations

import numpy as np
import onnx
import pytest

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import DeriveError
from ortpipe.runtime.library import ort
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.cnn import CNN
from ortpipe.stages.convert.sources.networks.transformer import Transformer
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines import ENGINES
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.stage import train

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def chain():
    """Six layers of tanh(x·w), the first one normalized by known moments, and the mean of what comes out."""
    names = [f"t{i}" for i in range(6)]
    lines = [f"h{i} = MatMul({x}, w{i}) t{i} = Tanh(h{i})" for i, x in enumerate(["x", *names[:-1]])]
    lines[0] = "m = MatMul(x, w0) h0 = BatchNormalization(m, one, half, half, two) t0 = Tanh(h0)"
    held = ", ".join(f"float[4,4] w{i} = {{{', '.join(map(str, RNG.uniform(-1, 1, 16)))}}}" for i in range(6))
    held += "".join(f", float[4] {n} = {{{v}, {v}, {v}, {v}}}" for n, v in (("one", 1), ("half", 0.5), ("two", 2)))
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[N,4] x) => (float[N,4] t5, float loss) <{held}>
    {{ {" ".join(lines)} loss = ReduceMean<keepdims=0>(t5) }}"""
    facts = Facts("regression", ("x",), ("t5",), "t5", tuple(f"w{i}" for i in range(6)), loss="loss")
    return Artifact(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)), facts)


@pytest.fixture(params=ENGINES)
def engine(request):
    if request.param == "ort":
        request.getfixturevalue("training_build")
    return ENGINES[request.param]()


@pytest.mark.parametrize("marks", ["auto", ("t1", "t3"), "t[13]"])
def test_values_between_marks_are_computed_again_by_the_runtime_too_and_gradients_are_the_same(
    chain, engine, marks, tmp_path
):
    parameters = None if engine == ENGINES["native"]() else ("w[1-5]",)  # ort rejects what w0 is behind
    plain, thrifty = (derive(chain, DeriveConfig(engine, parameters, checkpointing=m)) for m in (None, marks))
    again = [node.op_type for node in thrifty.model.graph.node if node.name.endswith("/again")]
    assert again.count("Tanh") >= 2
    assert "BatchNormalization" in again or marks == "auto" or engine != ENGINES["native"]()
    names = [*plain.facts.gradients.values(), "loss", "t5"]
    feeds = {"x": RNG.standard_normal((5, 4)).astype(np.float32)}
    before, after = (Session(artifact.model).run(feeds, names) for artifact in (plain, thrifty))
    assert [a.tobytes() for a in before] == [a.tobytes() for a in after]

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(thrifty.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx")
    assert [node.op_type for node in optimized.graph.node].count("Tanh") == 6 + again.count("Tanh")


def test_training_ends_with_the_same_bytes_where_random_nodes_and_statistics_are_among_the_nodes():
    images, tokens = RNG.standard_normal((8, 1, 8, 8)).astype(np.float32), RNG.integers(0, 5, (8, 3))
    labels = np.arange(8) % 3
    cases = (
        (CNN(channels=(2, 2, 2), dropout=0.5), images),
        (Transformer(tokens=5, width=4, heads=2, inner=4, blocks=1, dropout=0.5), tokens),
    )
    for source, X in cases:
        data = Data(Rows(X, labels))
        loss = add_loss(convert(None, ConvertConfig(source), data=data), AddLossConfig(LOSSES["cross_entropy"]()))
        plain, thrifty = (derive(loss, DeriveConfig(checkpointing=marks)) for marks in (None, "auto"))
        operators = [[n.op_type for n in artifact.model.graph.node] for artifact in (plain, thrifty)]
        assert operators[0].count("Dropout") == operators[1].count("Dropout") > 0
        assert len(operators[0]) < len(operators[1])
        first, second = (train(a, TrainConfig(epochs=2, batch_size=8), data=data).tensors for a in (plain, thrifty))
        assert {k: a.tobytes() for k, a in first.items()} == {k: a.tobytes() for k, a in second.items()}


def test_marks_that_are_no_values_or_leave_nothing_to_compute_again_are_refused(chain):
    with pytest.raises(DeriveError, match="checkpointing must match a forward value") as error:
        derive(chain, DeriveConfig(checkpointing=("t1", "u9")))
    assert error.value.got == "'u9'"
    with pytest.raises(DeriveError, match="lies inside a segment"):
        derive(chain, DeriveConfig(checkpointing=("h0",)))
    with pytest.raises(DeriveError, match="training agent"):
        derive(chain, DeriveConfig(ENGINES["ort"](yield_op=True), checkpointing="auto"))


def test_auto_keeps_everything_and_says_so_where_no_cut_is_estimated_to_take_less(engine):
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[N,3] x) => (float loss) <float[3,1] w = {1, 2, 3}>
    { h = MatMul(x, w) t = Tanh(h) loss = ReduceMean<keepdims=0>(t) }"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    loss = Artifact(model, Facts("regression", ("x",), (), None, ("w",), loss="loss"))
    plain, thrifty = (derive(loss, DeriveConfig(engine, checkpointing=marks)) for marks in (None, "auto"))
    assert plain.model == thrifty.model
    assert [note.split(":")[0] for note in thrifty.facts.lineage[-1]["notes"]] == [
        "keeps all that the backward pass reads"
    ]
