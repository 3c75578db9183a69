import dataclasses
import itertools

import numpy as np
import onnx
import onnx.parser
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.losses.cross_entropy import CrossEntropy
from ortpipe.stages.add_loss.losses.ctc import CTC
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
rng = np.random.default_rng(0)


def converted(tmp_path, text, rows=None, **told):
    onnx.save(onnx.parser.parse_model(text if text.startswith("<") else HEAD + text), tmp_path / "a.onnx")
    if rows is not None and not isinstance(rows, dict):
        rows = {"X": rows}
    data = None if rows is None else Data(Rows(rows, np.zeros(len(next(iter(rows.values()))))))
    return convert(None, ConvertConfig(OnnxFile(str(tmp_path / "a.onnx"), **told)), data=data)


def noted(artifact, *words):
    return any(all(word in note for word in words) for note in artifact.facts.lineage[0]["notes"])


def shape_of(value):
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def row_by_row(text, rows, size=1):
    """Return what the model as it stands predicts, `size` rows at a time, the last row as often as it takes."""
    session = Session(onnx.parser.parse_model(HEAD + text))
    starts = range(0, len(rows), size)
    batches = [rows[np.minimum(np.arange(i, i + size), len(rows) - 1)] for i in starts]
    return np.concatenate([session.run({"X": batch})[0] for batch in batches])


FIXED = {  # batch, what happens to it, and a graph
    "product": (
        8,
        "now takes any number",
        "g (float[8, 3] X) => (float[8, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { Y = MatMul(X, w) }",
    ),
    "reshape": (
        2,
        "now takes any number",
        "g (float[2, 3, 4] X) => (float[2, 2] Y) <float[6, 1] w = {1, 2, 3, 4, 5, 6}, "
        "int64[3] s = {2, 2, 6}, int64[2] t = {-1, 2}> "
        "{ a = Reshape(X, s)  b = MatMul(a, w)  Y = Reshape(b, t) }",
    ),
    "slice and expand": (
        2,
        "now takes any number",
        "g (float[2, 3] X) => (float[2, 3] Y) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, "
        "int64[1] z = {0}, int64[1] e = {2}, int64[2] s = {2, 3}> "
        "{ h = MatMul(X, w)  a = Slice(h, z, e, z)  Y = Expand(a, s) }",
    ),
    "token": (
        1,
        "now takes any number",
        "g (float[1, 2, 3] X) => (float[1, 3, 3] Y) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, "
        "float[1, 1, 3] cls = {1, 2, 3}> { a = Concat <axis = 1> (cls, X)  Y = MatMul(a, w) }",
    ),
    "lstm": (
        1,
        "now takes any number",
        "g (float[1, 4] X) => (float[1, 2] Y) <float[1, 8, 1] w = {1, 2, 3, 4, 5, 6, 7, 8}, "
        "float[1, 8, 2] r = {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0}, float[1, 1, 2] h = {0.5, 0.1}, "
        "int64[3] s = {4, 1, 1}, int64[2] f = {1, 2}> "
        "{ t = Transpose <perm = [1, 0]> (X)  x = Reshape(t, s)  y, last = LSTM <hidden_size = 2> (x, w, r, , , h) "
        "Y = Reshape(last, f) }",
    ),
    "reshape behind reshape": (
        1,
        "now takes any number",
        "g (float[1, 4, 6] X) => (float[1, 16] Y) <float[6, 4] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, "
        "6, 1, 2, 3, 4, 5, 6}, int64[3] s = {1, 4, -1}, int64[4] t = {1, 2, 2, -1}, int64[2] f = {1, -1}> "
        "{ r = Reshape(X, s)  h = MatMul(r, w)  q = Reshape(h, t)  p = Neg(q)  Y = Reshape(p, f) }",
    ),
    "squeezed": (
        1,
        "batch by batch",
        "g (float[1, 3] X) => (float[2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64[1] z = {0}> "
        "{ h = MatMul(X, w)  Y = Squeeze(h, z) }",
    ),
    "mixed": (
        3,
        "batch by batch",
        "g (float[3, 3] X) => (float[3, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64[1] z = {0}> "
        "{ h = MatMul(X, w)  m = ReduceMean <keepdims = 1> (h, z)  Y = Sub(h, m) }",
    ),
}


@pytest.mark.parametrize(("size", "how", "text"), FIXED.values(), ids=FIXED)
def test_a_fixed_batch_becomes_free_with_the_same_results(tmp_path, size, how, text):
    graph = onnx.parser.parse_model(HEAD + text).graph
    rows = rng.normal(size=(2 * size + 1, *shape_of(graph.input[0])[1:])).astype(np.float32)
    artifact = converted(tmp_path, text, rows)
    assert noted(artifact, how, "row" if size == 1 else f"{size} rows")
    assert shape_of(artifact.model.graph.input[0])[0] == "N"
    got = Session(artifact.model).run({"X": rows}, [artifact.facts.prediction])[0]
    expected = row_by_row(text, rows, size)
    np.testing.assert_allclose(got, expected.reshape(-1, *got.shape[1:])[: len(rows)], rtol=1e-5, atol=1e-5)
    assert artifact.facts.lineage[0]["discrepancy"] < 1e-6


def test_a_file_that_runs_row_by_row_with_its_rows_on_another_axis_trains(tmp_path):
    """Inference cannot find the shape that the graph computes, so the declared one counts, with one row in the loop."""
    shape = "n = Shape(h) f = Cast <to = 1> (n) g = Abs(f) i = Cast <to = 7> (g) j = Gather(i, p) "
    text = (
        "g (float[1, T, 4] X) => (float[T, 1, 2] Y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int64[3] p = {1, 0, 2}> "
    )
    rows = {"X": rng.normal(size=(5, 3, 4)).astype(np.float32)}
    artifact = converted(tmp_path, f"{text}{{ h = MatMul(X, w) {shape} Y = Reshape(h, j) }}", rows, batch="rows")
    data = Data(Rows(rows, np.zeros((5, 3, 2), np.float32)))
    config = TrainConfig(OPTIMIZERS["sgd"](lr=0.01), epochs=2, batch_size=2)
    trained = train(derive(add_loss(artifact, AddLossConfig(LOSSES["l2"]()))), config, data=data)
    assert not np.array_equal(trained.initializers["w"], artifact.initializers["w"])


def test_both_ways_of_a_fixed_batch_can_be_chosen(tmp_path):
    text = FIXED["product"][2]
    assert noted(converted(tmp_path, text, batch="rows"), "8 rows", "convert.source.batch=rows")
    assert noted(converted(tmp_path, text, batch="free"), "now takes any number")
    with pytest.raises(ConvertError, match=r"source\.batch=free(.|\n)*batch=auto"):
        converted(tmp_path, FIXED["mixed"][2], batch="free")


def test_the_logits_of_a_model_that_runs_batch_after_batch_are_found(tmp_path):
    text = FIXED["product"][2].replace("Y = MatMul(X, w)", "l = MatMul(X, w)  Y = Softmax(l)")
    rows = rng.normal(size=(11, 3)).astype(np.float32)
    artifact = converted(tmp_path, text, rows, batch="rows")
    facts = artifact.facts
    assert (facts.task, facts.parameters, facts.logits) == ("multiclass", ("w",), "l")
    with_loss = add_loss(artifact, AddLossConfig(CrossEntropy()))
    label = np.zeros((11, 1), np.int64)
    loss, p = Session(with_loss.model).run({"X": rows, "label": label}, [str(with_loss.facts.loss), "Y"])
    np.testing.assert_allclose(p, row_by_row(text, rows, 8)[:11], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(loss, -np.log(p[:, 0]).mean(), rtol=1e-5)


DIMENSIONS = """g (float[-1, 0, 4] X) => (float[7, 7] Y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[9] h>
{ h = MatMul(X, w)  Y = Relu(h) }"""


def test_sizes_that_are_none_and_declared_shapes_that_contradict_are_dropped(tmp_path):
    model = onnx.parser.parse_model(HEAD + DIMENSIONS.replace("-1", "9").replace("[9] h", "[9] h"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    artifact = convert(model, data=Data(Rows({"X": np.ones((3, 5, 4), np.float32)}, np.zeros(3))))
    assert shape_of(artifact.model.graph.input[0]) == ["N", 0, 4]
    assert shape_of(artifact.model.graph.output[0])[::2] == ["N", 2]


IMAGE = """g (float[N, 1, h, w] X) => (float[N, K, a, b] Y) <float[2, 1, 1, 1] k = {1, 2}, float[4] s = {1, 1, 2, 2}>
{ c = Conv(X, k)  Y = Resize <mode = "nearest"> (c, , s) }"""


def test_a_rank_that_the_file_declares_and_its_run_contradicts_is_corrected(tmp_path):
    """Reshape to a computed shape leaves the rank to the declaration; the classes are counted on the rows."""
    text = """g (float[1, T, 2] X) => (float[1, L] Y) <float[2, 3] w = {1, 2, 3, -4, 5, 6}, int64[1] last = {3}> {
        t = Transpose <perm = [1, 0, 2]> (X)  h = MatMul(t, w)  s = Shape(t)
        zero = Constant <value = int64[1] {0}> ()  two = Constant <value = int64[1] {2}> ()
        k = Slice(s, zero, two)  d = Concat <axis = 0> (k, last)  n = NonZero(h)  m = Cast <to = 1> (n)
        z = ReduceSum <keepdims = 0> (m)  i = Cast <to = 7> (z)  j = Sub(i, i)  e = Add(d, j)  Y = Reshape(h, e)
    }"""
    rows = rng.normal(size=(4, 5, 2)).astype(np.float32)
    told = {"batch": "rows", "task": "multiclass", "scores": "logits", "class_axis": 2}
    artifact = converted(tmp_path, text, rows, **told)
    assert shape_of(artifact.model.graph.output[0]) == ["N", 5, 3]
    assert artifact.facts.classes == (0, 1, 2)
    assert add_loss(artifact, AddLossConfig(CrossEntropy())).facts.task == "multiclass"


# Declares [1, T] and gives [T, 1, 3]: the rank comes from a computed shape, and inference does not know it.
STEPS = """g (float[1, {T}, 2] X) => (float[1, {T}] Y) <float[2, 3] w = {{1, 2, 3, -4, 5, 6}}> {{
    t = Transpose <perm = [1, 0, 2]> (X)  h = MatMul(t, w)  d = Shape(h)  n = NonZero(h)  m = Cast <to = 1> (n)
    z = ReduceSum <keepdims = 0> (m)  i = Cast <to = 7> (z)  j = Sub(i, i)  e = Add(d, j)  Y = Reshape(h, e) }}"""


@pytest.mark.parametrize("steps", ["5", "T"])
@pytest.mark.parametrize("told", [{}, {"batch_axis": 1}, {"batch_axis": {"Y": 1}}, {"batch": "rows"}], ids=str)
def test_the_steps_of_a_file_with_a_wrong_declared_rank_train_by_ctc(tmp_path, steps, told):
    rows = rng.normal(size=(4, 5, 2)).astype(np.float32)
    artifact = converted(tmp_path, STEPS.format(T=steps), rows, task="multiclass", scores="logits", **told)
    assert shape_of(artifact.model.graph.output[0])[0] == "N"
    assert noted(artifact, "Y has its rows on axis 1")
    with_loss = add_loss(artifact, AddLossConfig(CTC()))
    label = np.array([[1, 2], [2, 0], [1, 1], [2, 1]])[..., None]
    loss, y = Session(with_loss.model).run({"X": rows, "label": label}, [str(with_loss.facts.loss), "Y"])
    np.testing.assert_allclose(y, rows @ [[1, 2, 3], [-4, 5, 6]], rtol=1e-5, atol=1e-5)
    labels = [[k for k in row.ravel() if k] for row in label]
    expected = [ctc(scores, ks) / len(ks) for scores, ks in zip(y, labels, strict=True)]
    np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-5)


def ctc(scores, label):
    """Return −log of the probability of all paths that collapse to a label, path by path, in float64."""
    p = np.exp(scores.astype(float))
    p /= p.sum(axis=1, keepdims=True)
    paths = [
        path
        for path in itertools.product(range(p.shape[1]), repeat=len(p))
        if [k for k, _ in itertools.groupby(path) if k] == label
    ]
    return -np.log(sum(np.prod(p[np.arange(len(p)), path]) for path in paths))


ONE_ROW = """g (float[N, 4] X) => (float[N, 2] Y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int64[2] s = {1, 4}>
{ h = Reshape(X, s)  Y = MatMul(h, w) }"""
FIRST_ROW = """g (float[N, 4] X) => (float[2] Y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int64[1] zero = {0}>
{ h = Squeeze(X, zero)  Y = MatMul(h, w) }"""


@pytest.mark.parametrize("text", [ONE_ROW, FIRST_ROW], ids=["reshape", "squeeze"])
@pytest.mark.parametrize(
    ("batch", "how"),
    [("auto", "1 row at a time"), ("rows", "convert.source.batch=rows"), ("free", "now takes any number")],
)
def test_a_file_of_free_rows_that_computes_only_one_goes_on_row_by_row(tmp_path, text, batch, how):
    if batch == "free" and text is FIRST_ROW:
        with pytest.raises(ConvertError, match=r"source\.batch=free(.|\n)*batch=auto"):
            converted(tmp_path, text, np.ones((5, 4), np.float32), batch=batch)
        return
    rows = rng.normal(size=(5, 4)).astype(np.float32)
    artifact = converted(tmp_path, text, rows, batch=batch)
    assert noted(artifact, how)
    [got] = Session(artifact.model).run({"X": rows}, ["Y"])
    np.testing.assert_allclose(got, rows @ np.arange(1, 9).reshape(4, 2), rtol=1e-5)


def test_row_by_row_is_never_ignored(tmp_path):
    """Of a file that takes any number of rows too, whose rows depend on each other when they are together."""
    text = "g (float[N, 3] X) => (float[N, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64 zero = {0}> "
    text += "{ h = MatMul(X, w)  Y = CumSum(h, zero) }"
    rows = rng.normal(size=(4, 3)).astype(np.float32)
    for data in (rows, None):
        artifact = converted(tmp_path, text, data, batch="rows")
        assert noted(artifact, "1 row at a time", "convert.source.batch=rows")
        [got] = Session(artifact.model).run({"X": rows}, ["Y"])
        np.testing.assert_allclose(got, rows @ [[1, 2], [3, 4], [5, 6]], rtol=1e-5)
    assert not noted(artifact, "beside it")


@pytest.mark.parametrize("rows", ["6", "B"])
def test_a_size_that_the_file_calls_as_ortpipe_calls_the_rows_is_another(tmp_path, rows):
    text = f"g (float[{rows}, N, 3] X) => (float[{rows}, N, 2] Y) <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}> "
    text += "{ Y = MatMul(X, w) }"
    given = rng.normal(size=(8, 5, 3)).astype(np.float32)
    artifact = converted(tmp_path, text, given)
    assert [shape_of(v).count("N") for v in (artifact.model.graph.input[0], artifact.model.graph.output[0])] == [1, 1]
    [got] = Session(artifact.model).run({"X": given}, ["Y"])
    np.testing.assert_allclose(got, given @ np.float32([[1, 2], [3, 4], [5, 6]]), rtol=1e-5)


def test_rows_that_depend_on_each_other_keep_their_number_free(tmp_path):
    text = "g (float[N, 3] X) => (float[N, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64[1] rows = {0}> "
    text += "{ m = ReduceMean(X, rows)  d = Sub(X, m)  Y = MatMul(d, w) }"
    artifact = converted(tmp_path, text, rng.normal(size=(5, 3)).astype(np.float32))
    assert shape_of(artifact.model.graph.output[0]) == ["N", 2]


EDGES = """g (float[N, 3] X, int64[2, E] edges) => (float[N, 2] Y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64 zero = {0}, int64 one = {1}, int64[1] last = {1}> {
  h = MatMul(X, w)  source = Gather(edges, zero)  sent = Gather(h, source)  target = Gather(edges, one)
  s = Shape(sent)  t = Unsqueeze(target, last)  u = Expand(t, s)  none = Sub(h, h)
  Y = ScatterElements <reduction = "add"> (none, u, sent) }"""


@pytest.mark.parametrize("names", [(), ("X",), ("X", "edges")], ids=str)
def test_graph_networks_are_rejected_by_name(tmp_path, names):
    data = {"X": np.ones((4, 3), np.float32), "edges": np.zeros((4, 2), np.int64)}
    with pytest.raises(ConvertError, match=r"Graph networks are not supported(.|\n)*'edges'"):
        converted(tmp_path, EDGES, {name: data[name] for name in names} or None)


def test_free_sizes_in_front_of_resize_are_those_of_the_rows_or_of_the_config(tmp_path):
    artifact = converted(tmp_path, IMAGE, np.ones((2, 1, 4, 6), np.float32))
    assert shape_of(artifact.model.graph.input[0]) == ["N", 1, 4, 6]
    assert noted(artifact, "fixes sizes", "float[N, 1, 4, 6]")
    told = converted(tmp_path, IMAGE, shape={"X": [None, 1, 8, None]})
    assert shape_of(told.model.graph.input[0]) == ["N", 1, 8, "w"]
    with pytest.raises(ConvertError, match=r"source\.shape\.X must have(.|\n)*\[N, 1, h, w\]"):
        converted(tmp_path, IMAGE, shape={"X": [None, 3, 8, 8]})
    with pytest.raises(ConvertError, match=r"source\.shape\.x(.|\n)*Valid: X"):
        converted(tmp_path, IMAGE, shape={"x": [None, 3, 8, 8]})


STATES = """g (float[N, 3] X, float[2, N, 3] state, int64 sr, bool[1] on, float[5] unread, float[1] scale)
=> (float[N, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[3, 2] v = {0, 0, 0, 0, 0, 0}, int64 zero = {0},
   int64 known = {16000}, float[1] scale = {2}> {
  s = Gather <axis = 0> (state, zero)  a = Add(X, s)  same = Equal(sr, known)
  h = If(same) <then_branch = t () => (float[N, 2] p) { p = MatMul(a, w) },
                else_branch = e () => (float[N, 2] q) { q = MatMul(a, v) }>
  sc = Mul(h, scale) Y = Where(on, sc, h) }"""
TOLD = {"state": 0.5, "sr": 16000, "on": True}


def test_inputs_that_are_no_data_become_constants_and_branches_are_taken(tmp_path):
    rows = rng.normal(size=(4, 3)).astype(np.float32)
    artifact = converted(tmp_path, STATES, rows, fixed=TOLD)
    assert artifact.facts.inputs == ("X",)
    assert artifact.facts.parameters == ("w",)
    assert "If" not in {node.op_type for node in artifact.model.graph.node}
    assert noted(artifact, "nothing reads", "unread")
    got = Session(artifact.model).run({"X": rows}, ["Y"])[0]
    np.testing.assert_allclose(got, 2 * (rows + 0.5) @ [[1, 2], [3, 4], [5, 6]], rtol=1e-5)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            {},
            r"constant value in source\.fixed(.|\n)*state float\[2, N, 3\], sr int64\[\](.|\n)*"
            r"source\.fixed=\{state: 0, sr: 0, on: false\}",
        ),
        (TOLD | {"stat": 0}, r"source\.fixed\.stat must be an input(.|\n)*'state'"),
        (TOLD | {"sr": 0.5}, r"source\.fixed\.sr must be of the input's type"),
        (TOLD | {"sr": "x"}, r"source\.fixed\.sr must be of the input's type"),
        (TOLD | {"on": [1, 2]}, r"source\.fixed\.on must be one number, or all entries"),
        (TOLD | {"X": 0}, "At least one input must hold the data"),
    ],
    ids=["nothing", "another name", "a fraction", "text", "two of one", "all"],
)
def test_a_value_that_is_missing_or_wrong_is_refused_by_name(tmp_path, told, message):
    with pytest.raises(ConvertError, match=message):
        converted(tmp_path, STATES, np.ones((4, 3), np.float32), fixed=told)


TURNED = (
    """g (float[T, batch, 3] X) => (float[T, batch, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { Y = MatMul(X, w) }"""
)


@pytest.mark.parametrize("axes", [None, 1, {"X": 1, "Y": 1}], ids=["by its name", "one for all", "each"])
def test_a_batch_on_another_axis_is_turned_to_the_first(tmp_path, axes):
    rows = rng.normal(size=(5, 4, 3)).astype(np.float32)  # five rows of four steps
    text = TURNED if axes is None else TURNED.replace("batch", "B")
    artifact = converted(tmp_path, text, rows, batch_axis=axes)
    got = Session(artifact.model).run({"X": rows}, ["Y"])[0]
    np.testing.assert_allclose(got, rows @ [[1, 2], [3, 4], [5, 6]], rtol=1e-5)
    assert noted(artifact, "X has its rows on axis 1", "batch_axis")


@pytest.mark.parametrize(
    "text",
    [
        "g (float[A, B, 3] X) => (float[A, B, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64 zero = {0}> "
        "{ h = MatMul(X, w)  Y = CumSum(h, zero) }",
        "g (float[4, 1, 3] X) => (float[4, 1, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64 zero = {0}> "
        "{ h = MatMul(X, w)  Y = CumSum(h, zero) }",
        "g (float[A, B, 3] X) => (float[B, A, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64 one = {1}> "
        "{ h = MatMul(X, w)  c = CumSum(h, one)  Y = Transpose <perm = [1, 0, 2]> (c) }",
    ],
    ids=["free", "fixed", "of the output alone"],
)
def test_the_axis_of_rows_is_the_one_along_which_rows_do_not_depend_on_each_other(tmp_path, text):
    rows = rng.normal(size=(5, 4, 3)).astype(np.float32)
    artifact = converted(tmp_path, text, rows)
    assert noted(artifact, "rows on axis 1", "batch_axis")
    [got] = Session(artifact.model).run({"X": rows}, ["Y"])
    np.testing.assert_allclose(got, (rows @ [[1, 2], [3, 4], [5, 6]]).cumsum(axis=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "h", "moved"),
    [
        ("[A, 5, 3]", "[2, B, 2]", "h"),  # as PyTorch's recurrent layers take their state
        ("[1, 5, 3]", "[2, 1, 2]", "h"),
        ("[5, A, 3]", "[B, 2, 2]", "x"),
    ],
    ids=["free", "one row", "steps first"],
)
def test_each_input_may_have_its_rows_on_another_axis(tmp_path, x, h, moved):
    steps, layers = (0 if moved == "x" else 1), (1 if moved == "x" else 0)
    text = f"g (float{x} x, float{h} h) => (float[N, 2] Y) <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}> "
    text += f"{{ s = Constant <value = int64[1] {{{steps}}}> () l = Constant <value = int64[1] {{{layers}}}> () "
    text += "m = ReduceMean <keepdims = 0> (x, s) a = MatMul(m, w) r = ReduceMean <keepdims = 0> (h, l) Y = Add(a, r) }"
    rows = {"x": rng.normal(size=(7, 5, 3)).astype(np.float32), "h": rng.normal(size=(7, 2, 2)).astype(np.float32)}
    artifact = converted(tmp_path, text, rows)
    assert noted(artifact, f"{moved} has its rows on axis 1", "batch_axis")
    [got] = Session(artifact.model).run(rows, ["Y"])
    expected = rows["x"].mean(axis=1) @ [[1, 2], [3, 4], [5, 6]] + rows["h"].mean(axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_axes_of_rows_are_to_be_named_if_there_are_too_many_to_try(tmp_path):
    names = [f"x{i}" for i in range(9)]  # each may have its rows on either axis: 512 combinations
    text = f"g ({', '.join(f'float[A, B] {n}' for n in names)}) => (float[B, A] Y) "
    text += f"<float w = {{2}}, int64 zero = {{0}}> {{ s = Sum({', '.join(names)}) "
    text += "c = CumSum(s, zero) t = Mul(c, w) Y = Transpose(t) }"
    rows = {n: rng.normal(size=(5, 4)).astype(np.float32) for n in names}
    with pytest.raises(ConvertError, match=r"source\.batch_axis"):
        converted(tmp_path, text, rows)
    [got] = Session(converted(tmp_path, text, rows, batch_axis=dict.fromkeys(names, 1)).model).run(rows, ["Y"])
    np.testing.assert_allclose(got, 2 * sum(rows.values()).cumsum(axis=1), rtol=1e-4, atol=1e-5)


def test_a_constant_input_has_as_many_rows_as_the_data_on_another_axis(tmp_path):
    text = "g (float[T, batch, 3] X, float[batch, 3] state) => (float[T, batch, 2] Y) "
    text += "<float[3, 2] w = {1, 2, 3, 4, 5, 6}> { a = Add(X, state)  Y = MatMul(a, w) }"
    rows = rng.normal(size=(5, 4, 3)).astype(np.float32)
    [got] = Session(converted(tmp_path, text, rows, fixed={"state": 0.5}).model).run({"X": rows}, ["Y"])
    np.testing.assert_allclose(got, (rows + 0.5) @ [[1, 2], [3, 4], [5, 6]], rtol=1e-5)


def test_an_axis_of_nothing_is_refused(tmp_path):
    for axes in ({"X": 3}, {"Z": 1}):
        with pytest.raises(ConvertError, match=r"source\.batch_axis"):
            converted(tmp_path, TURNED, batch_axis=axes)


@pytest.mark.parametrize(("kind", "size"), [("uint8", 12), ("bool", 12), ("int32", 12), ("float16", 12)])
def test_inputs_of_any_type_and_rank_are_converted(tmp_path, kind, size):
    text = f"g ({kind}[1, 2, 2, 3] X) => (float[1, 2] Y) <float[12, 2] w = {{{', '.join(map(str, range(24)))}}}, "
    text += "int64[2] s = {1, 12}> { f = Cast <to = 1> (X)  r = Reshape(f, s)  Y = MatMul(r, w) }"
    rows = rng.integers(0, 2, (4, 2, 2, 3))
    artifact = converted(tmp_path, text, rows)
    assert noted(artifact, "now takes any number")
    got = Session(artifact.model).run({"X": rows.astype(kind)}, ["Y"])[0]
    np.testing.assert_allclose(got, rows.reshape(4, 12) @ np.arange(24).reshape(12, 2))


def test_inputs_of_different_first_dimensions_are_refused_with_the_ways_out(tmp_path):
    text = "g (float[N, 3] X, float[2, 3] z) => (float[N, 3] Y) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> "
    text += "{ h = MatMul(X, w) i = MatMul(z, w)  j = ReduceSum(i) Y = Add(h, j) }"
    with pytest.raises(ConvertError, match=r"source\.fixed=\{z: 0\}(.|\n)*source\.batch_axis=\{z: 1\}"):
        converted(tmp_path, text)


def test_several_arrays_for_one_input_of_another_name_are_refused_with_that_name(tmp_path):
    rows = {"pictures": np.zeros((4, 3), np.float32), "digit": np.zeros((4, 1), np.float32)}
    with pytest.raises(ConvertError, match=r"the data hold digit, pictures\n.*Give the data's array the name X;"):
        converted(tmp_path, FIXED["product"][2].replace("8", "N"), rows)


def test_a_prediction_that_depends_on_the_rows_beside_it_is_said(tmp_path):
    text = "g (float[N, 3] X) => (float[N, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64 zero = {0}> "
    text += "{ h = MatMul(X, w)  Y = CumSum(h, zero) }"
    rows = rng.normal(size=(4, 3)).astype(np.float32)
    assert noted(converted(tmp_path, text, rows), "depends on the rows beside it")
    assert not noted(converted(tmp_path, text.replace("Y = CumSum(h, zero)", "Y = Neg(h)"), rows), "beside it")


def test_one_scale_of_a_batch_that_rounds_its_rows_is_no_dependence_between_them(tmp_path):
    text = "g (float[N, 4] X) => (float[N, 1] Y) <int8[4, 1] w = {64, -64, 64, -64}, float[1] ws = {0.015625}> "
    text += "{ q, s, o = DynamicQuantizeLinear(X) i = MatMulInteger(q, w, o) f = Cast<to=1>(i) k = Mul(s, ws) "
    text += "Y = Mul(f, k) }"
    rows = np.array([[0, 0, 8, 7.5], [3.01, 1.01, 1.01, 2.99]], np.float32)  # in steps of 8 or 3.01 / 255
    assert not noted(converted(tmp_path, text, rows), "beside it")


@pytest.mark.parametrize(("shape", "perm", "axis"), [("N,4,1,1", "0,1,2,3", 1), ("N,1,1,4", "0,2,3,1", 3)])
def test_the_only_axis_of_several_entries_holds_the_classes(tmp_path, shape, perm, axis):
    text = f"g (float[N, 2, 1, 1] X) => (float[{shape}] Y) <float[4, 2, 1, 1] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> "
    text += f"{{ z = Conv(X, w) Y = Transpose<perm=[{perm}]>(z) }}"
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "a")
    data = Data(Rows({"X": rng.normal(size=(8, 2, 1, 1)).astype(np.float32)}, np.arange(8) % 4))
    facts = convert(None, ConvertConfig(OnnxFile(str(tmp_path / "a"))), data=data).facts
    assert (facts.task, facts.class_axis) == ("multiclass", axis)
    pixels = Data(dataclasses.replace(data.train, label=np.arange(32).reshape(8, *np.roll([4, 1, 1], axis - 1)) % 2))
    facts = convert(None, ConvertConfig(OnnxFile(str(tmp_path / "a"), task="binary")), data=pixels).facts
    assert facts.class_axis == 4 - axis  # each number is the score of a pixel


def test_a_prediction_of_float64_is_as_exact_as_its_weights(tmp_path):
    text = '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g (float[N, 3] X) => (double[N, 2] Y) '
    text += "<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}> "
    text += "{ h = MatMul(X, w)  a = SimplifiedLayerNormalization(h, b)  Y = Cast<to=11>(a) }"
    rows = rng.normal(size=(40, 3)).astype(np.float32)
    assert converted(tmp_path, text, rows).facts.lineage[0]["discrepancy"] > 1e-9


def test_an_input_that_nothing_reads_stays_where_the_data_hold_it(tmp_path):
    text = "g (float[N, 3] X, int64[N] length) => (float[N, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> "
    text += "{ Y = MatMul(X, w) }"
    x, length = np.ones((4, 3), np.float32), np.ones(4, np.int64)
    assert converted(tmp_path, text, {"X": x, "length": length}).facts.inputs == ("X", "length")
    assert converted(tmp_path, text, {"X": x}).facts.inputs == ("X",)


def test_a_layer_whose_statistics_cannot_move_uses_them_and_that_is_said(tmp_path):
    text = """g (float[2, 3] X) => (float[2, 3] Y) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] s = {1, 2, 3},
        float[3] b = {0, 1, 0}, float[3] m = {5, 6, 7}, float[3] v = {4, 9, 1}>
        { h = MatMul(X, w)  Y, m1, v1 = BatchNormalization <training_mode = 1> (h, s, b, m, v) }"""
    rows = rng.normal(size=(5, 3)).astype(np.float32)
    artifact = converted(tmp_path, text, rows, batch="rows")
    assert noted(artifact, "normalizes by the running statistics", "Y")
    [got] = Session(artifact.model).run({"X": rows}, [artifact.facts.prediction])
    h = rows @ np.arange(1, 10).reshape(3, 3)
    expected = (h - [5, 6, 7]) / np.sqrt(np.array([4, 9, 1]) + 1e-5) * [1, 2, 3] + [0, 1, 0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
