import numpy as np
import onnx.parser
import pytest

from ortpipe.artifact import Facts
from ortpipe.data.feeds import feed_inputs, feed_label, feeds
from ortpipe.data.labels import class_index, fit_label
from ortpipe.data.rows import Rows
from ortpipe.errors import DataError

FACTS = Facts("regression", inputs=("X",), outputs=("Y",), prediction="Y", parameters=(), label="label")
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(5, 3)), rng.normal(size=5)


def model(inputs):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (float[N, K] Y) {{ Y = Identity(X) }}'
    )


def facts(**changes):
    return Facts(**{**FACTS.__dict__, **changes})


def single(text, array):
    return feed_inputs(model(text), FACTS, Rows({"X": array}, np.zeros(len(array))))["X"]


@pytest.mark.parametrize("dtype", ["float", "double", "float16", "int64"])
def test_inputs_are_cast_to_the_models_type(dtype):
    given = np.round(10 * X) if dtype == "int64" else X
    fed = single(f"{dtype}[N, 3] X", given)
    assert fed.dtype == {"float": "float32", "double": "float64"}.get(dtype, dtype)
    np.testing.assert_array_equal(fed, given.astype(fed.dtype))


def test_feeding_copies_no_change_back():
    rows = Rows({"X": X.astype(np.float32)}, Y)
    before = rows.digest()
    feeds(model("float[N, 3] X, float[N, 1] label"), FACTS, rows)
    assert rows.digest() == before


def test_a_single_input_fits_under_any_name():
    fed = feed_inputs(model("float[N, 3] X"), FACTS, Rows({"features": X}, Y))
    assert list(fed) == ["X"]


@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        ("float[N, 1, 2, 2] X", (5, 4), (5, 1, 2, 2)),
        ("float[N, 4] X", (5, 2, 2), (5, 4)),
        ("float[N, 1] X", (5,), (5, 1)),
        ("float[N] X", (5, 1), (5,)),
        ("float[N, K] X", (5, 7), (5, 7)),
    ],
)
def test_rows_are_reshaped_where_that_is_unambiguous(text, shape, expected):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    fed = single(text, array)
    assert fed.shape == expected
    np.testing.assert_array_equal(fed.ravel(), array.ravel())


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("float[N, 3] X", (5, 4), r"got: 4 per row for input 'X'(.|\n)*Give 3"),
        ("float[N, 3] X", (5,), "Give 3"),
        ("float[N, 2, 2] X", (5, 5), "Give 2×2"),
        ("float[N, K] X", (5, 2, 2), "2×2 per row"),
        ("float[N] X", (5, 2), "Give 1 per row"),
    ],
)
def test_rows_of_another_width_are_refused(text, shape, message):
    with pytest.raises(DataError, match=message):
        single(text, np.ones(shape))


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("float[N, 1] X", np.array([["a"], ["b"]])),
        ("float16[N, 1] X", np.array([[1e6], [0.0]])),
        ("float[N, 1] X", np.array([[1e300], [0.0]])),
        ("int64[N, 1] X", np.array([[1.0], [0.5]])),
        ("int32[N, 1] X", np.array([[2**31], [0]])),
    ],
    ids=["words", "too large for float16", "too large for float32", "a fraction", "too large for int32"],
)
def test_values_that_do_not_fit_the_models_type_are_refused(text, array):
    with pytest.raises(DataError, match="fit the model's dtype"):
        single(text, array)


TWO = "float[N, 3] X, float[N, 2] Z, float[N, 1] label"


def test_several_inputs_are_bound_by_name_whatever_their_order():
    two = facts(inputs=("X", "Z"))
    fed = feeds(model(TWO), two, Rows({"Z": X[:, :2], "X": X}, Y))
    assert {name: array.shape for name, array in fed.items()} == {"X": (5, 3), "Z": (5, 2), "label": (5, 1)}


@pytest.mark.parametrize("given", [{"X": X}, {"X": X, "Z": X[:, :2], "extra": X}, {"X": X, "z": X[:, :2]}])
def test_inputs_of_other_names_are_refused(given):
    with pytest.raises(DataError, match=r"by name(.|\n)*reads X, Z"):
        feed_inputs(model(TWO), facts(inputs=("X", "Z")), Rows(given, Y))


def test_inputs_may_have_the_names_of_labels_and_losses():
    odd = facts(inputs=("label", "loss"), label="label_1")
    text = "float[N, 3] label, float[N, 2] loss, float[N, 1] label_1, float[N, 3] X"
    fed = feeds(model(text), odd, Rows({"label": X, "loss": X[:, :2]}, Y))
    np.testing.assert_array_equal(fed["label"], X.astype(np.float32))
    np.testing.assert_array_equal(fed["label_1"][:, 0], Y.astype(np.float32))


def label(array, width=1, **changes):
    rows = Rows({"X": np.ones((len(array), 3))}, np.asarray(array))
    text = "int64[N, 1] label" if changes.get("classes") else f"float[N, {width}] label"
    return feed_label(model(f"float[N, 3] X, {text}"), facts(**changes), rows)


def test_numbers_become_a_column():
    assert label([1.0, 2.0]).tolist() == [[1], [2]]


def test_several_targets_keep_their_columns():
    assert label([[1, 2], [3, 4]], width=2).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(("array", "width"), [([[1, 2], [3, 4]], 1), ([1, 2], 3), (np.ones((2, 1, 1)), 1)])
def test_labels_of_another_width_are_refused(array, width):
    with pytest.raises(DataError, match="width of the model's prediction"):
        label(array, width)


def test_words_are_no_numbers_to_regress_on():
    with pytest.raises(DataError, match="label: could not convert"):
        label(["a", "b"])


@pytest.mark.parametrize(
    ("array", "classes"),
    [
        (np.array(["b", "a", "c"]), ("a", "b", "c")),
        (np.array(["b", "a", "c"], object), ("a", "b", "c")),
        (np.array([["b"], ["a"], ["c"]]), ("a", "b", "c")),
        (np.array([5, -1, 7]), (-1, 5, 7)),
        (np.array([5, -1, 7], object), (-1, 5, 7)),
        (np.array([5.0, -1.0, 7.0]), (-1, 5, 7)),
        (np.array([5, -1, 7], np.int8), (-1, 5, 7)),
    ],
    ids=["words", "words as objects", "a column", "integers", "integers as objects", "floats", "bytes"],
)
def test_classes_become_their_index(array, classes):
    index = label(array, task="multiclass", classes=classes)
    assert index.tolist() == [[1], [0], [2]]
    assert index.dtype == np.int64


def test_booleans_are_the_classes_zero_and_one():
    assert label([True, False], task="binary", classes=(0, 1)).tolist() == [[1], [0]]


def test_a_label_that_is_no_class_is_refused_by_name():
    with pytest.raises(DataError, match=r"class that the model knows(.|\n)*'d'(.|\n)*'a', 'b'"):
        label(["a", "d"], task="binary", classes=("a", "b"))
    with pytest.raises(DataError, match=r"got: 2\n"):
        label([0, 2], task="binary", classes=(0, 1))


def test_a_classifier_takes_one_class_per_row():
    with pytest.raises(DataError, match="one class per row"):
        class_index(facts(classes=(0, 1)), np.eye(2))


def test_multilabel_labels_are_numbers_even_where_the_classes_have_names():
    rows = Rows({"X": np.ones((2, 3))}, np.array([[1, 0], [1, 1]]))
    many = facts(task="multilabel", classes=("a", "b"))
    fed = feed_label(model("float[N, 3] X, float[N, 2] label"), many, rows)
    assert fed.tolist() == [[1, 0], [1, 1]]
    assert fed.dtype == np.float32


WEIGHED = "float[N, 3] X, float[N, 1] label, float[N, 1] w"


def test_weights_become_a_column_of_the_models_type():
    fed = feeds(model(WEIGHED), facts(sample_weight="w"), Rows({"X": X}, Y, np.arange(5)))
    assert fed["w"].tolist() == [[0], [1], [2], [3], [4]]
    assert fed["w"].dtype == np.float32


def test_weights_stay_a_vector_where_the_model_takes_one():
    taken = model(WEIGHED.replace("float[N, 1] w", "float[N] w"))
    assert feeds(taken, facts(sample_weight="w"), Rows({"X": X}, Y, np.arange(5)))["w"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("name", "weight"), [("w", None), (None, np.ones(5))])
def test_weights_and_a_weighted_loss_come_together(name, weight):
    with pytest.raises(
        DataError, match=r"weights if and only if the loss takes them(.|\n)*add_loss's sample_weight=true"
    ):
        feeds(model(WEIGHED), facts(sample_weight=name), Rows({"X": X}, Y, weight))


def test_a_forward_model_is_fed_without_labels():
    assert list(feeds(model("float[N, 3] X"), facts(label=None), Rows({"X": X}, Y))) == ["X"]


def test_labels_and_weights_are_vectors_where_the_model_takes_vectors():
    taken = model("float[N, 3] X, float[N] label, float[N] w")
    fed = feeds(taken, facts(sample_weight="w"), Rows({"X": X}, Y, np.arange(5)))
    assert fed["label"].shape == fed["w"].shape == (5,)


def test_a_number_beyond_the_models_type_is_named_with_its_place_row_weights_too():
    with pytest.raises(DataError, match=r"X: 1e\+300 at \[1, 0\] is out of range for float32"):
        single("float[N, 1] X", np.array([[0.0], [1e300]]))
    rows = Rows({"X": X}, Y, np.array([1, 1, 1e39, 1, 1]))
    text = "float[N, 3] X, float[N, 1] label, float[N, 1] weight"
    with pytest.raises(DataError, match=r"sample_weight: 1e\+39 at \[2\] is out of range for float32"):
        feeds(model(text), facts(sample_weight="weight"), rows)


def test_an_input_that_nothing_reads_any_more_is_not_fed() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N,2] x) => (float[N,2] y) { y = Abs(x) }'
    )
    facts = Facts(task="regression", inputs=("x", "length"), outputs=("y",), prediction="y", parameters=())
    rows = Rows({"x": np.ones((3, 2)), "length": np.full(3, 2)}, np.zeros(3))
    assert feed_inputs(model, facts, rows).keys() == {"x"}


def test_one_class_per_element_of_values_names_the_task_of_classes():
    named = r"5 per row(.|\n)*5×4 values per row(.|\n)*task=multiclass"
    with pytest.raises(DataError, match=named + r" and, if -100 marks elements to ignore, add_loss's padding=-100\."):
        fit_label(facts(class_axis=2), np.full((3, 5), -100), [None, 5, 4])
    for other in (np.full((3, 5), 2), np.full((3, 5), -0.5)):
        with pytest.raises(DataError, match=named + r"\."):
            fit_label(facts(class_axis=2), other, [None, 5, 4])


@pytest.mark.parametrize("mark", [-100, 255])
def test_an_elements_label_that_is_no_class_may_be_padding(mark):
    labels, of_elements = np.array([[0, 1, mark], [1, 0, 0]]), facts(task="multiclass", classes=(0, 1), class_axis=2)
    with pytest.raises(DataError, match=rf"If {mark} marks elements to ignore, set add_loss's padding={mark}\."):
        class_index(of_elements, labels)
