"""Rows of what a user has at hand: frames, series, lists, one array alone."""

import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression

from ortpipe import Rows, SplitConfig, convert, split
from ortpipe.errors import DataError

FRAME, TARGET = load_diabetes(as_frame=True, return_X_y=True)
PLAIN = Rows({"X": FRAME.to_numpy()}, TARGET.to_numpy())
NAMED = PLAIN.replace(columns={"X": tuple(FRAME.columns)})

GIVEN = {
    "a frame by name": lambda: Rows({"X": FRAME}, TARGET),
    "a frame alone": lambda: Rows(FRAME, TARGET),
    "an array alone": lambda: Rows(FRAME.to_numpy(), TARGET),
    "lists": lambda: Rows({"X": FRAME.to_numpy().tolist()}, TARGET.tolist()),
    "an Arrow table": lambda: Rows({"X": pa.Table.from_pandas(FRAME)}, pa.array(TARGET)),
    "a list of rows alone": lambda: Rows(FRAME.to_numpy().tolist(), list(TARGET)),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_the_same_rows_are_the_same_whatever_holds_them(given):
    rows = given()
    assert rows.columns in ({}, NAMED.columns)
    plain = NAMED if rows.columns else PLAIN
    assert rows.digest() == plain.digest()
    parts = split(rows, SplitConfig(test=0.25))
    assert parts.digest() == split(plain, SplitConfig(test=0.25)).digest()


def test_the_names_of_a_frame_s_columns_are_kept_and_named_in_errors():
    assert Rows({"X": FRAME}, TARGET).columns == {"X": tuple(FRAME.columns)}
    assert Rows({"X": FRAME}, TARGET, columns={"X": ("own",) * 10}).columns == {"X": ("own",) * 10}
    with pytest.raises(DataError, match="row 7, column 'bmi'"):
        Rows({"X": FRAME.assign(bmi=FRAME.bmi.where(FRAME.index != 7))}, TARGET)


def test_a_frame_trains_as_its_array_does():
    forward = convert(LinearRegression(), data=split(Rows(FRAME, TARGET), SplitConfig()))
    plain = convert(LinearRegression(), data=split(PLAIN, SplitConfig()))
    assert [t.raw_data for t in forward.model.graph.initializer] == [t.raw_data for t in plain.model.graph.initializer]


def test_numbers_of_several_types_and_truth_values_share_an_array():
    rows = Rows(pd.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5]}), pd.Series(["x", "y"]))
    assert rows.inputs["X"].tolist() == [[1, 1, 0.5], [2, 0, 1.5]]
    assert rows.label.tolist() == ["x", "y"]


REFUSED = {
    "text in a frame": (lambda: Rows(FRAME.assign(city="Rome"), TARGET), "column 'city' of input 'X'"),
    "dates in a frame": (lambda: Rows(FRAME.assign(day=pd.Timestamp(0)), TARGET), "column 'day' of input 'X'"),
    "one name twice": (lambda: Rows(pd.concat([FRAME, FRAME], axis=1), TARGET), "'age' twice in input 'X'"),
    "ragged lists": (lambda: Rows([[1], [1, 2]], [0, 1]), r"rectangular(.|\n)*input 'X'"),
    "a sparse matrix": (lambda: Rows(scipy.sparse.eye_array(3), [0, 1, 2]), r"input 'X' of type (.|\n)*toarray"),
    "a path": (lambda: Rows("rows.csv", [1]), "input 'X' of type str"),
    "nothing for labels": (lambda: Rows([[1]], None), "label of type NoneType"),
    "a number for weights": (lambda: Rows([[1]], [1], 0.5), "sample_weight of type float"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_array_is_refused_by_name(given, message):
    with pytest.raises(DataError, match=message):
        given()
