"""A model of a table's columns as they stand, as MLflow loads and serves it: rows as people have them, in frames."""

from io import StringIO

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.pyfunc.scoring_server import infer_and_parse_data, parse_csv_input
from pyarrow import parquet

from ortpipe import convert
from ortpipe.app.tracking.model import predicted_schema, save
from ortpipe.artifact import Facts
from ortpipe.data.rows import Data
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.parquet import Parquet
from ortpipe.data.unseen import UnseenTable
from ortpipe.errors import DataError
from ortpipe.metrics.columns import as_columns
from ortpipe.runtime import raw_rows
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP

CSV = """age,rooms,city,vip,day,y
31.5,3,Rome,True,2013-01-31,yes
,1,Oslo,False,2012-02-29,no
40,2,,True,,yes
31.5,2,,True,,yes
"""
FRAME = pd.read_csv(StringIO(CSV), dtype={"rooms": float, "vip": object}).drop(columns="y")
RAW = {  # what the bare model takes
    "age": np.array([31.5, np.nan, 40, 31.5], np.float32),
    "rooms": np.array([3, 1, 2, 2], np.float32),
    "city": np.array(["Rome", "Oslo", "", ""], object),
    "vip": np.array(["true", "false", "true", "true"], object),
    "day": np.array(["2013-01-31", "2012-02-29", "", ""], object),
}


def saved(folder, inputs=None):
    """Return a small model of the table's columns, and MLflow's of it."""
    (folder / "rows.csv").write_text(CSV)
    data = Data(Csv(path=str(folder / "rows.csv"), label="y", inputs=inputs)())
    artifact = convert(None, ConvertConfig(source=MLP(hidden=(4,), dropout=0.0)), data=data)
    record = artifact.facts.lineage[0]
    save(artifact.model, folder / "model", Model(), record["rows"], record["table"])
    return Session(artifact.model), mlflow.pyfunc.load_model(str(folder / "model"))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("raw"))


def test_a_frame_a_csv_body_and_a_json_body_of_raw_rows_give_what_the_bare_model_gives(both):
    session, loaded = both
    label, probabilities = session.run(RAW, ["label", "probabilities"])
    schema = loaded.metadata.get_input_schema()
    body = FRAME.astype(object).where(FRAME.notna(), None)
    records = infer_and_parse_data({"dataframe_records": body.to_dict("records")}, schema=schema)
    records = records[0] if isinstance(records, tuple) else records
    for given in (FRAME, parse_csv_input(StringIO(FRAME.to_csv(index=False)), schema=schema), records):
        made = loaded.predict(given)
        assert list(made) == ["prediction", "probability_no", "probability_yes"]
        assert made.prediction.tolist() == label.tolist()
        np.testing.assert_allclose(made[["probability_no", "probability_yes"]], probabilities, rtol=1e-6)


def test_the_signature_names_the_columns_and_the_example_is_of_no_real_row(both):
    _, loaded = both
    types = {column.name: column.type.name for column in loaded.metadata.get_input_schema()}
    assert types == {"age": "double", "rooms": "double", "city": "string", "vip": "string", "day": "string"}
    answered = {column.name: column.type.name for column in loaded.metadata.get_output_schema()}
    assert answered == {"prediction": "string", "probability_no": "double", "probability_yes": "double"}
    example = {"age": 31.5, "rooms": 2, "city": "text", "vip": True, "day": "2012-02-29"}  # medians, what is frequent
    pd.testing.assert_frame_equal(loaded.input_example, pd.DataFrame([example]), check_dtype=False)


def test_a_missing_column_is_refused_by_name_and_an_unknown_word_is_like_any_other(both):
    _, loaded = both
    with pytest.raises(MlflowException, match=r"Model is missing inputs \['city'\]"):
        loaded.predict(FRAME.drop(columns="city"))
    unknown = [loaded.predict(FRAME.assign(city=word))["probability_yes"] for word in ("Paris", "Kraków")]
    np.testing.assert_array_equal(*unknown)


def test_a_model_of_one_column_takes_a_frame_of_it(tmp_path):
    session, loaded = saved(tmp_path, inputs=("city",))
    [label] = session.run({"city": RAW["city"]}, ["label"])
    assert loaded.predict(FRAME[["city"]]).prediction.tolist() == label.tolist()


TRAINED = {  # columns of Parquet: numbers, words, words that look like gaps and numbers, truth values, dates
    "size": [1.5, 2.5, 4.0, 8.0],
    "rooms": [1, 2, 4, 7],
    "city": ["Rome", "Oslo", "Bern", "Riga"],
    "grade": ["NA", "b", "c", "d"],
    "code": [3, 5, 7, 11],
    "zip": ["3", "5", "7", "11"],
    "vip": [True, False, True, False],
    "day": ["2013-01-31", "2012-02-29", "2014-03-01", "2015-05-05"],
}
FORMS = {  # in which rows reach a served model, through MLflow's own parsing
    "frame": lambda frame, schema: frame,
    "csv": lambda frame, schema: parse_csv_input(StringIO(frame.to_csv(index=False)), schema=schema),
    "records": lambda frame, schema: parsed({"dataframe_records": frame.to_dict("records")}, schema),
    "split": lambda frame, schema: parsed({"dataframe_split": frame.to_dict("split", index=False)}, schema),
    "inputs": lambda frame, schema: parsed({"inputs": frame.to_dict("list")}, schema),
    "instances": lambda frame, schema: parsed({"instances": frame.to_dict("records")}, schema),
}


def parsed(body, schema):
    parsed = infer_and_parse_data(body, schema=schema)
    return parsed[0] if isinstance(parsed, tuple) else parsed


@pytest.fixture(scope="module", params=[True, False], ids=["trained with gaps", "trained without"])
def trained(request, tmp_path_factory):
    """Return whether training rows had gaps, the model of all columns, and MLflow's of it."""
    folder = tmp_path_factory.mktemp("forms")
    rows = {name: values * 5 + [None] * request.param for name, values in TRAINED.items()}
    labels = [i % 3 / 2 for i in range(20 + request.param)]
    parquet.write_table(pa.table({**rows, "y": labels}), folder / "rows.parquet")
    data = Data(Parquet(path=str(folder / "rows.parquet"), label="y", categorical=("code", "zip"))())
    artifact = convert(None, ConvertConfig(source=MLP(hidden=(4,), dropout=0.0)), data=data)
    record = artifact.facts.lineage[0]
    save(artifact.model, folder / "model", Model(), record["rows"], record["table"])
    return request.param, Session(artifact.model), mlflow.pyfunc.load_model(str(folder / "model"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gap", [None, *TRAINED])
def test_however_rows_come_their_gaps_are_gaps_or_refused(trained, gap, form):
    gaps, session, loaded = trained
    columns = {name: [*values[:3], None if name == gap else values[3]] for name, values in TRAINED.items()}
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    numbers = {name: np.array(columns[name], np.float32) for name in ("size", "rooms")}
    words = {name: [bare(v) for v in values] for name, values in columns.items() if name not in numbers}
    [output] = (given.name for given in loaded.get_raw_model().get_outputs())
    [expected] = session.run(numbers | {name: np.array(values, object) for name, values in words.items()}, [output])
    if form == "frame":
        frame = frame.astype({"rooms": float})  # MLflow takes no whole numbers for a double
    elif form != "frame":
        frame = frame.astype(object).where(frame.notna(), None)
    refused = not gaps and (gap == "grade" or form == "csv")  # csv: NA is a word there
    if refused and (gap, form) not in [("grade", "inputs"), ("grade", "instances")]:
        with pytest.raises(MlflowException, match="grade"):
            loaded.predict(FORMS[form](frame, loaded.metadata.get_input_schema()))
        return
    answered = loaded.predict(FORMS[form](frame, loaded.metadata.get_input_schema())).prediction
    told = slice(1, None) if form == "csv" else slice(None)  # the first row's NA is a word and a gap in training
    np.testing.assert_allclose(answered[told], expected.ravel()[told], rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_fraction_in_a_column_of_whole_numbers_is_read_as_one_in_every_form(both, form):
    session, loaded = both
    rooms = [5.9, 1.0, 2.5, 2.0]
    frame = FRAME.assign(rooms=rooms)
    frame = frame if form == "frame" else frame.astype(object).where(frame.notna(), None)
    [expected] = session.run(RAW | {"rooms": np.array(rooms, np.float32)}, ["probabilities"])
    answered = loaded.predict(FORMS[form](frame, loaded.metadata.get_input_schema()))
    np.testing.assert_allclose(answered[["probability_no", "probability_yes"]], expected, rtol=1e-6)


def bare(value):
    """Return a word as the model takes it."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_no_rows_infinite_numbers_and_other_words_than_true_and_false_are_refused_by_name(both):
    _, loaded = both
    for frame, said in [
        (FRAME.head(0), "at least one row"),
        (FRAME.assign(age=[1.0, np.inf, 2.0, 3.0]), "'age' holds finite numbers, not inf"),
        (FRAME.assign(vip=["true", "1", "yes", "no"]), "'vip' holds true and false, not '1'"),
    ]:
        with pytest.raises(MlflowException, match=said):
            loaded.predict(frame)


SHARES = np.array([[0.2, 0.7, 0.1], [0.5, 0.25, 0.25]], np.float32)
PREDICTIONS = {
    "values": ({"task": "regression"}, [[3], [4]]),
    "two values": ({"task": "regression"}, [[3, -1], [4, 2]]),
    "logarithms of values": ({"task": "regression", "link": "log"}, [[3], [-4]]),
    "quantiles": ({"task": "regression", "link": "quantiles", "levels": (0.1, 0.95)}, [[3, 4], [-4, 2]]),
    "a risk": ({"task": "regression", "link": "risk"}, [[3], [-4]]),
    "survival": ({"task": "regression", "link": "survival", "levels": (12.0, 1000000.5)}, [[0.9, 0.4], [0.8, 0.8]]),
    "probabilities": ({"task": "multiclass", "classes": ("a", "b", "c")}, SHARES),
    "scores": ({"task": "multiclass", "logits": "p"}, SHARES * 9 - 4),
    "the probability of one class": ({"task": "binary", "classes": (3, 7)}, SHARES[:, :1]),
    "the score of one class": ({"task": "binary", "logits": "p"}, SHARES[:, :1] * 9 - 4),
    "a threshold of a probability": ({"task": "binary", "threshold": 0.2}, [[0.2], [0.19], [0.5]]),
    "a threshold of two": ({"task": "binary", "classes": ("a", "b"), "threshold": 0.75}, [[0.5, 0.5], [0.2, 0.8]]),
    "a threshold of a score": ({"task": "binary", "logits": "p", "threshold": 0.9}, [[2], [2.5], [-1]]),
    "one score twice": ({"task": "binary", "logits": "p", "opposite": True}, [[-2, 2], [0.5, -0.5]]),
    "labels": ({"task": "multilabel", "classes": ("x", "y", "z")}, SHARES),
    "scores of labels": ({"task": "multilabel", "logits": "p"}, SHARES * 9 - 4),
}


@pytest.mark.parametrize(("settings", "array"), PREDICTIONS.values(), ids=PREDICTIONS)
@pytest.mark.parametrize("prefix", ["", "head_"])
def test_mlflow_answers_by_the_names_and_with_the_values_that_predict_writes(settings, array, prefix):
    facts = Facts(inputs=("x",), outputs=("p",), prediction="p", parameters=(), **settings)
    array = np.array(array, np.float32)
    expected, made = as_columns(facts, array, prefix), raw_rows.as_columns(facts.as_json(), array, prefix)
    assert {name: values.dtype.kind for name, values in made.items()} == {n: v.dtype.kind for n, v in expected.items()}
    for name, values in expected.items():
        np.testing.assert_array_equal(made[name], values)


def test_a_column_of_values_is_in_the_signature(tmp_path):
    (tmp_path / "rows.csv").write_text(CSV.replace("yes", "1.5").replace("no", "2.5"))
    data = Data(Csv(path=str(tmp_path / "rows.csv"), label="y", inputs=("age",))())
    artifact = convert(None, ConvertConfig(source=MLP(hidden=(4,), dropout=0.0)), data=data)
    [column] = predicted_schema(artifact.model)
    assert (column.name, column.type.name) == ("prediction", "double")


WRITTEN = """price,share,when,at,vip,y
"$1,900",5%,10/13/2014,1:45 pm,yes,1.5
$770,12.5%,2/5/2015,12:06 AM,No,0.25
,7%,12/31/1999,,,3
"""
PLAIN = {
    "price": np.array([1900, 770, np.nan], np.float32),
    "share": np.array([5, 12.5, 7], np.float32),
    "when": np.array(["2014-10-13", "2015-02-05", "1999-12-31"], object),
    "at": np.array([13.75, 0.1, np.nan], np.float32),
    "vip": np.array(["true", "false", ""], object),
}


def test_rows_are_served_as_they_are_written_in_the_file(tmp_path):
    (tmp_path / "rows.csv").write_text(WRITTEN)
    data = Data(Csv(path=str(tmp_path / "rows.csv"), label="y")())
    artifact = convert(None, ConvertConfig(source=MLP(hidden=(4,), dropout=0.0)), data=data)
    record = artifact.facts.lineage[0]
    save(artifact.model, tmp_path / "model", Model(), record["rows"], record["table"])
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    [expected] = Session(artifact.model).run(PLAIN, [artifact.facts.prediction])
    example = {"price": "$770.0", "share": "7.0%", "when": "10/13/2014", "at": "12:06:00 AM", "vip": "text"}
    pd.testing.assert_frame_equal(loaded.input_example, pd.DataFrame([example]), check_dtype=False)
    frame = pd.read_csv(StringIO(WRITTEN)).drop(columns="y")
    for form in FORMS:
        rows = FORMS[form](frame.astype(object).where(frame.notna(), None), loaded.metadata.get_input_schema())
        np.testing.assert_allclose(loaded.predict(rows).prediction, expected.ravel(), rtol=1e-6)
    for column, value in (("price", "1,900 km"), ("when", "13/10/2014"), ("at", "13:45"), ("vip", "maybe")):
        with pytest.raises(MlflowException, match=f"'{column}' holds .* as in training, not '{value}'"):
            loaded.predict(frame.assign(**{column: value}))
    source = Csv(path=str(tmp_path / "rows.csv"), label="y")
    forms = {name: column["of"] or column["kind"] for name, column in record["table"]["columns"].items()}
    written = {name: column["written"] for name, column in record["table"]["columns"].items()}
    unseen = UnseenTable(artifact.model, artifact.facts, forms, (), written)
    _, group = source.new_rows(unseen.columns)
    [piece] = group.read(list(unseen.columns), 10)
    for name, array in unseen.feeds(piece, group.position).items():
        np.testing.assert_array_equal(array, PLAIN[name])
    (tmp_path / "rows.csv").write_text(WRITTEN.replace("$770", "770 km"))
    _, group = source.new_rows(unseen.columns)
    with pytest.raises(DataError, match=r"in training: money, \$(.|\n)*'770 km' in line 3 of"):
        unseen.feeds(next(group.read(list(unseen.columns), 10)), group.position)
