"""Rows that a function of the user's own makes, in every form that it may give them."""

import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.datasets import load_diabetes

from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.sources.function import Function
from ortpipe.errors import ConfigError, DataError

X, Y = load_diabetes(return_X_y=True)
FRAME = load_diabetes(as_frame=True).frame

FORMS = {
    "rows": lambda: Rows({"X": X}, Y),
    "a pair": lambda: (X, Y),
    "a pair of lists": lambda: (X.tolist(), Y.tolist()),
    "a triple with weights": lambda: (X, Y, np.ones(len(Y))),
    "a dict": lambda: {"X": X, "target": Y},
    "a frame": lambda: FRAME,
    "an arrow table": lambda: pa.Table.from_pandas(FRAME),
    "a frame with an index of its own": lambda: FRAME.set_index(np.arange(len(FRAME))[::-1]),
}


def give(form):
    """Return rows in a form."""
    return FORMS[form]()


def fail(kind):
    """Raise."""
    raise {"value": ValueError, "key": KeyError}[kind]("no such thing")


def source(name="give", **settings):
    return Function(function=f"{__name__}:{name}", label="target", **settings)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows(form):
    rows = source(params={"form": form}, inputs={"X": None})()
    np.testing.assert_array_equal(rows.inputs["X"], X)
    np.testing.assert_array_equal(rows.label, Y)
    assert (rows.sample_weight is not None) == (form == "a triple with weights")


def test_the_settings_of_tables_hold_for_a_frame():
    rows = source(params={"form": "a frame"}, inputs={"a": ("bmi", "age")}, sample_weight="target")()
    np.testing.assert_array_equal(rows.inputs["a"], FRAME[["bmi", "age"]])
    np.testing.assert_array_equal(rows.sample_weight, Y)


@pytest.mark.parametrize("column", [pd.arrays.SparseArray([0] * len(Y)), Y * 1j], ids=["sparse", "complex"])
def test_columns_that_arrow_does_not_know_are_rejected(column, monkeypatch):
    monkeypatch.setitem(FORMS, "a frame", lambda: FRAME.assign(odd=column))
    with pytest.raises(DataError, match=r"values of one type(.|\n)*column odd"):
        source(params={"form": "a frame"})()


@pytest.mark.parametrize("form", ["a dict", "a frame"])
def test_a_column_may_say_the_parts(form, monkeypatch):
    part = np.array(["train", "test"])[np.arange(len(Y)) % 2]
    monkeypatch.setitem(FORMS, "a dict", lambda: {"X": X, "target": Y, "part": part})
    monkeypatch.setitem(FORMS, "a frame", lambda: FRAME.assign(part=part))
    data = load(DataConfig(source(params={"form": form}, inputs={"X": None}), SplitConfig(column="part")))
    np.testing.assert_array_equal(data.test.label, Y[1::2])
    np.testing.assert_array_equal(data.train.inputs["X"], X[::2])


def test_a_module_in_the_working_folder_is_found_and_its_code_is_in_the_digest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "def rows():\n    return [[1.0], [2.0]], [0.0, 1.0]\n"
    digests = []
    for name, text in (("own_a", code), ("own_b", code), ("own_c", f"{code}# another\n")):
        (tmp_path / f"{name}.py").write_text(text)
        digests.append(Function(function=f"{name}.rows")().digest())
        assert str(tmp_path) not in sys.path
    assert digests[0] == digests[1] != digests[2]
    assert digests[0] != Rows({"X": np.array([[1.0], [2.0]])}, np.array([0.0, 1.0])).digest()


def test_a_function_may_import_modules_of_the_working_folder_when_it_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_helper.py").write_text("ROWS = [[1.0], [2.0]], [0.0, 1.0]\n")
    (tmp_path / "own_late.py").write_text("def rows():\n    from own_helper import ROWS\n    return ROWS\n")
    assert len(Function(function="own_late.rows")()) == 2
    assert str(tmp_path) not in sys.path


WRONG = {
    "a module that is away": ("nowhere_at_all:rows", {}, r"importable(.|\n)*No module named 'nowhere_at_all'"),
    "a function that is away": (f"{__name__}:giv", {}, r"which is missing(.|\n)*Did you mean 'give'"),
    "what is no function": (f"{__name__}:FORMS", {}, "which is a dict"),
    "a function that raises": (f"{__name__}:fail", {"kind": "value"}, "raised ValueError: no such thing"),
    "a keyword that it has not": (f"{__name__}:give", {"colour": 1}, r"raised TypeError(.|\n)*colour"),
    "another result": ("os:getcwd", {}, "returned a str"),
    "a dict without labels": ("builtins:dict", {"X": [1.0]}, r"got: label='y' for builtins:dict"),
}


@pytest.mark.parametrize(("function", "params", "message"), WRONG.values(), ids=WRONG)
def test_a_function_that_gives_no_rows_is_refused(function, params, message):
    with pytest.raises(DataError, match=message):
        Function(function=function, params=params)()


@pytest.mark.parametrize("path", ["rows", "", ":rows", "module:"])
def test_a_path_that_names_no_function_is_refused(path):
    with pytest.raises(ConfigError, match="import path of a function"):
        Function(function=path)


def views():
    """Return a table with text and categories as polars writes them."""
    words = pa.array(["a", "b", "a"], pa.string_view())
    return pa.table({"word": words, "category": words.dictionary_encode(), "y": [0, 1, 0]})


def test_views_of_text_are_words():
    rows = Function(function=f"{__name__}:views", label="y")()
    assert [array.tolist() for array in rows.inputs.values()] == [["a", "b", "a"]] * 2
