import warnings

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pandas as pd
import pytest
from skl2onnx import to_onnx
from skl2onnx.common.data_types import DictionaryType, FloatTensorType, StringTensorType
from sklearn.base import clone, is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import CategoricalNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
    scale,
)
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from ortpipe.data.raw_columns import RawColumn
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.dialects.standardize import ML, RULES, classes_in, without_zip_map
from ortpipe.stages.convert.reading.graph_settings import Given
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert

rng = np.random.default_rng(0)
X = rng.normal(size=(20, 3)).astype(np.float32)
DATA = Data(Rows({"X": X}, np.zeros(20)))
LINEAR = "coefficients = [1.0, -2.0, 0.5, 0.25, 3.0, -1.0], intercepts = [0.5, -0.25]"
OPPOSITE = "coefficients = [-1.0, 2.0, -0.5, 1.0, -2.0, 0.5], intercepts = [-0.5, 0.5]"
THREE = "coefficients = [1.0, -2.0, 0.5, 0.25, 3.0, -1.0, 0.0, 1.0, 1.0], intercepts = [0.5, -0.25, 0.1]"
CLASSES = {"two words": 'classlabels_strings = ["no", "yes"]', "two numbers": "classlabels_ints = [-3, 7]"}

MACHINES = (
    'kernel_type = "RBF", kernel_params = [0.5, 0.0, 3.0], classlabels_ints = [3, 1, 2], '
    f"vectors_per_class = [1, 2, 1], coefficients = {[1.0, -0.5, -0.25, 0.5, 1.5, 0.75, -1.0, -2.0]}, "
    "rho = [0.1, -0.2, 0.3], "
    f"support_vectors = {[0.5, -1.0, 1.0, 0.0, 0.25, 1.0, -0.5, 0.5, 0.0, 1.0, 1.0, -1.0]}"
)


def classifier(attributes, *, width=2, kind="int64", body="", dtype="float"):
    return (
        f'<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 1]> g ({dtype}[N, 3] X) => '
        f"({kind}[N] label, float[N, {width}] p) {{ label, p = ai.onnx.ml.LinearClassifier <{attributes}> (X) {body} }}"
    )


def regressor(attributes, *, width=1, body="Y = ai.onnx.ml.LinearRegressor <{}> (X)"):
    return (
        f'<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 1]> g (float[N, 3] X) => (float[N, {width}] Y) '
        f"{{ {body.replace('{}', attributes)} }}"
    )


def scaled(scaling):
    return f"s = ai.onnx.ml.{scaling} (X) Y = ai.onnx.ml.LinearRegressor <{{}}> (s)"


ONE = "coefficients = [1.0, -2.0, 0.5], intercepts = [0.5]"
TEXTS = {
    "regressor": regressor(ONE),
    "regressor without intercept": regressor("coefficients = [1.0, -2.0, 0.5]"),
    "regressor of two targets": regressor(f"{LINEAR}, targets = 2", width=2),
    "scaler": regressor(ONE, body=scaled("Scaler <offset = [1.0, 2.0, 3.0], scale = [0.5, 2.0, -1.0]>")),
    "scaler of one number": regressor(ONE, body=scaled("Scaler <offset = [1.0], scale = [0.5]>")),
    "imputer": regressor(ONE, body=scaled("Imputer <imputed_value_floats = [1.0, 2.0, 3.0]>")),
    "binarizer": regressor(ONE, body=scaled("Binarizer <threshold = 0.25>")),
    "vectorizer": regressor(
        f"coefficients = {[0.5, 1.0, -1.0, 2.0, 0.25, -3.0]}, intercepts = [0.5]",
        body="s = ai.onnx.ml.FeatureVectorizer <inputdimensions = [3, 3]> (X, X) "
        "Y = ai.onnx.ml.LinearRegressor <{}> (s)",
    ),
    "one-hot": regressor(
        f"coefficients = {[0.5, 1.0, -1.0, 2.0, 0.25, -3.0]}, intercepts = [0.5]",
        body="i = Floor (X) o = ai.onnx.ml.OneHotEncoder <cats_int64s = [0, -1], zeros = 1> (i) "
        "s = Flatten <axis = 1> (o) Y = ai.onnx.ml.LinearRegressor <{}> (s)",
    ),
    **{
        f"{kernel} machine": regressor(
            f'kernel_type = "{kernel}", kernel_params = [0.5, 1.0, 2.0], n_supports = 2, coefficients = [1.5, -0.5], '
            f"rho = [0.25], support_vectors = {[0.5, -1.0, 1.0, 0.0, 0.25, 1.0]}",
            body="Y = ai.onnx.ml.SVMRegressor <{}> (X)",
        )
        for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")
    },
    "linear machine": regressor(
        'kernel_type = "LINEAR", kernel_params = [0.5, 1.0, 2.0], coefficients = [1.5, -0.5, 1.0], rho = [0.25]',
        body="Y = ai.onnx.ml.SVMRegressor <{}> (X)",
    ),
    "three machines": classifier(MACHINES, width=3).replace("LinearClassifier", "SVMClassifier"),
    **{
        f"{norm} normalizer": regressor(ONE, body=scaled(f'Normalizer <norm = "{norm}">'))
        for norm in ("L1", "L2", "MAX")
    },
    **{
        f"{transform} of {name}": classifier(f'{rows}, {classes}, post_transform = "{transform}"', kind=kind)
        for transform in ("NONE", "LOGISTIC", "SOFTMAX")
        for name, classes in CLASSES.items()
        for rows, kind in (((LINEAR, "string") if "words" in name else (OPPOSITE, "int64")),)
    },
    "two rows that are not opposite": classifier(
        f'{OPPOSITE.replace("[-0.5, 0.5]", "[0.75, 0.5]")}, {CLASSES["two numbers"]}, post_transform = "LOGISTIC"'
    ),
    **{
        f"{transform} of three classes": classifier(
            f'{THREE}, classlabels_strings = ["c", "a", "b"], post_transform = "{transform}"', width=3, kind="string"
        )
        for transform in ("NONE", "LOGISTIC", "SOFTMAX")
    },
    "picked columns": regressor(
        ONE,
        body="h = ai.onnx.ml.LinearRegressor <{}, targets = 1> (X) i = Constant <value = int64[1] {0}> () "
        "Y = ai.onnx.ml.ArrayFeatureExtractor (h, i)",
    ),
    "classifier of doubles": classifier(f"{OPPOSITE}, {CLASSES['two numbers']}", dtype="double"),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_rewritten_operator_computes_what_the_runtimes_own_computes(text):
    model = onnx.parser.parse_model(text)
    before = model.SerializeToString()
    artifact = convert(model, ConvertConfig(Given(prediction=model.graph.output[-1].name)), data=DATA)
    x = X.astype(onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type))
    assert {node.domain for node in artifact.model.graph.node} == {""}
    assert artifact.facts.outputs == tuple(o.name for o in model.graph.output)
    for found, expected in zip(Session(artifact.model).run({"X": x}), Session(model).run({"X": x}), strict=True):
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected)
    assert model.SerializeToString() == before
    names = {name.partition("_")[0] for name in artifact.facts.parameters}
    if "n_supports" in text:
        assert names >= {"dual", "intercept"}
    elif "rho" not in text:
        assert names == (
            {"coefficient"} if "without" in text or "intercepts" not in text else {"coefficient", "intercept"}
        )


def test_a_row_with_nan_gets_the_label_that_the_runtimes_own_machines_give_it():
    model = onnx.parser.parse_model(TEXTS["three machines"])
    x = np.array([[np.nan, 0, 0], [0.5, -1, 1]], np.float32)
    found, expected = (Session(m).run({"X": x}, ["label"])[0] for m in (convert(model).model, model))
    np.testing.assert_array_equal(found, expected)


def test_every_rule_is_tested():
    assert all(any(f"ai.onnx.ml.{name} " in text for text in TEXTS.values()) for name in RULES)


def test_opposite_rows_stay_opposite_while_they_are_trained():
    text = classifier(f'{OPPOSITE}, {CLASSES["two words"]}, post_transform = "LOGISTIC"', kind="string")
    artifact = convert(onnx.parser.parse_model(text))
    assert artifact.facts.task == "binary"
    shapes = {t.name: tuple(t.dims) for t in artifact.model.graph.initializer if t.name in artifact.facts.parameters}
    assert shapes == {"coefficient": (3, 1), "intercept": (1,)}
    assert artifact.facts.classes == ("no", "yes")


REFUSED = {
    "a transformed regressor": (regressor(f'{ONE}, post_transform = "LOGISTIC"'), "post_transform=LOGISTIC"),
    "a probit": (classifier(f'{OPPOSITE}, {CLASSES["two numbers"]}, post_transform = "PROBIT"'), "PROBIT"),
    "one row for two classes": (classifier(f"{ONE}, {CLASSES['two numbers']}"), "1 scores and 2 classes"),
    "no classes": (classifier(OPPOSITE), "no class labels"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_rare_forms_are_refused_rather_than_rewritten_wrongly(text, message):
    with pytest.raises(ConvertError, match=rf"common forms only(.|\n)*{message}"):
        convert(onnx.parser.parse_model(text))


def test_another_operator_between_weights_and_prediction_is_refused_by_name():
    text = regressor(ONE, body="h = ai.onnx.ml.LinearRegressor <{}> (X) Y = ai.onnx.ml.Binarizer (h)")
    with pytest.raises(ConvertError, match=r"Only standard operators(.|\n)*ai\.onnx\.ml\.Binarizer"):
        convert(onnx.parser.parse_model(text))


def test_names_that_are_taken_are_left_to_their_owners():
    text = regressor(ONE, body="coefficient = Neg(X) Y = ai.onnx.ml.LinearRegressor <{}> (coefficient)")
    facts = convert(onnx.parser.parse_model(text), data=DATA).facts
    assert facts.parameters == ("coefficient_1", "intercept")


def test_two_layers_have_parameters_of_their_own():
    body = "h = ai.onnx.ml.LinearRegressor <{}, targets = 1> (X) k = Concat <axis = 1> (h, h, h) "
    body += "Y = ai.onnx.ml.LinearRegressor <{}> (k)"
    text = regressor(ONE, body=body)
    facts = convert(onnx.parser.parse_model(text), data=DATA).facts
    assert facts.parameters == ("coefficient", "intercept", "coefficient_1", "intercept_1")


def test_a_model_without_a_zip_map_stays_as_it_is():
    model = onnx.parser.parse_model(TEXTS["regressor"])
    plain, classes = without_zip_map(model)
    assert plain.SerializeToString() == model.SerializeToString()
    assert plain is not model
    assert classes is None


@pytest.mark.parametrize(("labels", "expected"), [('strings = ["b", "a"]', ("b", "a")), ("int64s = [4, 2]", (4, 2))])
def test_a_zip_map_becomes_a_tensor_under_its_name(labels, expected):
    key = "string" if "strings" in labels else "int64"
    text = f'<ir_version: 10, opset_import: ["" : 17, "{ML}" : 1]> g (float[N, 2] p) => (seq(map({key}, float)) Z) '
    text += f"{{ Z = {ML}.ZipMap <classlabels_{labels}> (p) }}"
    model = onnx.parser.parse_model(text)
    before = model.SerializeToString()
    plain, classes = without_zip_map(model)
    assert classes == expected
    assert plain.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    rows = np.array([[0.25, 0.75]], np.float32)
    np.testing.assert_array_equal(Session(plain).run({"p": rows}, ["Z"])[0], rows)
    assert model.SerializeToString() == before


def test_classes_are_read_off_what_the_label_picks_from():
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[N, 2] p) => (string[N] label) '
    text += '{ names = Constant <value = string[2] {"b", "a"}> () i = ArgMax <axis = 1, keepdims = 0> (p) '
    text += "label = Gather(names, i) }"
    assert classes_in(ir.from_onnx_text(text).graph) == ("b", "a")


def test_a_graph_that_carries_no_classes_has_none():
    assert classes_in(ir.from_onnx_text(TEXTS["regressor"]).graph) is None


@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_a_row_of_zeros_stays_zeros_in_a_normalizer(norm: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>\n'
        "g (float[N,2] X) => (float[N,1] y) <float[2,1] W = {1,2}> "
        f'{{ h = ai.onnx.ml.Normalizer <norm = "{norm}"> (X) y = MatMul(h, W) }}'
    )
    [y] = Session(convert(model).model).run({"X": np.array([[0, 0], [3, 4]], np.float32)})
    np.testing.assert_allclose(y[:, 0], [0, {"L1": 11 / 7, "L2": 2.2}[norm]], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Attribute `prob:FutureWarning")
@pytest.mark.parametrize("zip_map", [True, False])
@pytest.mark.parametrize(
    ("estimator", "rule", "operator"),
    [
        (DecisionTreeClassifier(max_depth=2), "trees compare inputs with constants", "TreeEnsembleClassifier"),
        (RandomForestRegressor(2, max_depth=2), "trees compare inputs with constants", "TreeEnsembleRegressor"),
        (SVC(), "where raw_scores negates them", "SVMClassifier"),  # onnxruntime's scores run against its labels
    ],
    ids=["tree", "forest", "SVC"],
)
def test_trees_and_support_vector_classifiers_are_refused_by_their_operators_name(estimator, rule, operator, zip_map):
    x, y = (array[:100] for array in load_iris(return_X_y=True))
    options = {"options": {"zipmap": zip_map}} if is_classifier(estimator) else {}
    model = to_onnx(estimator.fit(x, y), x[:1].astype(np.float32), target_opset=17, **options)
    with pytest.raises(ConvertError, match=rf"{rule}\.\n  got: ai\.onnx\.ml\.{operator}"):
        convert(model)


def test_a_file_of_named_columns_of_words_and_numbers_is_taken_as_it_is():
    size, x = np.array(["small", "large", "small", "middle"] * 10, object), rng.normal(size=40)
    x[3] = np.nan
    frame = pd.DataFrame({"x": x, "size": size})
    columns = ColumnTransformer([("x", SimpleImputer(), ["x"]), ("size", OneHotEncoder(), ["size"])])
    fitted = make_pipeline(columns, Ridge()).fit(frame, np.arange(40.0))
    kinds = [("x", FloatTensorType([None, 1])), ("size", StringTensorType([None, 1]))]
    model = to_onnx(fitted, initial_types=kinds, target_opset={"": 17, ML: 3})
    rows = Rows(
        {name: frame[name].to_numpy(object if name == "size" else float) for name in frame},
        np.arange(40.0),
        kept={"x": RawColumn("number", 1), "size": RawColumn("word")},
    )
    facts = convert(model, data=Data(rows)).facts
    assert facts.inputs == ("x", "size")
    assert facts.lineage[0]["discrepancy"] < 1e-6


def test_platts_probabilities_and_a_table_that_rows_choose_from_train():
    platt = "[-1.5], prob_b = [0.1]"
    two = MACHINES.replace("[3, 1, 2]", "[0, 1]").replace("[1, 2, 1]", "[1, 1]").replace("[0.1, -0.2, 0.3]", "[0.1]")
    two = two.replace(", -0.25, 0.5, 1.5, 0.75, -1.0, -2.0]", "]").replace(", -0.5, 0.5, 0.0, 1.0, 1.0, -1.0]", "]")
    model = onnx.parser.parse_model(classifier(f"{two}, prob_a = {platt}").replace("LinearC", "SVMC"))
    artifact = convert(model, data=Data(Rows({"X": X}, rng.integers(0, 2, 20))))
    label, p = Session(artifact.model).run({"X": X})
    expected = Session(model).run({"X": X})
    np.testing.assert_allclose(p, expected[1], atol=5e-3)
    np.testing.assert_array_equal(label, expected[0])
    words = two.replace("classlabels_ints = [0, 1]", 'classlabels_strings = ["no", "yes"]')
    worded = onnx.parser.parse_model(classifier(f"{words}, prob_a = {platt}", kind="string").replace("LinearC", "SVMC"))
    assert convert(worded).facts.classes == ("no", "yes")
    assert {"platt_a", "dual_coefficient"} <= {tensor.name for tensor in artifact.model.graph.initializer}
    codes = rng.integers(0, 3, (20, 2)).astype(np.float32)
    bayes = CategoricalNB().fit(codes, codes[:, 0])
    file = to_onnx(bayes, codes[:1], target_opset=17, options={"zipmap": False})
    made = convert(file, data=Data(Rows({"X": codes}, codes[:, 0])))
    assert "feature_log_proba" in made.facts.parameters
    np.testing.assert_allclose(Session(made.model).run({"X": codes})[1], bayes.predict_proba(codes), atol=1e-5)


def exported(estimator, y, x=None, **options):
    """Return rows, a file that skl2onnx makes of an estimator, and it, fitted on them."""
    x = scale(load_iris().data).astype(np.float32) if x is None else x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        fitted = estimator.fit(x, y)
        options = {id(fitted): {"zipmap": False, **options}} if is_classifier(fitted) else None
        return x, to_onnx(fitted, x[:1], target_opset={"": 17, ML: 3}, options=options), fitted


FLOWERS = load_iris().target
PREPARED = {
    "Normalizer": Normalizer("max"),
    "Binarizer": Binarizer(threshold=0.1),
    "Scaler": RobustScaler(),
    "Imputer": SimpleImputer(missing_values=0.0),
    "OneHotEncoder": OneHotEncoder(sparse_output=False),
    "LabelEncoder": OrdinalEncoder(),
    "ArrayFeatureExtractor": SelectKBest(k=2),
    "Concat": ColumnTransformer([("a", StandardScaler(), [0, 1]), ("b", "passthrough", [3])]),
}


@pytest.mark.parametrize("name", PREPARED)
def test_a_file_predicts_what_scikit_learn_does_behind_each_operator_that_prepares(name):
    step = clone(PREPARED[name])
    if name == "Normalizer":  # the operator divides by the largest number, scikit-learn by the largest size
        step = make_pipeline(MinMaxScaler(), step)
    categories = np.floor(load_iris().data).astype(np.float32) if "Encoder" in name else None
    x, model, fitted = exported(make_pipeline(step, LogisticRegression()), FLOWERS, categories)
    assert name in {node.op_type for node in model.graph.node}
    artifact = convert(model, data=Data(Rows({"X": x}, FLOWERS)))
    label, p = Session(artifact.model).run({"X": x})
    np.testing.assert_allclose(p, fitted.predict_proba(x), atol=2e-6)
    np.testing.assert_array_equal(label, fitted.predict(x))


@pytest.mark.parametrize("count", [2, 3])
def test_an_svc_of_a_file_predicts_what_scikit_learns_does(count, tmp_path):
    y = np.minimum(FLOWERS, count - 1)
    x, model, fitted = exported(SVC(probability=True, random_state=0), y)
    artifact = convert(model, data=Data(Rows({"X": x}, y)))
    label, p = Session(artifact.model).run({"X": x})
    np.testing.assert_allclose(p, fitted.predict_proba(x), atol=5e-3)  # where libsvm's iteration ends
    np.testing.assert_array_equal(label, fitted.predict(x))
    assert {"platt_b", "dual_coefficient"} <= {*artifact.facts.parameters}
    x_inf = np.where(np.eye(4, dtype=bool), np.float32(-np.inf), x[:4])  # infinitely far from every support vector
    for got, expected in zip(*(Session(m).run({"X": x_inf}) for m in (artifact.model, model)), strict=True):
        np.testing.assert_allclose(got, expected, atol=5e-3)
    x, model, fitted = exported(SVC(), y, raw_scores=True)
    onnx.save(model, tmp_path / "svc.onnx")
    settings = ConvertConfig(OnnxFile(path=str(tmp_path / "svc.onnx"), scores="logits"))
    artifact = convert(None, settings, data=Data(Rows({"X": x}, y)))
    label, z = Session(artifact.model).run({"X": x})
    np.testing.assert_array_equal(label, fitted.predict(x))
    np.testing.assert_allclose(z[:, 1] if count == 2 else z, fitted.decision_function(x), atol=1e-5)


def test_probabilities_that_skl2onnx_writes_with_the_wrong_sign_are_refused():
    _, model, _ = exported(SVC(probability=True, random_state=0), FLOWERS > 0, raw_scores=True)
    with pytest.raises(ConvertError, match="Scores must agree with the labels"):
        convert(model)


def test_without_rows_a_name_alone_makes_no_probabilities():
    _, model, _ = exported(SVC(), FLOWERS)
    with pytest.raises(ConvertError, match=r"which excludes probabilities(.|\n)*or give rows, which tell"):
        convert(model)


def test_dictionaries_are_refused_by_the_name_of_what_reads_them():
    fitted = make_pipeline(DictVectorizer(sparse=False), Ridge()).fit([{"a": 1.0}, {"b": 2.0}], [1.0, 2.0])
    kind = DictionaryType(StringTensorType([1]), FloatTensorType([1]))
    with pytest.raises(ConvertError, match="X: a dictionary, read by DictVectorizer"):
        convert(to_onnx(fitted, initial_types=[("X", kind)], target_opset=17))
    with pytest.raises(ConvertError, match="DictVectorizer: its rows are dictionaries"):
        convert(fitted)
