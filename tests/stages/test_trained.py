"""What a run trains by default, what it says of it, and how it is told otherwise: from convert to train."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from ortpipe.compat import OrtGradientForwardBackward, get_train_initializer
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import DeriveError, ModelError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.restore.onnx_model import into_onnx
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.early import check
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

rng = np.random.default_rng(0)
SEEN = np.tril(np.ones((6, 6)))
FORMS = {"-inf": np.where(SEEN, 0, -np.inf), "-1e4": np.where(SEEN, 0, -1e4), "0 and 1": SEEN}
ROWS = Data(Rows({"X": rng.normal(size=(24, 6, 4)).astype(np.float32)}, rng.normal(size=(24, 1))))
BLOCK = """g (float[N,6,4] X) => (float[N,1] y) {
  q = MatMul(X, wq) k = MatMul(X, wk) v = MatMul(X, wv) t = Transpose<perm=[0,2,1]>(k) p = MatMul(q, t)
  s = Mul(p, temperature) MASKED w = Softmax<axis=-1>(a) h = MatMul(w, v) i = Add(h, bo)
  n = LayerNormalization(i, g1, b1) axes = Constant<value_ints=[1]>() m = ReduceMean<keepdims=0>(n, axes)
  z = MatMul(m, wy) y = Add(z, by) }"""
ADDED, SCALED = "a = Add(s, mask)", "r = Mul(s, mask) o = Sub(one, mask) l = Mul(o, low) a = Add(r, l)"
WEIGHTS = ("wq", "wk", "wv", "bo", "g1", "b1", "wy", "by")


def gpt(form):
    masked = SCALED if form == "0 and 1" else ADDED
    arrays = {n: rng.normal(size=(4, 4)) / 2 for n in ("wq", "wk", "wv")}
    arrays |= {"bo": np.zeros(4), "g1": np.ones(4), "b1": np.zeros(4)}
    arrays |= {"wy": rng.normal(size=(4, 1)), "by": np.zeros(1)}
    arrays |= {"temperature": np.array([0.5]), "mask": FORMS[form], "one": np.ones(()), "low": np.full((), -1e9)}
    text = BLOCK.replace("MASKED", masked)
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    read = {name for node in model.graph.node for name in node.input}
    held = [onnx.numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in arrays.items() if n in read]
    model.graph.initializer.extend(held)
    return model


def forward(form="-inf", **told):
    model = gpt(form)
    if not told:
        return convert(model, data=ROWS)
    return convert(model, ConvertConfig(OnnxFile("model"), **told), data=ROWS)


def loss_of(artifact):
    return add_loss(artifact, AddLossConfig(LOSSES["l2"]()))


def notes(artifact):
    return artifact.facts.lineage[-1].get("notes", [])


@pytest.mark.parametrize("form", FORMS)
def test_training_leaves_a_causal_mask_as_it_is_and_says_so(form):
    artifact = forward(form)
    assert artifact.facts.parameters == WEIGHTS
    assert set(artifact.facts.constants) >= {"mask", "temperature"}
    [note] = notes(artifact)
    assert note.startswith(f"trains 8 of {8 + len(artifact.facts.constants)} float initializers by default: wq, wk, wv")
    assert "leaves temperature" in note
    assert "mask (" in note
    charged = penalty(loss_of(artifact), PenaltyConfig({"*": {"l2": 0.01}}))
    result = train(derive(charged), TrainConfig(OPTIMIZERS["adam"](lr=0.05), epochs=4, batch_size=8), data=ROWS)
    after = {t.name: onnx.numpy_helper.to_array(t) for t in result.model.graph.initializer}
    np.testing.assert_array_equal(after["mask"], FORMS[form].astype(np.float32))
    assert result.tensors["losses/train"][-1] < result.tensors["losses/train"][0]
    assert np.isfinite(result.tensors["losses/train"]).all()


def test_derive_trains_what_it_is_told_and_says_so():
    loss = loss_of(forward("-1e4"))
    named = derive(loss, DeriveConfig(parameters=("wy", "mask", "temper*")))
    assert named.facts.parameters == ("wy", "temperature", "mask")
    assert notes(named) == [
        "trains 3 of 10 float initializers: wy, temperature, mask; leaves wq, wk, wv and 4 more (not in "
        "derive.parameters); only because derive.parameters says so: temperature, mask"
    ]
    frozen = derive(loss, DeriveConfig(frozen=("w[qkv]",)))
    assert frozen.facts.parameters == ("bo", "g1", "b1", "wy", "by")
    assert "leaves wq, wk, wv (derive.frozen), temperature, mask (by default)" in notes(frozen)[0]
    assert notes(derive(loss)) == []


def test_a_pattern_of_what_is_left_by_default_is_no_mistake_and_a_misspelt_one_is_found_before_any_work():
    facts = forward("-1e4").facts
    check(facts, DeriveConfig(parameters=("mask", "temper*"), frozen=("wq",)))
    for wrong in ({"parameters": ("msak",)}, {"frozen": ("wz*",)}):
        with pytest.raises(DeriveError, match="must match a parameter"):
            check(facts, DeriveConfig(**wrong))


def test_what_is_not_finite_is_named_before_it_is_trained():
    with pytest.raises(DeriveError, match=r"finite numbers(.|\n)*infinite values in mask\n(.|\n)*frozen"):
        derive(loss_of(forward("-inf")), DeriveConfig(parameters=("mask", "wq")))
    model = gpt("-inf")
    [weight] = [t for t in model.graph.initializer if t.name == "wk"]
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full((4, 4), np.nan, np.float32), "wk"))
    loss = loss_of(convert(model))
    with pytest.raises(DeriveError, match=r"values in wk\n"):
        derive(loss)
    assert "wk" not in derive(loss, DeriveConfig(frozen=("wk",))).facts.parameters


def merged():
    """Return the model as exporters write it: equal values held once."""
    model = gpt("-1e4")
    for node in model.graph.node:
        node.input[:] = ["bo" if name == "b1" else name for name in node.input]
    kept = [t for t in model.graph.initializer if t.name != "b1"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def test_merged_initializers_are_told_of_and_untie_parts_them():
    tied = convert(merged(), data=ROWS)
    assert "several nodes read bo (by 2 nodes)" in notes(tied)[1]
    assert "convert.tie=false" in notes(tied)[1]
    parted = convert(merged(), ConvertConfig(OnnxFile("model"), tie=False), data=ROWS)
    assert len(parted.facts.parameters) == len(WEIGHTS)
    assert {"bo/i", "bo/n"} < set(parted.facts.parameters)
    assert len(notes(parted)) == 1
    assert parted.facts.lineage[0]["discrepancy"] == tied.facts.lineage[0]["discrepancy"] == 0
    result = train(derive(loss_of(parted)), TrainConfig(epochs=2, batch_size=8), data=ROWS)
    assert not np.array_equal(result.tensors["parameter/bo/i"], result.tensors["parameter/bo/n"])


def words_model(turned):
    """Return a classifier of words whose head is its table or a copy, and the value of the head."""
    table = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    held = {"head": table.T, "table": table, "other": -table.T, "one": table}[turned]
    head = "table" if turned == "one" else "head"
    product = "y = MatMul(m, head)" if turned in ("head", "other") else f"t = Transpose({head}) y = MatMul(m, t)"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (int64[N,5] X) => (float[N,6] y)
      {{ e = Gather(table, X) a = Constant<value_ints=[1]>() m = ReduceMean<keepdims=0>(e, a) {product} }}""")
    arrays = {"table": table, head: held}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    return model


@pytest.mark.parametrize("turned", ["head", "table"])
def test_tied_copies_are_trained_as_one_weight_and_go_back_to_both_places(turned, tmp_path):
    rows = Data(Rows({"X": rng.integers(0, 6, (24, 5))}, rng.normal(size=(24, 6)).astype(np.float32)))
    config = TrainConfig(OPTIMIZERS["sgd"](lr=0.5), epochs=3, batch_size=8)
    tied = convert(words_model(turned), ConvertConfig(OnnxFile("model"), tie=True), data=rows)
    assert tied.facts.parameters == ("table",)
    results = [
        train(derive(loss_of(each)), config, data=rows) for each in (tied, convert(words_model("one"), data=rows))
    ]
    moved, expected = (result.initializers["table"] for result in results)
    np.testing.assert_allclose(moved, expected, rtol=1e-6)
    onnx.save(words_model(turned), tmp_path / "file.onnx")
    values = {"trained": {"table": moved}, "untrained": {}, "origins": tied.facts.lineage[0]["origins"]}
    decision = into_onnx(tmp_path / "file.onnx", tmp_path / "out.onnx", **values)
    assert decision.written == ("table",)
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    np.testing.assert_array_equal(arrays["table"], moved)
    np.testing.assert_array_equal(arrays["head"], moved.T if turned == "head" else moved)


@pytest.mark.parametrize(("turned", "told"), [("head", "transposed copy of"), ("table", "copy of"), ("other", None)])
def test_copies_that_are_trained_apart_are_told_of(turned, told):
    artifact = convert(words_model(turned))
    assert artifact.facts.parameters == ("table", "head")
    expected = [f"trains head (a {told} table) apart; convert.tie=true trains them together"]
    assert notes(artifact)[1:] == (expected if told else [])


@pytest.mark.parametrize("after", ["v1 = Neg(v) q1 = Neg(q)", "v1 = Identity(q) q1 = Identity(v)"])
def test_a_state_that_a_loop_changes_is_no_weight_unless_it_is_named(after):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> g (float[N,2] x) => (float[N,2] y)
      <float[2,2] w = {{1, 2, 3, 4}}, float[2,2] u = {{4, 3, 2, 1}}, int64 three = {{3}}, bool yes = {{1}}> {{
        y, v_out, q_out = Loop(three, yes, x, w, u) <body = b
          (int64 i, bool c, float[N,2] h, float[2,2] v, float[2,2] q) =>
          (bool c1, float[N,2] h1, float[2,2] v1, float[2,2] q1) {{
            c1 = Identity(c) z = MatMul(h, v) h1 = Tanh(z) {after} }}> }}""")
    loss = loss_of(convert(model))
    with pytest.raises(DeriveError, match=r"leaves w, u \(a state that Loop changes at each step") as caught:
        derive(loss)
    assert "parameters" in caught.value.fix
    assert derive(loss, DeriveConfig(parameters=("w",))).facts.parameters == ("w",)


def test_a_running_statistic_that_is_a_weight_too_is_parted_before_it_moves():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,2] X) => (float[N,1] y)
      <float[2] one = {1, 1}, float[2] zero = {0, 0}, float[2,1] w = {1, 2}> {
      h, m, v = BatchNormalization<training_mode=1>(X, one, zero, zero, one) y = MatMul(h, w) }"""
    model = onnx.parser.parse_model(text)
    with pytest.raises(ModelError, match=r"own copy"):
        derive(loss_of(convert(model)))
    parted = derive(loss_of(convert(model, ConvertConfig(OnnxFile("model"), tie=False))))
    assert len(parted.facts.statistics) == 2
    assert len(parted.facts.parameters) == 3


def test_compat_trains_the_same_by_default():
    model = gpt("-inf")
    assert tuple(get_train_initializer(model)) == WEIGHTS
    assert tuple(OrtGradientForwardBackward(model).weights_to_train) == WEIGHTS
