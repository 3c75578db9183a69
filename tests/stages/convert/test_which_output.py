"""The prediction agrees with the labels that a file computes itself; the labels come from onnxruntime, of the file."""

import numpy as np
import onnx
import onnx.parser
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError
from ortpipe.metrics.predictions import predicted
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.reading.graph_settings import Given
from ortpipe.stages.convert.stage import convert

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2)).astype(np.float32)
YES = X[:, 0] + 0.3 * rng.normal(size=60) > 0
CLASS = np.digitize(X[:, 0], [-0.5, 0.5])
FLAGS = '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>'
TWO = "<float[2,1] w = {3, 0}, float one = {1}, float half = {0.5}, int64[1] axis = {1}>"
THREE = "<float[2,3] w = {-3, 0, 3, 0, 0, 0}, float[3] b = {0, 1, 0}, int64[3] table = {2, 1, 0}, int64[1] axis = {1}>"
LABEL = "is = Greater(yes, half) flat = Squeeze(is, axis) label = Cast<to=7>(flat)"
Z = "h = MatMul(x, w) z = Add(h, b)"
# outputs; weights; nodes; labels of the rows; the prediction, its classes
FILES = {
    "P(no) alone": (
        "float[N,1] score",
        TWO,
        f"z = MatMul(x, w) yes = Sigmoid(z) score = Sub(one, yes) {LABEL}",
        YES,
        "score",
        (1, 0),
    ),
    "one output per class": (
        "float[N,1] no, float[N,1] yes",
        TWO,
        f"z = MatMul(x, w) yes = Sigmoid(z) no = Sub(one, yes) {LABEL}",
        YES,
        "yes",
        (0, 1),
    ),
    "features first": (
        "float[N,2] h2, float[N,1] yes",
        TWO.replace(">", ", float[2,2] v = {1, 0, 0, 1}, float[2,1] u = {3, 0}>"),
        f"h2 = MatMul(x, v) z = MatMul(h2, u) yes = Sigmoid(z) {LABEL}",
        YES,
        "yes",
        (0, 1),
    ),
    "columns in another order": (
        "float[N,3] p",
        THREE,
        f"{Z} p = Softmax(z) i = ArgMax<axis=1, keepdims=0>(p) label = Gather(table, i)",
        2 - CLASS,
        "p",
        (2, 1, 0),
    ),
    "scores, then probabilities": (
        "float[N,3] z, float[N,3] p",
        THREE,
        f"{Z} p = Softmax(z) label = ArgMax<axis=1, keepdims=0>(p)",
        CLASS,
        "z",
        (0, 1, 2),
    ),
}


def file(outputs, weights, nodes):
    return onnx.parser.parse_model(f"{FLAGS} g (float[N,2] x) => (int64[N] label, {outputs}) {weights} {{ {nodes} }}")


@pytest.mark.parametrize(("outputs", "weights", "nodes", "labels", "prediction", "classes"), FILES.values(), ids=FILES)
def test_the_prediction_is_the_output_that_agrees_with_the_labels_of_the_file(
    outputs, weights, nodes, labels, prediction, classes
):
    model = file(outputs, weights, nodes)
    facts = convert(model, data=Data(Rows({"x": X}, labels.astype(int)))).facts
    assert (facts.prediction, facts.classes) == (prediction, classes)
    own, values = Session(model).run({"x": X}, ["label", prediction])
    assert (np.array(facts.classes)[predicted(facts, values)[0]] == own).mean() == 1


def test_of_two_outputs_of_other_numbers_one_must_be_chosen():
    text = "g (float[N,2] x) => (float[N,2,2] a, float[N,2,2] b) <float[2,4] w = {1, 0, 2, 0, 1, 1, 0, 3}>"
    nodes = "s = Constant<value_ints=[0,2,2]>() h = MatMul(x, w) n = Neg(h) a = Reshape(h, s) b = Reshape(n, s)"
    data = Data(Rows({"x": X}, np.hstack([X, X]) + 0.5))
    with pytest.raises(ConvertError, match=r"one must be chosen(.|\n)*prediction=a or .*prediction=b"):
        convert(onnx.parser.parse_model(f"{FLAGS} {text} {{ {nodes} }}"), data=data)


def test_of_two_regressions_whose_signs_agree_one_must_be_chosen():
    text = "g (float[N,2] x) => (float[N,1] a, float[N,1] b) <float[2,1] w = {1, 2}, float k = {3}, float[1,1] c = {9}>"
    model = onnx.parser.parse_model(f"{FLAGS} {text} {{ m = MatMul(x, w) q = Mul(m, m) a = Add(q, c) b = Mul(a, k) }}")
    with pytest.raises(ConvertError, match=r"one must be chosen(.|\n)*prediction=a or .*prediction=b"):
        convert(model, data=Data(Rows({"x": X}, X.sum(axis=1) + 0.5)))


SPLIT = f"{Z} p = Softmax(z) a, b1, c = Split<axis=1>(p) label = ArgMax<axis=1, keepdims=0>(p)"


def test_an_output_per_class_of_three_is_rejected_with_the_value_that_agrees():
    model = file("float[N,1] a, float[N,1] b1, float[N,1] c", THREE, SPLIT)
    rows = Data(Rows({"x": X}, CLASS))
    with pytest.raises(ConvertError, match=r"labels that the file itself computes(.|\n)*Set prediction=p,"):
        convert(model, data=rows)
    facts = convert(model, ConvertConfig(Given(prediction="p")), data=rows).facts
    assert (facts.task, facts.logits) == ("multiclass", "z")


def test_sigmoids_of_classes_that_exclude_each_other_are_asked_about_once():
    model = file("float[N,3] p", THREE, f"{Z} p = Sigmoid(z) label = ArgMax<axis=1, keepdims=0>(p)")
    rows = Data(Rows({"x": X}, CLASS))
    with pytest.raises(ConvertError, match=r"prediction=z source\.task=multiclass source\.scores=logits"):
        convert(model, data=rows)
    told = Given(prediction="z", task="multiclass", scores="logits")
    assert convert(model, ConvertConfig(told), data=rows).facts.task == "multiclass"


@pytest.mark.parametrize("kind", ["bool", "uint8", "int32", "float", "double"])
def test_labels_of_every_type_decide(kind):
    cast = f"label = Cast<to={onnx.TensorProto.DataType.Value(kind.upper())}>(flat)"
    text = f"{FLAGS} g (float[N,2] x) => ({kind}[N] label, float[N,1] score) {TWO}"
    nodes = f"z = MatMul(x, w) yes = Sigmoid(z) score = Sub(one, yes) {LABEL.partition('label')[0]} {cast}"
    facts = convert(onnx.parser.parse_model(f"{text} {{ {nodes} }}"), data=Data(Rows({"x": X}, YES.astype(int)))).facts
    assert (facts.prediction, facts.classes) == ("score", (1, 0))


def test_labels_in_the_order_of_the_columns_outweigh_a_table_that_is_none_of_labels():
    nodes = f"{Z} p = Softmax(z) label = ArgMax<axis=1, keepdims=0>(p) rank = Gather(table, label)"
    model = file("int64[N] rank, float[N,3] p", THREE, nodes)
    assert convert(model, data=Data(Rows({"x": X}, CLASS))).facts.classes == (0, 1, 2)


def test_an_output_of_counts_is_no_label():
    model = file("float[N,3] p", THREE, f"{Z} p = Softmax(z) s = Shape<start=0, end=1>(x) label = Expand(axis, s)")
    assert convert(model, data=Data(Rows({"x": X}, CLASS))).facts.classes == (0, 1, 2)


BOXES = "<float[2,4] v = {1, 2, 3, 4, 5, 6, 7, 8}, float[2,2] w = {-3, 3, 0, 0}>"


def without_labels(outputs, nodes):
    return onnx.parser.parse_model(f"{FLAGS} g (float[N,2] x) => ({outputs}) {BOXES} {{ {nodes} }}")


def test_of_outputs_without_labels_the_one_that_fits_those_of_the_rows_is_trained():
    model = without_labels("float[N,4] box, float[N,2] p", "box = MatMul(x, v) z = MatMul(x, w) p = Softmax(z)")
    facts = convert(model, data=Data(Rows({"x": X}, YES.astype(int)))).facts
    assert (facts.prediction, facts.task) == ("p", "multiclass")
    boxes = Data(Rows({"x": X}, rng.normal(size=(60, 4))))
    assert convert(model, data=boxes).facts.prediction == "box"


def test_a_share_is_no_value_of_class_indices():
    parts = "a = MatMul(x, v) p = Softmax(a) first, more, c, d = Split<axis=1, num_outputs=4>(p)"
    text = "float[N,1] first, float[N,1] more, float[N,1] c, float[N,1] d"
    model = without_labels(text, parts.replace(", num_outputs=4", ""))
    rows = Data(Rows({"x": X}, np.arange(60) % 4))
    with pytest.raises(
        ConvertError, match=r"labels outside \[0, 1\], which excludes plain values(.|\n)*value inside of the graph"
    ):
        convert(model, data=rows)
    assert convert(model, ConvertConfig(Given(prediction="p")), data=rows).facts.task == "multiclass"


def test_two_outputs_that_fit_the_labels_and_differ_are_asked_about():
    model = without_labels(
        "float[N,4] first, float[N,2] other, float[N,2] p",
        "first = MatMul(x, v) a = MatMul(x, w) p = Softmax(a) b = Neg(a) other = Softmax(b)",
    )
    rows = Data(Rows({"x": X}, YES.astype(int)))
    with pytest.raises(ConvertError, match=r"Set prediction=other or prediction=p\."):
        convert(model, data=rows)
    assert convert(model, ConvertConfig(Given(prediction="p")), data=rows).facts.logits == "a"
