"""Heads of classifiers in many forms: the loss of each is scikit-learn's log loss of its own probabilities."""

import functools

import numpy as np
import onnx.parser
import pytest
from scipy.special import expit, softmax
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from ortpipe.artifact_folder import save_artifact
from ortpipe.data.feeds import feeds
from ortpipe.data.labels import class_index
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError, DataError, LossError
from ortpipe.metrics.predictions import predicted
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.reading.graph_settings import Given
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive

X, Y = load_iris(return_X_y=True)
X = X.astype(np.float32)
NEG = "Constant <value = float {-1}> ()"
AXES = "Constant <value = int64[1] {%s}> ()"
EXP = "m = ReduceMax <keepdims = 1> (z, last) s = Sub(z, m) e = Exp(s) t = ReduceSum <keepdims = 1> (e, last) "
TOP = f"last = {AXES % -1} first = {AXES % 0} second = {AXES % 1} one = Constant <value = float {{1}}> () "
TOP += "two = Constant <value = float {2}> () "
PAIR = "p = Sigmoid(z) q = Sub(one, p) "
# name: end of a graph from z [N, K] to Y; K; the type and shape of Y; task; whether logits are found
ENDS = {
    "softmax": ("Y = Softmax <axis = 1> (z)", 3, "float[N, 3]", "multiclass", True),
    "reshape": (
        "s = Softmax(z) r = Constant <value = int64[2] {-1, 3}> () Y = Reshape(s, r)",
        3,
        "",
        "multiclass",
        True,
    ),
    "flatten": ("s = Softmax(z) Y = Flatten(s)", 3, "", "multiclass", True),
    "double": ("d = Cast <to = 11> (z) s = Softmax(d) Y = Cast <to = 1> (s)", 3, "", "multiclass", True),
    "to double": ("s = Softmax(z) Y = Cast <to = 11> (s)", 3, "double[N, 3]", "multiclass", True),
    "clip": (
        "lo = Constant <value = float {1e-7}> () hi = Constant <value = float {0.9999999}> () "
        "s = Softmax(z) Y = Clip(s, lo, hi)",
        3,
        "",
        "multiclass",
        True,
    ),
    "squeezed after axis 1": (
        "u = Unsqueeze(z, last) s = Softmax <axis = 1> (u) Y = Squeeze(s, last)",
        3,
        "",
        "multiclass",
        True,
    ),
    "image, transposed": (
        "u = Unsqueeze(z, last) v = Unsqueeze(u, last) s = Softmax <axis = 1> (v) "
        "t = Transpose <perm = [0, 2, 3, 1]> (s) Y = Flatten(t)",
        3,
        "",
        "multiclass",
        True,
    ),
    "transposed twice": (
        "a = Transpose <perm = [1, 0]> (z) s = Softmax <axis = 0> (a) Y = Transpose <perm = [1, 0]> (s)",
        3,
        "",
        "multiclass",
        True,
    ),
    "log, exp": ("l = LogSoftmax(z) Y = Exp(l)", 3, "", "multiclass", True),
    "written": (EXP + "Y = Div(e, t)", 3, "", "multiclass", True),
    "written, as jax has it": (
        "m = ReduceMax <keepdims = 0> (z, last) low = Constant <value = float {-3e38}> () k = Max(low, m) "
        "c = Constant <value = int64[2] {-1, 1}> () r = Reshape(k, c) w = Shape(z) b = Expand(r, w) s = Sub(z, b) "
        "e = Exp(s) t = ReduceSum <keepdims = 0> (e, last) n = Reshape(t, c) d = Expand(n, w) Y = Div(e, d)",
        3,
        "",
        "multiclass",
        True,
    ),
    "written, reciprocal": (
        "e = Exp(z) t = ReduceSum (e, last) i = Reciprocal(t) Y = Mul(e, i)",
        3,
        "",
        "multiclass",
        True,
    ),
    "temperature": ("c = Div(z, two) Y = Softmax(c)", 3, "", "multiclass", True),
    "clipped and scaled": (
        "lo = Constant <value = float {0.01}> () hi = Constant <value = float {1}> () "
        "s = Softmax(z) c = Clip(s, lo, hi) t = ReduceSum(c, last) Y = Div(c, t)",
        3,
        "",
        "multiclass",
        False,
    ),
    "mean of softmaxes": ("g = Mul(z, two) a = Softmax(z) b = Softmax(g) Y = Mean(a, b)", 3, "", "multiclass", False),
    "half their sum": (
        "g = Mul(z, two) a = Softmax(z) b = Softmax(g) c = Add(a, b) Y = Div(c, two)",
        3,
        "",
        "multiclass",
        False,
    ),
    "one versus rest": ("a = Sigmoid(z) t = ReduceSum(a, last) Y = Div(a, t)", 3, "", "multiclass", False),
    "logarithm": ("Y = LogSoftmax(z)", 3, "", "multiclass", True),
    "logarithm of a softmax": ("s = Softmax(z) Y = Log(s)", 3, "", "multiclass", True),
    "sigmoid": ("Y = Sigmoid(z)", 1, "float[N, 1]", "binary", True),
    "sigmoid, cast": ("d = Cast <to = 11> (z) s = Sigmoid(d) Y = Cast <to = 1> (s)", 1, "", "binary", True),
    "sigmoid, reshaped": ("f = Squeeze(z, last) s = Sigmoid(f) Y = Unsqueeze(s, last)", 1, "", "binary", True),
    "sigmoid, written": ("n = Neg(z) e = Exp(n) d = Add(e, one) Y = Div(one, d)", 1, "", "binary", True),
    "sigmoid, clipped far": (
        "lo = Constant <value = float {0.01}> () hi = Constant <value = float {0.99}> () "
        "s = Sigmoid(z) Y = Clip(s, lo, hi)",
        1,
        "",
        "binary",
        False,
    ),
    "pair": (PAIR + "Y = Concat <axis = 1> (q, p)", 1, "float[N, 2]", "binary", True),
    "pair, cast": (
        PAIR + "c = Concat <axis = 1> (q, p) d = Cast <to = 11> (c) Y = Cast <to = 1> (d)",
        1,
        "float[N, 2]",
        "binary",
        True,
    ),
    "pair, other order": (PAIR + "Y = Concat <axis = 1> (p, q)", 1, "float[N, 2]", "multiclass", False),
    "pair, stacked": (
        "f = Squeeze(z, last) p = Sigmoid(f) q = Sub(one, p) a = Unsqueeze(q, last) b = Unsqueeze(p, last) "
        "Y = Concat <axis = 1> (a, b)",
        1,
        "float[N, 2]",
        "binary",
        True,
    ),
    "column 1 of a softmax": ("s = Softmax(z) Y = Slice(s, second, e2, second)", 2, "float[N, 1]", "binary", False),
    "softmax of two": ("Y = Softmax(z)", 2, "float[N, 2]", "multiclass", True),
}


@functools.cache
def weights(columns):
    """Return a linear model of iris, of as many columns, that is right for most rows and not for all."""
    fitted = LogisticRegression(C=0.05).fit(X, Y if columns == 3 else Y > 0)
    w, b = fitted.coef_.T, fitted.intercept_
    return (
        (w, b) if columns == 3 else (np.hstack([-w, w])[:, -columns:] / columns, np.append(-b, b)[-columns:] / columns)
    )


def model(end, columns, output="", *, name="Y", more=""):
    w, b = weights(columns)
    listed = (", ".join(f"{number:.6f}" for number in np.ravel(array)) for array in (w, b))
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[N, 4] X) => '
        f"({output or f'float[N, {columns}]'} Y{more}) <float[4, {columns}] weight = {{{next(listed)}}}, "
        f"float[{columns}] bias = {{{next(listed)}}}> "
        f"{{ {TOP} e2 = {AXES % 2} h = MatMul(X, weight) z = Add(h, bias) {end} }}"
    )
    found = onnx.parser.parse_model(text)
    for node in found.graph.node:
        node.output[:] = [name if o == "Y" else o for o in node.output]
        node.input[:] = [name if i == "Y" else i for i in node.input]
    for value in found.graph.output:
        value.name = name if value.name == "Y" else value.name
    return found


def data(kinds):
    return Data(Rows({"X": X}, Y if kinds == 3 else (Y > 0).astype(int)))


def converted(tmp_path, found, kinds, **told):
    onnx.save(found, tmp_path / "a.onnx")
    return convert(None, ConvertConfig(OnnxFile(str(tmp_path / "a.onnx"), **told)), data=data(kinds))


def loss_of(artifact, rows):
    name = "cross_entropy" if artifact.facts.task == "multiclass" else "log"
    made = add_loss(artifact, AddLossConfig(LOSSES[name](), reduction="mean"))
    fed = feeds(made.model, made.facts, rows)
    [loss] = Session(made.model).run(fed, [made.facts.loss])
    return float(loss)


@pytest.mark.parametrize(("end", "columns", "output", "task", "logits"), ENDS.values(), ids=ENDS)
def test_the_loss_of_any_head_is_the_log_loss_of_its_probabilities(tmp_path, end, columns, output, task, logits):
    found = model(end, columns, output)
    artifact = converted(tmp_path, found, 3 if columns == 3 else 2)
    assert (artifact.facts.task, artifact.facts.logits is not None) == (task, logits)
    rows = data(3 if columns == 3 else 2).train
    [p] = Session(found).run({"X": X})
    p = np.exp(p) if "Log" in end and "Exp" not in end else p
    [again] = Session(artifact.model).run({"X": X}, [artifact.facts.prediction])
    label = rows.label
    if "(p, q)" in end:
        label, rows = 1 - label, Rows({"X": X}, 1 - rows.label)
    _, probability = predicted(artifact.facts, again)
    p = np.hstack([1 - p, p]).astype(np.float64) if p.shape[1] == 1 else p.astype(np.float64)
    expected = log_loss(label, p / p.sum(axis=1, keepdims=True))  # float32 rows sum to 1 ± 1e-7
    assert loss_of(artifact, rows) == pytest.approx(expected, rel=2e-6)
    assert log_loss(label, probability) == pytest.approx(expected, rel=2e-6)


def test_the_rows_decide_where_the_end_of_the_graph_is_too_long_to_run(tmp_path):
    chain = " ".join(f"c{i + 1} = Identity(c{i})" for i in range(200))
    found = model(f"c0 = Softmax(z) {chain} Y = Identity(c200)", 3)
    facts = converted(tmp_path, found, 3).facts
    *_, note = facts.lineage[0]["notes"]
    assert "'Y' (values in [0, 1], and each row sums to 1) is taken as probabilities" in note
    with pytest.raises(ConvertError, match=r"probabilities or raw scores(.|\n)*no rows(.|\n)*source\.scores"):
        convert(None, ConvertConfig(OnnxFile(str(tmp_path / "a.onnx"), task="multiclass")))


LABEL = "label = ArgMax <axis = 1, keepdims = 0> (Y)"
OPPOSITE = f"n = Neg(z) Y = Concat <axis = 1> (n, z) {LABEL}"
DOUBTS = {  # end, columns of z, type of Y, name of Y, what is told, what the error names
    "scores called probabilities": (f"Y = Identity(z) {LABEL}", 3, "", "probabilities", {}, "scores=logits"),
    "a hinge's pair": (OPPOSITE, 1, "float[N, 2]", "probabilities", {}, "outside(.|\n)*scores=logits"),
    "scores told to be probabilities": ("Y = Identity(z)", 3, "", "Y", {"scores": "probabilities"}, "scores=logits"),
    "a linear end that sums to 1": (
        "o = Softmax(z) i = EyeLike(wide) Y = MatMul(o, i)",
        3,
        "",
        "Y",
        {},
        "no softmax or sigmoid bounds them(.|\n)*scores=probabilities",
    ),
    "sigmoids of exclusive classes": ("Y = Sigmoid(z)", 3, "", "Y", {"task": "multiclass"}, "prediction=z"),
    "sigmoids, clipped far": (
        "lo = Constant <value = float {0.01}> () hi = Constant <value = float {0.9}> () "
        "s = Sigmoid(z) Y = Clip(s, lo, hi)",
        3,
        "",
        "Y",
        {},
        "task=regression",
    ),
    "three columns of a binary model": ("Y = Softmax(z)", 3, "", "Y", {"task": "binary"}, "source.task"),
    "two classes for three columns": ("Y = Softmax(z)", 3, "", "Y", {"classes": ("a", "b")}, "List 3"),
    "a softmax over the rows": ("Y = Softmax <axis = 0> (z)", 3, "", "Y", {}, "source.task"),
    "the logarithm of a sigmoid": (
        "s = Sigmoid(z) Y = Log(s)",
        1,
        "",
        "Y",
        {"task": "binary"},
        "prediction=z source.task=binary",
    ),
    "values that random numbers leave unknown": (
        "c = Constant <value = float {10}> () d = Div(z, c) e = Mul(d, d) f = Sub(one, e) Y = Sqrt(f)",
        1,
        "",
        "Y",
        {"task": "binary"},
        "scores=probabilities",
    ),
    "a hard maximum": ("Y = Hardmax(z)", 3, "", "Y", {}, "no gradient"),
}


@pytest.mark.parametrize(("end", "columns", "output", "name", "told", "named"), DOUBTS.values(), ids=DOUBTS)
def test_a_doubt_stops_and_names_the_way_out(tmp_path, end, columns, output, name, told, named):
    end = end.replace("EyeLike(wide)", "Constant <value = float[3, 3] {1, 0, 0, 0, 1, 0, 0, 0, 1}> ()")
    found = model(end, columns, output, name=name, more=", int64[N] label" if "label" in end else "")
    with pytest.raises(ConvertError, match=named):
        converted(tmp_path, found, 3 if columns == 3 else 2, **told)


@pytest.mark.parametrize(
    ("end", "columns", "output", "told", "probabilities"),
    [
        (f"Y = Identity(z) {LABEL}", 3, "", {"scores": "logits"}, lambda z: softmax(z, axis=1)),
        ("Y = Identity(z)", 3, "", {"scores": "logits"}, lambda z: softmax(z, axis=1)),
        ("Y = Identity(z)", 3, "", {"task": "multiclass"}, lambda z: softmax(z, axis=1)),
        ("Y = Identity(z)", 1, "", {"task": "binary"}, lambda z: expit(z[:, 0])),
        ("Y = Identity(z)", 1, "", {"scores": "logits"}, lambda z: expit(z[:, 0])),
        (OPPOSITE, 1, "float[N, 2]", {"scores": "logits"}, lambda z: expit(z[:, 1])),
        (
            "a = Tanh(z) b = Mul(a, a) Y = Sub(one, b)",
            1,
            "",
            {"task": "binary", "scores": "probabilities"},
            lambda p: p[:, 0],
        ),
        ("a = Tanh(z) b = Mul(a, a) Y = Sub(one, b)", 1, "", {"scores": "logits"}, lambda z: expit(z[:, 0])),
    ],
)
def test_what_is_told_mends_a_doubt(tmp_path, end, columns, output, told, probabilities):
    name = "probabilities" if "label" in end else "Y"
    found = model(end, columns, output, name=name, more=", int64[N] label" if "label" in end else "")
    artifact = converted(tmp_path, found, 3 if columns == 3 else 2, **told)
    rows = data(3 if columns == 3 else 2).train
    values = Session(found).run({"X": X}, [name])[0].astype(np.float64)
    expected = log_loss(rows.label, probabilities(values))
    assert loss_of(artifact, rows) == pytest.approx(expected, rel=2e-6)
    assert log_loss(rows.label, predicted(artifact.facts, values)[1]) == pytest.approx(expected, rel=1e-9)
    save_artifact(artifact, tmp_path / "kept")  # and what is told is in the file
    again = convert(tmp_path / "kept" / "model.onnx").facts
    assert (again.task, again.logits, again.opposite) == (
        artifact.facts.task,
        artifact.facts.logits,
        artifact.facts.opposite,
    )


@pytest.mark.parametrize(("bias", "named"), [("nan", "not finite: b"), ("-100", "the scale of its inputs")])
def test_a_prediction_that_is_not_finite_is_said(tmp_path, bias, named):
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 4] X) => (float[N, 1] Y)
    <float[4, 1] w = {0, 0, 0, 0}, float[1] b = {1}> { h = MatMul(X, w) z = Add(h, b) Y = Sqrt(z) }"""
    found = onnx.parser.parse_model(text)
    found.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.array([float(bias)], np.float32), "b"))
    with pytest.raises(ConvertError, match=f"of 'Y' in .* rows(.|\n)*{named}"):
        converted(tmp_path, found, 2)


def test_a_fresh_layer_of_two_zero_scores_is_no_pair_of_opposite_ones(tmp_path):
    found = model("n = Sub(z, z) Y = Concat<axis = 1>(n, n)", 1, "float[N, 2]")
    assert converted(tmp_path, found, 2, task="binary", scores="logits").facts.opposite is None


@pytest.mark.parametrize("kinds", [2, 3])
@pytest.mark.parametrize("raw", [False, True])
def test_a_logistic_regression_from_skl2onnx_has_the_log_loss_of_its_estimator(tmp_path, kinds, raw):
    rows = data(kinds).train
    fitted = LogisticRegression(max_iter=300).fit(X, rows.label)
    found = to_onnx(fitted, X[:1], options={"zipmap": False, "raw_scores": raw}, target_opset=17)
    artifact = converted(tmp_path, found, kinds, **({"scores": "logits"} if raw else {}))
    assert artifact.facts.logits is not None
    assert not any("is taken as" in note for note in artifact.facts.lineage[0]["notes"])
    assert loss_of(artifact, rows) == pytest.approx(log_loss(rows.label, fitted.predict_proba(X)), rel=1e-5)


LINEAR = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,4] X) => (float[N,%d] Y) <float[4,%d] w = {%s}>
 { Y = MatMul(X, w) }"""


def linear(width):
    return onnx.parser.parse_model(LINEAR % (width, width, ", ".join(map(str, range(4 * width)))))


IS_ONE = Y == 1


@pytest.mark.parametrize(
    ("labels", "width", "open_settings"),
    [
        (IS_ONE, 1, ["task=binary source.scores=logits", "task=regression"]),
        (IS_ONE.astype(np.int64), 1, ["task=binary source.scores=logits", "task=regression"]),
        (np.stack([IS_ONE, Y == 2], 1), 2, ["task=multilabel source.scores=logits", "task=regression"]),
        (np.array(["no", "yes"])[IS_ONE * 1], 2, ["source.classes=[…] in the order of the columns"]),
    ],
)
def test_one_message_names_every_setting_that_rows_and_labels_leave_open(labels, width, open_settings):
    rows = Data(Rows({"X": X}, labels))
    with pytest.raises(ConvertError, match="must be certain") as raised:
        convert(linear(width), data=rows)
    for settings in open_settings:
        assert settings in str(raised.value)
        told = {"classes": ("no", "yes"), "task": "binary"} if "classes" in settings else {}
        told |= dict(
            part.split("=") for part in settings.replace("source.", "").split() if part.count("=") == 1 and not told
        )
        assert convert(linear(width), ConvertConfig(Given(**told)), data=rows).facts.task == told["task"]


@pytest.mark.parametrize(
    ("labels", "width", "task"),
    [
        (Y, 3, "multiclass"),
        (Y.astype(float), 3, "multiclass"),
        (Y, 1, "regression"),  # three classes have no place in one column
        (IS_ONE.astype(np.float64), 1, "regression"),  # floats are values
        (np.full(150, 7), 3, "regression"),
    ],
)
def test_labels_and_columns_together_tell_classes_from_values(labels, width, task):
    assert convert(linear(width), data=Data(Rows({"X": X}, labels))).facts.task == task


def test_a_graph_that_computes_its_own_loss_is_differentiated():
    """The derivative of the mean of x·w is the mean of x over rows and columns, for each column."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,4] X) => (float y)
    <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}>
    { m = MatMul(X, w) y = ReduceMean<keepdims=0>(m) }"""
    for rows in (None, Data(Rows({"X": X}, np.zeros(150)))):
        artifact = convert(onnx.parser.parse_model(text), data=rows)
        assert artifact.facts.task == "regression"
        gradient = derive(artifact, DeriveConfig(output="y"))
        feeds = {"X": X, "w": np.arange(1, 9, dtype=np.float32).reshape(4, 2)}
        [found] = Session(gradient.model).run(feeds, [gradient.facts.gradients["w"]])
        np.testing.assert_allclose(found, np.repeat(X.mean(axis=0)[:, None] / 2, 2, axis=1), rtol=1e-5)
        with pytest.raises(LossError, match="one entry per row"):
            add_loss(artifact, AddLossConfig(LOSSES["l2"]()))


@pytest.mark.parametrize("told", [{}, {"task": "binary"}])
def test_soft_labels_of_a_sigmoid_are_a_regression(told):
    end, columns, output, *_ = ENDS["sigmoid"]
    rows = Data(Rows({"X": X}, np.linspace(0.1, 0.9, 150)))
    with pytest.raises(ConvertError, match=r"labels such as 0\.1(.|\n)*Set source\.task=regression"):
        convert(model(end, columns, output), ConvertConfig(Given(**told)), data=rows)
    assert convert(model(end, columns, output), ConvertConfig(Given(task="regression")), data=rows).facts.logits is None
    with pytest.raises(DataError, match=r"between classes, set .*source\.task=regression"):
        class_index(convert(model(end, columns, output), data=data(2)).facts, rows.train.label)
