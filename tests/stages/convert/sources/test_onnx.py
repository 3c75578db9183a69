import numpy as np
import onnx
import onnx.parser
import pytest
from sample import pairs
from skl2onnx import to_onnx
from sklearn.base import clone, is_regressor
from sklearn.datasets import load_diabetes, load_iris, load_linnerud
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    Ridge,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from ortpipe.artifact_folder import save_artifact
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError, DataError, ModelError
from ortpipe.graph.core import protos
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert

FIT = slice(0, None, 2)  # every second row is fitted on, the others are predicted
SMALL = {"hidden_layer_sizes": (5,), "max_iter": 40, "random_state": 0}
LINEAR = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[batch, 3] X) => (float[batch, 2] Y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0.5, -0.5}>
{ h = MatMul(X, w)  Y = Add(h, b) }
"""
rng = np.random.default_rng(0)
X = rng.normal(size=(20, 3))
quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
fit_cache = {}


def parse(text=LINEAR):
    return onnx.parser.parse_model(text)


def some(**inputs):
    return Data(Rows(inputs or {"X": X}, np.zeros(20)))


def source(path, **told):
    return ConvertConfig(OnnxFile(str(path), **told))


def run(model, x, *outputs):
    return Session(model).run({model.graph.input[0].name: x}, outputs or None)


def regression():
    return load_diabetes(return_X_y=True)


def many_targets():
    return load_linnerud(return_X_y=True)


def multiclass_numbers():
    x, y = load_iris(return_X_y=True)
    return x, y * 2 + 3


def multiclass_words():
    x, y = load_iris(return_X_y=True)
    return x, load_iris().target_names[y]


def binary_numbers():
    x, y = load_iris(return_X_y=True)
    return x, np.where(y == 1, 2, -1)


def binary_words():
    x, y = load_iris(return_X_y=True)
    return x, np.where(y == 1, "yes", "no")


# alpha=1: at the default, skl2onnx's float32 probabilities of two classes both round to 1 and its label is a tie
CLASSIFIERS = (
    LogisticRegression(max_iter=300),
    SGDClassifier(loss="log_loss", alpha=1, random_state=0),
    MLPClassifier(**SMALL),
)
REGRESSORS = (LinearRegression(), Ridge(), Lasso(), ElasticNet(), SGDRegressor(random_state=0), MLPRegressor(**SMALL))
MEMBERS = [
    *((e, regression) for e in REGRESSORS),
    *((e, many_targets) for e in REGRESSORS[:4]),
    *((e, y) for e in CLASSIFIERS for y in (binary_numbers, binary_words, multiclass_numbers, multiclass_words)),
]
SCALERS = {"alone": [], "standard": [StandardScaler()], "minmax": [MinMaxScaler()]}


def exported(estimator, labels, scalers, zip_map, **options):
    key = repr((estimator, labels, scalers))
    if key not in fit_cache:
        x, y = labels()
        fit_cache[key] = clone(make_pipeline(*SCALERS[scalers], estimator)).fit(x[FIT], y[FIT])
    fitted, x = fit_cache[key], labels()[0]
    zipped = {"options": {"zipmap": zip_map}} if hasattr(fitted[-1], "classes_") else {}
    return fitted, to_onnx(fitted, x[:1].astype(np.float32), **zipped, **options)


def ids(member):
    return None if not isinstance(member, tuple) else f"{type(member[0]).__name__}-{member[1].__name__}"


def trained_path(model, output):
    """Return the nodes that the output depends on."""
    needed, nodes = {output}, []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            nodes.append(node)
    return nodes


CLASSIFYING = [member for member in MEMBERS if not is_regressor(member[0])]
# A regressor has no ZipMap to leave out; an older opset writes the operators otherwise, but not the ZipMap.
EXPORTS = [
    *((member, False, scalers, None) for member, scalers in pairs(MEMBERS, [*SCALERS], 3)),
    *((member, True, scalers, None) for member, scalers in pairs(CLASSIFYING, [*SCALERS], 3)),
    *((member, False, scalers, 15) for member, scalers in pairs(MEMBERS, ["minmax", "alone"], 2)),
]


@quiet
@pytest.mark.parametrize(("member", "zip_map", "scalers", "target_opset"), EXPORTS, ids=ids)
def test_a_model_from_skl2onnx_predicts_what_its_estimator_predicts(member, zip_map, scalers, target_opset):
    estimator, model = exported(*member, scalers, zip_map, target_opset=target_opset)
    x, y = member[1]()
    before = model.SerializeToString()
    artifact = convert(model, data=Data(Rows({"X": x[FIT]}, y[FIT])))
    assert model.SerializeToString() == before
    facts, other = artifact.facts, x[1::2].astype(np.float32)
    onnx.checker.check_model(artifact.model, full_check=True)
    assert {node.domain for node in trained_path(artifact.model, facts.prediction)} == {""}
    assert set(facts.parameters) <= {t.name for t in artifact.model.graph.initializer}
    found = dict(zip(facts.outputs, run(artifact.model, other), strict=True))
    assert facts.lineage[0]["discrepancy"] < 1e-5
    if y.ndim == 2 or y.dtype == float:
        assert (facts.task, facts.classes) == ("regression", None)
        expected = estimator.predict(other).reshape(len(other), -1)
    else:
        assert facts.task == ("binary" if len(set(y)) == 2 else "multiclass")
        assert facts.classes == tuple(np.unique(y).tolist())
        expected = estimator.predict_proba(other)
        np.testing.assert_array_equal(found[facts.outputs[0]], estimator.predict(other))
    np.testing.assert_allclose(found[facts.prediction], expected, rtol=1e-4, atol=1e-4 * max(1, np.abs(expected).max()))


@quiet
@pytest.mark.parametrize("member", MEMBERS, ids=ids)
def test_what_an_exporter_adds_to_a_formula_is_no_parameter(member):
    estimator, model = exported(*member, "alone", False)
    x, y = member[1]()
    artifact = convert(model, data=Data(Rows({"X": x[FIT]}, y[FIT])))
    last = estimator[-1]
    fitted = [*last.coefs_, *last.intercepts_] if hasattr(last, "coefs_") else [last.coef_, last.intercept_]
    count = sum(np.size(array) for array in fitted)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in artifact.model.graph.initializer}
    assert sum(weights[name].size for name in artifact.facts.parameters) == count


@quiet
def test_several_labels_side_by_side_are_refused():
    x, y = load_iris(return_X_y=True)
    many = MLPClassifier(**SMALL).fit(x, np.stack([y == 0, y > 0], axis=1).astype(int))
    model = to_onnx(many, x[:1].astype(np.float32), options={"zipmap": False})
    with pytest.raises(ConvertError, match=r"one label(.|\n)*2 labels side by side"):
        convert(model)


def test_a_plain_model_keeps_its_names_and_type_and_gets_a_batch_named_n():
    model = parse()
    before = model.SerializeToString()
    artifact = convert(model, data=some())
    assert model.SerializeToString() == before
    facts = artifact.facts
    assert (facts.task, facts.inputs, facts.outputs, facts.parameters) == ("regression", ("X",), ("Y",), ("w", "b"))
    shape = artifact.model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in shape] == ["N", 3]
    expected = X.astype(np.float32) @ [[1, 2], [3, 4], [5, 6]] + [0.5, -0.5]
    np.testing.assert_allclose(run(artifact.model, X.astype(np.float32))[0], expected, rtol=1e-5)


def test_a_file_a_path_and_a_model_give_the_same_artifact(tmp_path):
    path = tmp_path / "a.onnx"
    onnx.save(parse(), path)
    digests = {convert(given).digest() for given in (parse(), path, str(path))}
    assert digests == {convert(None, source(path)).digest()}


@pytest.mark.parametrize("dtype", ["double", "float16"])
def test_a_model_keeps_its_own_float_type(dtype):
    model, numpy_type = parse(LINEAR.replace("float[batch", f"{dtype}[batch")), {"double": "float64"}.get(dtype, dtype)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(numpy_type)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    artifact = convert(model, data=some())
    assert {onnx.numpy_helper.to_array(t).dtype.name for t in artifact.model.graph.initializer} == {numpy_type}
    assert run(artifact.model, X.astype(numpy_type))[0].dtype == numpy_type


@pytest.mark.parametrize(("ir_version", "opset"), [(13, 26), (12, 24), (10, 22), (8, 18), (7, 12), (6, 9)])
def test_newer_and_older_models_are_brought_to_what_the_runtime_loads(ir_version, opset):
    text = LINEAR.replace("ir_version: 10", f"ir_version: {ir_version}").replace(": 21", f": {opset}")
    artifact = convert(parse(text), data=some())
    assert artifact.model.ir_version <= 10
    assert 13 <= artifact.model.opset_import[0].version <= 21
    plain = convert(parse())
    found, expected = (run(a.model, X.astype(np.float32))[0] for a in (artifact, plain))
    np.testing.assert_array_equal(found, expected)


def test_an_operator_without_an_older_form_is_refused():
    text = LINEAR.replace("ir_version: 10", "ir_version: 13").replace(": 21", ": 26").replace("Y = Add", "k = Add")
    with pytest.raises(ModelError, match=r"opset 18 to 21(.|\n)*CumProd"):
        convert(parse(text.replace("(h, b)", "(h, b) axis = Constant<value_ints=[1]>() Y = CumProd(k, axis)")))


def test_a_default_domain_listed_twice_is_converted():
    model = parse(LINEAR.replace('"" : 21', '"" : 22, "" : 22'))
    assert [(o.domain, o.version) for o in convert(model, data=some()).model.opset_import] == [("", 21)]


def test_weights_that_are_inputs_too_are_parameters():
    text = LINEAR.replace("ir_version: 10", "ir_version: 3").replace(": 21", ": 13")
    text = text.replace("[batch, 3] X", "[batch, 3] X, float[3, 2] w, float[2] b")
    facts = convert(parse(text), data=some()).facts
    assert (facts.inputs, facts.parameters) == (("X",), ("w", "b"))


def test_local_functions_are_converted():
    text = LINEAR.replace('"" : 21', '"" : 21, "own" : 1').replace("h = MatMul(X, w)", "h = own.linear(X, w)")
    text += '<domain: "own", opset_import: ["" : 21]> linear (x, w) => (y) { y = MatMul(x, w) }'
    found, expected = (run(convert(parse(t), data=some()).model, X.astype(np.float32))[0] for t in (text, LINEAR))
    np.testing.assert_array_equal(found, expected)


def test_external_data_files_are_read(tmp_path):
    model = parse()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    plain = convert(model, data=some())
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size > 0
    assert convert(tmp_path / "a.onnx", data=some()).digest() == plain.digest()
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="external data"):
        convert(tmp_path / "a.onnx")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "must exist"), (b"", "at least one node"), (b"hello, this is text", "readable")],
    ids=["missing", "empty", "corrupt"],
)
def test_a_file_without_a_model_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    for given in ((path,), (None, source(path))):
        with pytest.raises(ModelError, match=rf"{message}(.|\n)*bad\.onnx"):
            convert(*given)


def test_a_truncated_file_is_refused(tmp_path):
    content = parse().SerializeToString()
    (tmp_path / "half.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError):
        convert(tmp_path / "half.onnx")


def test_a_model_without_weights_is_refused():
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[N, 3] X) => (float[N, 3] Y) '
    text += "{ w = Constant <value = float[3] {1, 2, 3}> ()  Y = Mul(X, w) }"
    with pytest.raises(ConvertError, match=r"float initializer(.|\n)*output 'Y'"):
        convert(parse(text))


TWO = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 3] X) => (int64[N] label, float[N, 3] copy, float[N, 2] p, float[N, 2] scores)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}>
{ scores = MatMul(X, w)  p = Softmax <axis = -1> (scores)  copy = Identity(X)
  label = ArgMax <axis = 1, keepdims = 0> (p) }
"""


@pytest.mark.parametrize(("wanted", "chosen"), [(None, "p"), ("p", "p"), ("scores", "scores"), (2, "p"), (3, "scores")])
def test_the_prediction_is_the_first_output_with_weights_or_the_one_that_is_named(tmp_path, wanted, chosen):
    onnx.save(parse(TWO), tmp_path / "a.onnx")
    assert convert(None, source(tmp_path / "a.onnx", prediction=wanted)).facts.prediction == chosen


def test_a_graph_ends_at_a_value_inside_that_is_named_and_what_stood_behind_may_be_anything(tmp_path):
    hard = parse(TWO.replace("int64[N] label, float[N, 3] copy, float[N, 2] p, float[N, 2] scores", "float[N, 2] Y"))
    hard.graph.node.append(onnx.helper.make_node("Hardmax", ["p"], ["Y"]))
    onnx.save(hard, tmp_path / "a.onnx")
    with pytest.raises(ConvertError, match="prediction=p "):
        convert(None, source(tmp_path / "a.onnx"))
    artifact = convert(None, source(tmp_path / "a.onnx", prediction="p"), data=some())
    assert (artifact.facts.outputs, artifact.facts.task, artifact.facts.logits) == (("p",), "multiclass", "scores")
    assert "ends at 'p'" in artifact.facts.lineage[0]["notes"][0]


def test_sizes_that_are_said_reach_the_operators_that_are_written_anew_by_them(tmp_path):
    strided = """<ir_version: 9, opset_import: ["" : 17]> net (float[N, 1, L] X) => (float[N, 1, M] Y)
    <float[1, 1, 2] w = {2, 2}> { Y = Conv <auto_pad = "SAME_UPPER", strides = [3], kernel_shape = [2]> (X, w) }"""
    onnx.save(parse(strided), tmp_path / "a.onnx")
    with pytest.raises(ModelError, match=r"Set the sizes"):
        convert(None, source(tmp_path / "a.onnx"))
    artifact = convert(None, source(tmp_path / "a.onnx", shape={"X": (None, 1, 8)}))
    np.testing.assert_array_equal(run(artifact.model, np.ones((1, 1, 8), np.float32))[0], [[[4, 4, 4]]])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("scoers", r"'scoers'(.|\n)*Did you mean 'scores'"),
        ("w", "must be an output"),
        (4, r"index(.|\n)*4(.|\n)*The model has 4"),
        (-1, "index"),
        ("label", r"float output(.|\n)*label"),
        (0, r"float output(.|\n)*label"),
        ("copy", r"float initializer(.|\n)*'copy'"),
    ],
)
def test_a_prediction_that_cannot_be_trained_is_refused(tmp_path, wanted, message):
    onnx.save(parse(TWO), tmp_path / "a.onnx")
    with pytest.raises(ConvertError, match=message):
        convert(None, source(tmp_path / "a.onnx", prediction=wanted))


ENDS = {
    "nothing": ("Y = Identity(z)", 2, "regression", None, None),
    "softmax": ("Y = Softmax <axis = -1> (z)", 2, "multiclass", "z", (0, 1)),
    "softmax and identity": ("s = Softmax <axis = -1> (z)  Y = Identity(s)", 2, "multiclass", "z", (0, 1)),
    "sigmoid of one": ("Y = Sigmoid(z)", 1, "binary", "z", (0, 1)),
    "sigmoid of two": ("Y = Sigmoid(z)", 2, "multilabel", "z", None),
    "two columns": ("p = Sigmoid(z)  q = Sub(one, p)  Y = Concat <axis = 1> (q, p)", 1, "binary", "z", (0, 1)),
    "relu": ("Y = Relu(z)", 2, "regression", None, None),
}


def ending(end, width):
    values = ", ".join(str(i) for i in range(3 * width))
    out = 2 if "Concat" in end else width
    return (
        '<ir_version: 10, opset_import: ["" : 21]> '
        f"g (float[N, 3] X) => (float[N, {out}] Y) <float[3, {width}] w = {{{values}}}, float one = {{1}}> "
        f"{{ z = MatMul(X, w)  {end} }}"
    )


@pytest.mark.parametrize(("end", "width", "task", "logits", "classes"), ENDS.values(), ids=ENDS)
def test_the_end_of_the_graph_says_what_the_model_means(end, width, task, logits, classes):
    facts = convert(parse(ending(end, width)), data=some()).facts
    assert (facts.task, facts.logits, facts.classes) == (task, logits, classes)
    assert facts.parameters == ("w",)


def test_a_told_task_and_told_classes_are_believed(tmp_path):
    onnx.save(parse(ending("Y = Identity(z)", 2)), tmp_path / "a.onnx")
    facts = convert(None, source(tmp_path / "a.onnx", task="multiclass", classes=("no", "yes"))).facts
    assert (facts.task, facts.logits, facts.classes) == ("multiclass", "Y", ("no", "yes"))


def test_labels_of_a_zip_map_keep_their_columns_whatever_their_order():
    text = TWO.replace('"" : 21', '"" : 21, "ai.onnx.ml" : 3').replace("float[N, 2] p,", "seq(map(string, float)) Z,")
    text = text.replace("copy =", 'Z = ai.onnx.ml.ZipMap <classlabels_strings = ["b", "a"]> (p)  copy =')
    artifact = convert(parse(text), data=some())
    assert (artifact.facts.prediction, artifact.facts.classes) == ("Z", ("b", "a"))
    zipped, rows = Session(parse(text)), X.astype(np.float32)
    expected = [[row["b"], row["a"]] for row in zipped.run({"X": rows}, ["Z"])[0]]
    np.testing.assert_array_equal(run(artifact.model, rows, "Z")[0], np.array(expected, np.float32))


MANY = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3] X, double[N, 2] Z, int64[N] id) => (float[N, 2] Y)
<float[5, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, float[4, 2] table = {1, 2, 3, 4, 5, 6, 7, 8}>
{ z = Cast <to = 1> (Z)  all = Concat <axis = 1> (X, z)  h = MatMul(all, w)
  row = Gather <axis = 0> (table, id)  Y = Add(h, row) }
"""


def test_several_inputs_are_bound_by_name():
    data = some(id=np.arange(20) % 4, Z=X[:, :2], X=X)
    facts = convert(parse(MANY), data=data).facts
    assert (facts.inputs, facts.parameters) == (("X", "Z", "id"), ("w", "table"))
    with pytest.raises(ConvertError, match=r"inputs X float\[N, 3\], Z (.|\n)*the data hold X(.|\n)*\{Z: 0, id: 0\}"):
        convert(parse(MANY), data=some())


ODD = ["label", "loss", "X_grad", "sample_weight", "prediction", "a/b.c:0", "é", "coefficient"]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("role", ["X", "w", "h", "Y"])
def test_odd_names_are_kept(role, odd):
    model = parse()
    for node in model.graph.node:
        node.input[:] = [odd if name == role else name for name in node.input]
        node.output[:] = [odd if name == role else name for name in node.output]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = odd if value.name == role else value.name
    facts = convert(model, data=some()).facts
    renamed = {old: odd if old == role else old for old in ("X", "w", "b", "Y")}
    assert facts.inputs == (renamed["X"],)
    assert facts.prediction == renamed["Y"]
    assert facts.parameters == (renamed["w"], renamed["b"])


def test_what_ortpipe_wrote_is_understood_again(tmp_path):
    x, y = multiclass_words()
    first = convert(LogisticRegression(max_iter=300).fit(x, y))
    path = save_artifact(first, tmp_path / "a") / "model.onnx"
    second = convert(path)
    for fact in ("task", "inputs", "outputs", "prediction", "parameters", "logits", "classes"):
        assert getattr(second.facts, fact) == getattr(first.facts, fact)


def test_both_forms_of_storage_convert_to_one_digest(tmp_path, monkeypatch):
    artifact = convert(parse(), data=some())
    monkeypatch.setattr(protos, "LARGE_MODEL", 10)
    path = save_artifact(artifact, tmp_path / "a") / "model.onnx"
    assert convert(path).digest() == convert(parse()).digest()


def test_rows_of_another_width_are_refused():
    with pytest.raises(DataError, match="2 per row for input 'X'"):
        convert(parse(), data=some(X=X[:, :2]))


def test_a_prediction_without_one_entry_per_row_is_refused():
    shape = LINEAR.replace("Y = Add(h, b)", "k = Add(h, b)  column = Constant <value = int64[2] {-1, 1}> ()")
    shape = (
        shape.replace("()  ", "() ")
        .replace("[batch, 2] Y", "[cells, 1] Y")
        .replace("() }", "()  Y = Reshape(k, column) }")
    )
    with pytest.raises(ConvertError, match=r"one entry per row(.|\n)*'Y' of shape \[40, 1\] for 20 rows"):
        convert(parse(shape), data=some())


def test_a_model_that_the_checker_refuses_is_refused():
    with pytest.raises(ModelError, match=r"onnx\.checker"):
        convert(parse(LINEAR.replace("MatMul(X, w)", "MatMul(X, X)")))


HIDDEN = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3] X) => (float[N, 2] Y)
{ w = Constant <value = float[3, 2] {1, 2, 3, 4, 5, 6}> ()  b = Constant <value = float[2] {0.5, -0.5}> ()
  h = MatMul(X, w)  Y = Add(h, b) }
"""


@pytest.mark.parametrize(("lift", "parameters"), [(True, ("w", "b")), (("w*",), ("w",))])
def test_weights_in_constants_are_lifted_and_said(tmp_path, lift, parameters):
    onnx.save(parse(HIDDEN), tmp_path / "a.onnx")
    artifact = convert(None, source(tmp_path / "a.onnx", lift=lift), data=some())
    assert artifact.facts.parameters == parameters
    assert (
        f"lifts {len(parameters)} weights from constants: {', '.join(parameters)}" in artifact.facts.lineage[0]["notes"]
    )


def test_weights_that_stay_constants_leave_nothing_to_train(tmp_path):
    onnx.save(parse(HIDDEN), tmp_path / "a.onnx")
    with pytest.raises(ConvertError, match=r"weights in source\.lift"):
        convert(None, source(tmp_path / "a.onnx", lift=False))
    with pytest.raises(ConvertError, match=r"lift must match a parameter"):
        convert(None, source(tmp_path / "a.onnx", lift=("nothing",)))


def test_a_name_to_lift_that_is_none_and_classes_of_one_label_are_refused(tmp_path):
    text = "g (float[N, 3] X) => (float[N, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { Y = MatMul(X, w) }"
    onnx.save(parse(HIDDEN[: HIDDEN.index("g (")] + text), tmp_path / "a.onnx")
    with pytest.raises(ConvertError, match=r"lift must match a parameter"):
        convert(None, source(tmp_path / "a.onnx", lift=("nothing",)))
    with pytest.raises(ConvertError, match=r"Class labels must be distinct(.|\n)*a, a for output 'Y'"):
        convert(None, source(tmp_path / "a.onnx", task="multiclass", scores="logits", classes=("a", "a")))


def test_constants_in_what_ortpipe_wrote_stay(tmp_path):
    model = parse(
        HIDDEN.replace("float[N, 2] Y)", "float[N, 2] Y) <float[3, 2] v = {1, 2, 3, 4, 5, 6}>").replace(
            "h = MatMul(X, w)", "i = MatMul(X, w) j = MatMul(X, v) h = Add(i, j)"
        )
    )
    model.metadata_props.add(key="ortpipe.task", value='"regression"')
    assert convert(model).facts.parameters == ("v",)


def test_what_the_config_says_of_a_file_counts_for_a_path_and_a_model_that_are_given(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(parse(), path)
    config, data = source("elsewhere.onnx", task="multiclass", scores="logits"), some(X=X.astype(np.float32))
    for given in (path, str(path), parse()):
        facts = convert(given, config, data=data).facts
        assert (facts.task, facts.logits) == ("multiclass", "Y")
    assert convert(path, data=data).facts.task == "regression"


def test_an_input_of_fixed_size_is_asked_for_rather_than_one_of_rows():
    text = "g (float[1,2] state, float[N,2] X) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}>"
    text = f'<ir_version: 8, opset_import: ["": 17]> {text} {{ h = MatMul(X, w) y = Add(h, state) }}'
    rows = Rows({"a": np.ones((5, 2)), "b": np.ones((5, 2))}, np.ones((5, 2)))
    with pytest.raises(ConvertError, match=r"fixed=\{state: 0\}"):
        convert(onnx.parser.parse_model(text), data=Data(rows))
