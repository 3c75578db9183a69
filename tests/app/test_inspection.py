"""ortpipe inspect: roles of inputs, the trial on rows made here, and a config that trains the file at once."""

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortpipe import run
from ortpipe.app.inspection import inspect
from ortpipe.errors import ConvertError

STATE = """<ir_version: 8, opset_import: ["": 18]>
g (float[N,T] sound, float[1,M,3] state, int64 rate, bool[1] training, bool other)
  => (float[N,1] speech, float[1,M,3] stateN)
<float[1,3] w = {0.1,0.2,0.3}, float[3,1] v = {0.1,0.2,0.3}, int64 full = {16000}, int64[1] one = {1},
 int64[1] zero = {0}> {
  mean = ReduceMean<keepdims=1>(sound, one)
  right = Equal(rate, full)
  factor = CastLike(right, mean)
  scaled = Mul(mean, factor)
  louder = Where(training, scaled, mean)
  h = MatMul(louder, w)
  stateN = Add(state, h)
  first = ReduceSum<keepdims=0>(stateN, zero)
  z = MatMul(first, v)
  speech = Sigmoid(z)
}"""
WORDS = """<ir_version: 8, opset_import: ["": 18]>
g (int64[N,T] ids, int64[N] length) => (float[N,3] score)
<float[7,3] table = {0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1,2,3,4,5,6,7,8,9,10,11,12}, int64[1] one = {1}> {
  e = Gather(table, ids)
  h = ReduceSum<keepdims=0>(e, one)
  n = CastLike(length, h)
  c = Unsqueeze(n, one)
  score = Div(h, c)
}"""


def saved(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_states_flags_and_compared_numbers_become_constants(tmp_path: Path) -> None:
    inspection = inspect(saved(STATE, tmp_path / "voice.onnx"))
    assert inspection.error is None
    assert inspection.settings["fixed"] == {"state": 0, "rate": 16000, "training": False}
    assert inspection.settings["prediction"] == "speech"
    assert inspection.file.roles["other"].reason == "not read by any node"
    assert inspection.facts is not None
    assert inspection.facts.task == "binary"
    assert inspection.loss is not None
    assert "state, 0 at the start of each row; the next one is output stateN" in inspection.text
    assert "or train this one: prediction: stateN" in inspection.text


def test_log_probabilities_are_raw_scores_of_classes_whatever_their_name(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[N,4,2] x) => (float[N,4,3] logprobs)
      <float[2,3] w = {1,2,3,4,5,6}> { z = MatMul(x, w) logprobs = LogSoftmax(z) }"""
    inspection = inspect(saved(text, tmp_path / "spoken.onnx"))
    assert inspection.error is None
    assert inspection.facts is not None
    assert (inspection.facts.task, inspection.more) == ("multiclass", {})
    assert "shorter than the 4 steps, whose places are unknown, such as the letters of a text, set add_loss=ctc" in (
        inspection.text
    )


def test_several_caches_are_states_each_with_its_own_next_one(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 18]>
      g (float[N,2] x, float[N,2] in_cache0, float[N,2] in_cache1) => (float[N,2] y, float[N,2] out_cache0,
        float[N,2] out_cache1) <float[2,2] w = {1,2,3,4}> {
        z = MatMul(x, w) out_cache0 = Add(z, in_cache0) out_cache1 = Add(out_cache0, in_cache1)
        y = Tanh(out_cache1) }"""
    file = inspect(saved(text, tmp_path / "cached.onnx")).file
    assert file.fixed == {"in_cache0": 0, "in_cache1": 0}
    assert file.roles["in_cache1"].reason.endswith("the next one is output out_cache1")


def test_its_config_trains_the_file_at_the_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inspection = inspect(saved(WORDS, tmp_path / "words.onnx"))
    assert inspection.error is None
    assert inspection.dtypes == {"ids": "int64", "length": "int64", "y": "float32"}  # three columns of numbers
    (tmp_path / "my" / "experiment").mkdir(parents=True)
    (tmp_path / "my" / "experiment" / "train_words.yaml").write_text(inspection.config, encoding="utf-8")
    rng = np.random.default_rng(1)
    ids, length = rng.integers(0, 7, (12, *inspection.shapes["ids"])), np.full(12, inspection.shapes["ids"][0])
    np.savez("rows.npz", ids=ids, length=length, y=np.arange(12) % 3)
    trained = run("experiment=train_words", "train.epochs=2", "recorder=none", "figures=false", config_dir="my")
    assert trained.status == "FINISHED"
    assert trained.artifact("train").facts.task == "multiclass"  # by the labels


def test_a_number_that_only_the_user_knows_is_left_open(tmp_path: Path) -> None:
    text = STATE.replace("Equal(rate, full)", "Greater(rate, full)")
    inspection = inspect(saved(text, tmp_path / "voice.onnx"))
    assert inspection.unset == ["convert.source.fixed.rate"]
    assert "rows    rows.npz with sound, and the labels y" in inspection.text
    assert "rate: '???'" in inspection.config
    assert "not tried: set convert.source.fixed.rate in the config" in inspection.text


def test_a_file_that_cannot_train_says_why(tmp_path: Path) -> None:
    text = STATE.replace("Sigmoid(z)", "Floor(z)")
    inspection = inspect(saved(text, tmp_path / "steps.onnx"))
    assert inspection.error is not None
    assert str(inspection.error).splitlines()[0] in inspection.text


def test_a_number_per_row_is_positive_and_predictions_that_are_not_finite_say_so(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[N,3] x, float[N] scale) => (float[N,2] y)
      <float[3,2] w = {1,2,3,4,5,6}, int64[1] one = {1}> {
        c = Log(scale) t = Unsqueeze(c, one) h = MatMul(x, w) y = Mul(h, t) }"""
    assert inspect(saved(text, tmp_path / "noise.onnx")).error is None
    text = (
        text.replace("Log(scale)", "Neg(scale)")
        .replace("MatMul(x, w)", "MatMul(r, w)")
        .replace("c =", "r = Log(x) c =")
    )
    assert "Random numbers must give finite predictions" in inspect(saved(text, tmp_path / "log.onnx")).text


def test_trees_that_the_runtime_cannot_load_are_rejected_as_trees(tmp_path: Path) -> None:
    """ai.onnx.ml 5 is newer than the training build of onnxruntime."""
    numbers = {"nodes_splits": [0.5], "leaf_weights": [1.0, 2.0]}
    lists = {
        "nodes_featureids": [0],
        "nodes_trueleafs": [1],
        "nodes_falseleafs": [1],
        "nodes_truenodeids": [0],
        "nodes_falsenodeids": [1],
        "leaf_targetids": [0, 0],
        "tree_roots": [0],
    }
    node = onnx.helper.make_node("TreeEnsemble", ["X"], ["Y"], domain="ai.onnx.ml", n_targets=1, **lists)
    for name, values in {**numbers, "nodes_modes": [0]}.items():
        array = np.array(values, np.uint8 if name == "nodes_modes" else np.float32)
        node.attribute.append(onnx.helper.make_attribute(name, onnx.numpy_helper.from_array(array)))
    graph = onnx.parser.parse_graph("g (float[N,1] X) => (float[N,1] Y) { Y = Identity(X) }")
    graph.node[0].CopyFrom(node)
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("ai.onnx.ml", 5)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "trees.onnx")
    with pytest.raises(ConvertError, match="trees compare inputs with constants"):
        inspect(tmp_path / "trees.onnx")


def test_trees_are_rejected_before_their_numbers_are_parsed(tmp_path: Path) -> None:
    """Of 60 million numbers, as a package ships them, a parsed copy takes more than 2 GB."""
    text = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]> g (float[N,1] x) => (float[N,1] y)
      <int64[1] width = {1}, float one = {1}> { y = ai.onnx.ml.TreeEnsembleRegressor(x) }"""
    model = onnx.parser.parse_model(text)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("nodes_values", np.ones(10**6, np.float32)))
    onnx.save(model, tmp_path / "trees.onnx")
    tracemalloc.start()
    try:
        with pytest.raises(ConvertError, match="trees compare inputs with constants"):
            inspect(tmp_path / "trees.onnx")
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_a_graph_network_is_rejected_as_one(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[M,3] x, int64[2,E] edges) => (float[E,2] y)
      <float[3,2] w = {1,2,3,4,5,6}, int64 zero = {0}> {
        h = MatMul(x, w) ends = Gather(edges, zero) y = Gather(h, ends) }"""
    assert "Graph networks are not supported" in inspect(saved(text, tmp_path / "edges.onnx")).text


def test_invalid_sizes_are_free_and_a_file_without_floats_says_what_to_train(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[M,3] x) => (int64[M] label)
      <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { z = MatMul(x, w) label = ArgMax<axis=1, keepdims=0>(z) }"""
    model = onnx.parser.parse_model(text)
    onnx.save(model, tmp_path / "labels.onnx")
    assert "A model needs a float output to train." in inspect(tmp_path / "labels.onnx").text
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    del model.graph.node[1]
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [-1, 4]))
    onnx.save(model, tmp_path / "invalid.onnx")
    assert inspect(tmp_path / "invalid.onnx").error is None
