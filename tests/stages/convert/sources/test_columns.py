"""Columns of a table as numbers and codes, in the graph: against pandas and scikit-learn."""

import numpy as np
import onnx_ir as ir
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from ortpipe import Rows
from ortpipe.data.sources.function import Function
from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.types import IR_VERSION, OPSET
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.sources.networks.columns import features
from ortpipe.stages.convert.sources.networks.dates import date_numbers

RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RANDOM.normal(40, 10, 50).round(),
        "day": pd.to_datetime("2013-01-01") + pd.to_timedelta(RANDOM.integers(0, 9000, 50), unit="h"),
        "city": RANDOM.choice(["Łódź", "Rome", "Oslo"], 50),
        "fare": RANDOM.normal(size=50),
        "y": 0.0,
    }
)
FRAME.loc[[3, 7], "age"] = np.nan
FRAME.loc[[7, 9], "day"] = pd.NaT
FRAME.loc[5, "city"] = None


def given(frame):
    return frame


def rows_of(frame, **settings):
    return Function(function=f"{__name__}:given", params={"frame": frame}, **settings)()


def built(rows, **settings):
    """Return a session of a graph that ends in features, and these."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="features")
    op = Builder(graph, "forward")
    with op.formulas():
        made = features(op, rows, np.dtype("float64"), **settings)
    if made.numbers is not None:
        graph.outputs.append(op.rename(made.numbers, "numbers"))
    graph.outputs.extend(op.rename(codes, f"{name}/codes") for name, codes in made.words.items())
    return Session(finish(ir.Model(graph, ir_version=IR_VERSION))), made


def test_numbers_words_and_dates_become_features_as_pandas_and_scikit_learn_have_them():
    rows = rows_of(FRAME)
    session, made = built(rows)
    parts = {"days": lambda d: (d - pd.Timestamp(0)).dt.days, "month": lambda d: d.dt.month, "day": lambda d: d.dt.day}
    parts |= {"weekday": lambda d: d.dt.day_of_week, "hour": lambda d: d.dt.hour}
    numbers = FRAME[["age", "fare"]].assign(**{f"day.{part}": of(FRAME.day) for part, of in parts.items()})
    assert made.names == (*numbers, "age.missing", "day.missing")
    expected = StandardScaler().fit_transform(SimpleImputer(strategy="median").fit_transform(numbers))
    values, codes = session.run(rows.inputs)
    np.testing.assert_allclose(values[:, :-2], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(values[:, -2:], FRAME[["age", "day"]].isna())
    known = sorted({*FRAME.city.dropna(), ""})
    assert (codes.tolist(), made.sizes) == ([1 + known.index(c) for c in FRAME.city.fillna("")], {"city": 5})


def test_what_training_rows_do_not_hold_is_unknown_and_what_is_no_date_is_missing():
    rows = rows_of(FRAME.dropna())
    session, made = built(rows, impute="mean")
    one = {"age": np.array([np.nan]), "fare": np.array([rows.inputs["fare"].mean()])}
    values, codes = session.run({**one, "city": np.array([""], object), "day": np.array(["soon"], object)})
    np.testing.assert_allclose(values, np.zeros((1, 7)), atol=1e-12)  # the means
    assert (codes.tolist(), made.sizes["city"]) == ([0], 4)
    assert not any(name.endswith(".missing") for name in made.names)


def test_a_row_of_weight_two_is_the_row_twice():
    weight = RANDOM.integers(1, 4, 50)
    weighted, twice = rows_of(FRAME.assign(w=weight), sample_weight="w"), rows_of(FRAME.loc[FRAME.index.repeat(weight)])
    for impute in ("median", "mean"):
        (ours, _), (theirs, _) = built(weighted, impute=impute), built(twice, impute=impute)
        np.testing.assert_allclose(*(s.run(rows_of(FRAME).inputs, ["numbers"])[0] for s in (ours, theirs)), atol=1e-12)


def test_numbers_side_by_side_are_put_on_one_scale_without_a_way_for_gaps():
    x = RANDOM.normal(size=(20, 3))
    session, made = built(Rows({"X": x}, np.zeros(20)))
    np.testing.assert_allclose(session.run({"X": x})[0], StandardScaler().fit_transform(x), atol=1e-12)
    assert made.names == ("X.0", "X.1", "X.2")
    with pytest.raises(ConvertError, match=r"columns of numbers(.|\n)*shape \[20, 3, 1\]"):
        built(Rows({"X": x[..., None]}, np.zeros(20)))


def test_columns_that_say_nothing_are_left_out_or_said():
    days = ["2013-01-31"] * 200
    frame = pd.DataFrame({"day": days, "row": [f"r{i % 199}" for i in range(200)], "gap": np.nan, "y": 0.0})
    session, made = built(rows_of(frame))
    assert made.names == ("gap", "gap.missing")
    assert session.run({name: array[:1] for name, array in rows_of(frame).inputs.items()})[0].tolist() == [[0, 1]]
    assert any("identifies rows" in note and "'row'" in note for note in made.notes)
    assert "dates are numbers, in UTC: none that varies" in made.notes


def test_dates_of_all_forms_are_those_of_pandas():
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="dates")
    op = Builder(graph, "dates")
    numbers = date_numbers(op, op.input("text", ir.DataType.STRING, ["N", 1]))._asdict()
    graph.outputs.extend(op.rename(value, name) for name, value in numbers.items())
    session = Session(finish(ir.Model(graph, ir_version=IR_VERSION)))
    moments = pd.to_datetime(RANDOM.integers(-60e9, 250e9, 600), unit="s")
    ends = ["", "Z", "+02:30", "-0500", ".25", "-11:45"]
    texts = [m.isoformat(sep="T "[i % 2]) + ends[i % 6] if i % 5 else m.isoformat()[:10] for i, m in enumerate(moments)]
    made = dict(zip(session.outputs, session.run({"text": np.array(texts, object)[:, None]}), strict=True))
    read = [pd.Timestamp(text) for text in texts]
    read = [m.tz_localize(None) if m.tzinfo is None else m.tz_convert("UTC") for m in read]
    expected = {"days": [m.toordinal() - 719_163 for m in read], "weekday": [m.weekday() for m in read]}
    expected |= {part: [getattr(m, part) for m in read] for part in ("month", "day", "hour", "minute")}
    for part, values in expected.items():
        np.testing.assert_array_equal(made[part][:, 0], values, part)
    assert made["is_date"].all()
    none = np.array([[""], ["soon"], ["2013-1-1"], ["2013-01-01T"], ["x2013-01-01"]], object)
    assert not session.run({"text": none}, ["is_date"])[0].any()
