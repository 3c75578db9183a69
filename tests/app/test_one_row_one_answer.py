"""One row has one answer: of the bare model, training, `predict`, OrtRegressor, MLflow's pyfunc and scoring server."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.pyfunc.scoring_server import invocations
from pyarrow import csv, parquet

from ortpipe import convert
from ortpipe.app.commands.predict import predict
from ortpipe.app.lookup import FoundModel
from ortpipe.app.tracking.model import save
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data, Rows
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.parquet import Parquet
from ortpipe.errors import DataError, OrtpipeError
from ortpipe.facts_json import read_facts
from ortpipe.runtime.session import Session
from ortpipe.sklearn.frames import columns_of, read
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP

MOMENTS = st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2030, 1, 1)).map(
    lambda moment: moment.replace(microsecond=0)
)
WORDS = ("Rome", "Oslo", "a,b", 'say "x"', "x\ny", "true", "05:00", "3", "007", "1e5", " x", "größe", "2013-01-31")
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "fraction": (pa.float64(), st.floats(-1e6, 1e6, width=32)),
    "integer": (pa.int64(), st.integers(-100, 100)),
    "big integer": (pa.int64(), st.sampled_from([2**53 + 1, 2**60 + 2**36 + 1, -(2**62) - 3, 2**63 - 1, 7])),
    "truth value": (pa.bool_(), st.booleans()),
    "word": (pa.string(), st.sampled_from(WORDS)),
    "day": (pa.date32(), st.dates(datetime.date(1990, 1, 1), datetime.date(2030, 1, 1))),
    "moment": (pa.timestamp("us"), MOMENTS),
}
NETWORK = MLP(hidden=(8,), dropout=0.0, activation="tanh")  # every input moves its prediction
NAMES = ("a", "größe", "a b", "price ($)", 'q"x', "x,y", "1")


@dataclass(frozen=True)
class Case:
    """Rows to train on and rows to predict, as values by column; and what to train from."""

    kinds: dict[str, str]
    train: dict[str, list[Any]]
    rows: dict[str, list[Any]]
    suffix: str

    def table(self, values: dict[str, list[Any]]) -> pa.Table:
        columns = {name: pa.array(values[name], KINDS[kind][0]) for name, kind in self.kinds.items()}
        count = len(next(iter(values.values())))
        return pa.table({**columns, "y": np.linspace(0, 1, count)})

    def is_number(self, name: str) -> bool:
        return KINDS[self.kinds[name]][0] in (pa.float64(), pa.int64())


@st.composite
def cases(draw: st.DrawFn, among: tuple[str, ...] = tuple(KINDS), gaps: bool = True) -> Case:
    chosen = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    kinds = {name: draw(st.sampled_from(among)) for name in chosen}

    def values(name: str, count: int, has_gaps: bool) -> list[Any]:
        value = KINDS[kinds[name]][1]
        first = [draw(value)]  # a column of nothing has no type in CSV
        return first + draw(st.lists(value | st.none() if has_gaps else value, min_size=count, max_size=count))

    train = {name: values(name, 7, gaps and draw(st.booleans())) for name in chosen}
    rows = {name: values(name, 3, True) for name in chosen}
    return Case(kinds, train, rows, draw(st.sampled_from([".csv", ".parquet"])))


def source(case: Case, values: dict[str, list[Any]], file: Path) -> Csv | Parquet:
    """Write a table, and return how training reads it."""
    write = parquet.write_table if file.suffix == ".parquet" else csv.write_csv
    write(case.table(values), file)
    words = tuple(name for name, kind in case.kinds.items() if kind == "word")
    kind: Any = Parquet if file.suffix == ".parquet" else Csv
    return kind(path=str(file), label="y", categorical=words, inputs=tuple(case.kinds))


def plain(value: Any) -> Any:
    """Return a value as JSON and a user's frame have it."""
    return value.isoformat() if isinstance(value, datetime.date) else value


def fed_by_hand(case: Case) -> dict[str, np.ndarray]:
    """Return the rows as docs/howto/table.md describes the bare model's inputs."""

    def text(value: Any) -> str:
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(plain(value))

    return {
        name: np.array([np.nan if value is None else float(value) for value in values]).astype(np.float32)
        if case.is_number(name)
        else np.array([*map(text, values)], object)
        for name, values in case.rows.items()
    }


def served(loaded: Any, body: str, kind: str) -> list[float]:
    """Return what MLflow's scoring server answers."""
    response = invocations(body, kind, loaded, loaded.metadata.get_input_schema())
    return [row["prediction"] for row in json.loads(response.response)["predictions"]]


def answers(case: Case, folder: Path) -> dict[str, Any]:
    """Return functions that predict the rows, by the way in which they come."""
    data = Data(source(case, case.train, folder / f"train{case.suffix}")())
    artifact = convert(None, ConvertConfig(source=NETWORK), data=data)
    record, facts = artifact.facts.lineage[0], artifact.facts
    save(artifact.model, folder / "model", Model(), record["rows"], record["table"])
    loaded = mlflow.pyfunc.load_model(str(folder / "model"))
    session, found = Session(artifact.model), FoundModel("model", artifact.model, {}, facts.as_json())
    frame = pd.DataFrame({name: pd.Series([*map(plain, v)], dtype=object) for name, v in case.rows.items()})
    numbers = {name: float for name in case.kinds if case.is_number(name)}

    def run(inputs: dict[str, np.ndarray]) -> list[float]:
        return session.run(inputs, [facts.prediction])[0].ravel().tolist()

    def trained() -> list[float]:
        rows = source(case, case.rows, folder / "rows.parquet")()
        return run(feed_inputs(artifact.model, read_facts(facts.as_json()), rows))

    def predicted(suffix: str) -> list[float]:
        source(case, case.rows, folder / f"rows{suffix}")
        predict(found, folder / f"rows{suffix}", folder / f"made{suffix}.parquet", {})
        return parquet.read_table(folder / f"made{suffix}.parquet")["prediction"].to_pylist()

    def framed() -> list[float]:
        typed = case.table(case.rows).drop_columns("y").to_pandas()
        columns = columns_of(case.table(case.train).drop_columns("y").to_pandas(), None)
        if columns is None:  # one input of numbers
            return run(fed_by_hand(case))
        return run(feed_inputs(artifact.model, facts, rows_of(typed, columns)))

    records = frame.to_dict("records")
    bodies = {
        "dataframe_records": records,
        "dataframe_split": frame.to_dict("split", index=False),
        "inputs": frame.to_dict("list"),
        "instances": records,
    }
    return {
        "bare": lambda: run(fed_by_hand(case)),
        "training": trained,
        "predict CSV": lambda: predicted(".csv"),
        "predict Parquet": lambda: predicted(".parquet"),
        "OrtRegressor": framed,
        "pyfunc": lambda: loaded.predict(frame.astype(numbers)).prediction.tolist(),
        "served CSV": lambda: served(loaded, frame.to_csv(index=False), "text/csv"),
        **{
            f"served {name}": lambda body={name: body}: served(loaded, json.dumps(body), "application/json")
            for name, body in bodies.items()
        },
    }


@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(cases())
def test_a_row_has_the_same_answer_wherever_it_is_asked(case: Case) -> None:
    with TemporaryDirectory() as folder:
        ways = answers(case, Path(folder))
        expected = ways.pop("bare")()
        for way, answer in ways.items():
            np.testing.assert_allclose(answer(), expected, rtol=1e-5, atol=1e-6, err_msg=way)


GOOD = {
    "size": [1.5, 2.5, 4.0],
    "rooms": [1, 2, 5],
    "vip": [True, False, True],
    "city": ["Rome", "Oslo", "Rome"],
    "day": ["2013-01-31", "2012-02-29", "2014-03-01"],
}


@dataclass(frozen=True)
class Trained:
    """A model of the good rows, and what predicts with it."""

    session: Session
    found: FoundModel
    loaded: Any
    columns: Any


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("good")
    csv.write_csv(pa.table({**GOOD, "y": [0.0, 0.5, 1.0]}), folder / "rows.csv")
    data = Data(Csv(path=str(folder / "rows.csv"), label="y")())
    artifact = convert(None, ConvertConfig(source=NETWORK), data=data)
    record = artifact.facts.lineage[0]
    save(artifact.model, folder / "model", Model(), record["rows"], record["table"])
    found = FoundModel("model", artifact.model, {}, artifact.facts.as_json())
    loaded = mlflow.pyfunc.load_model(str(folder / "model"))
    dated = pd.DataFrame(GOOD).assign(day=pd.to_datetime(GOOD["day"]))
    return Trained(Session(artifact.model), found, loaded, columns_of(dated, None))


WRONG: dict[str, dict[str, list[Any]]] = {
    "a word for a number": {"size": [1.5, "abc", 4.0]},
    "a word for a whole number": {"rooms": [1, "two", 5]},
    "an infinite number": {"size": [1.5, 1e400, 4.0]},
    "a word for a truth value": {"vip": ["true", "maybe", "false"]},
    "a number for a truth value": {"vip": ["true", "1", "0"]},
    "a word for a date": {"day": ["2013-01-31", "yesterday", "2014-03-01"]},
}
WAYS = {
    "predict CSV": lambda trained, frame, folder: predicted_by_command(trained, frame, folder, ".csv"),
    "predict Parquet": lambda trained, frame, folder: predicted_by_command(trained, frame, folder, ".parquet"),
    "OrtRegressor": lambda trained, frame, _: rows_of(frame, trained.columns),
    "pyfunc": lambda trained, frame, _: trained.loaded.predict(frame),
    "served CSV": lambda trained, frame, _: served(trained.loaded, frame.to_csv(index=False), "text/csv"),
    **{
        f"served {name}": lambda trained, frame, _, name=name, form=form: served(
            trained.loaded, json.dumps({name: form(frame)}), "application/json"
        )
        for name, form in {
            "dataframe_records": lambda frame: frame.to_dict("records"),
            "dataframe_split": lambda frame: frame.to_dict("split", index=False),
            "inputs": lambda frame: frame.to_dict("list"),
            "instances": lambda frame: frame.to_dict("records"),
        }.items()
    },
}


def rows_of(frame: pd.DataFrame, columns: Any) -> Rows:
    """Return a frame as OrtRegressor reads it."""
    inputs = read(frame, columns)
    return Rows(inputs.arrays, np.zeros(len(frame)), kept=inputs.raw_columns)


def predicted_by_command(trained: Trained, frame: pd.DataFrame, folder: Path, suffix: str) -> None:
    frame.to_csv(folder / "rows.csv", index=False)
    if suffix == ".parquet":
        texts = {name: pa.array([str(value) for value in frame[name]]) for name in frame}
        parquet.write_table(pa.table(texts), folder / "rows.parquet")
    predict(trained.found, folder / f"rows{suffix}", folder / "made.csv", {})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_row_is_rejected_wherever_it_is_asked(
    trained: Trained, wrong: dict[str, list[Any]], way: str, tmp_path: Path
) -> None:
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in {**GOOD, **wrong}.items()})
    [name] = wrong
    with pytest.raises((OrtpipeError, MlflowException), match=f"{name}|could not convert string to float: '"):
        WAYS[way](trained, frame, tmp_path)


DATES = ("2012-02-29", "2000-02-29", "2013-01-31 23:59", "2013-01-31T05:00:00.25+0230", "2013-01-31T05:00:09-02:30")
DATES += ("2013-01-31T05:00Z", "0001-12-31")
NO_DATES = ("31.01.2013", "2013/01/31", "20130131", "2013-W05-4", "2013-01-31x", "\u0662013-01-31", "?")
NO_DATES += ("2013-02-29", "1900-02-29", "2013-02-30", "2013-04-31", "2013-13-01", "2013-00-10", "2013-01-00")
NO_DATES += ("2013-01-31T24:00", "2013-01-31T05:60", "2013-01-31T5:00", "2013-01-31t05:00", "2013-01-31T05:00z")


@pytest.mark.parametrize("text", [*DATES, *NO_DATES])
def test_a_text_is_a_date_everywhere_or_nowhere(trained: Trained, text: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(GOOD | {"day": ["2013-01-31", text, "2014-03-01"]}).astype({"rooms": float, "vip": object})
    frame.assign(y=[0, 0.5, 1]).to_csv(tmp_path / "train.csv", index=False)
    kinds, facts = trained.columns, read_facts(trained.found.facts)

    def run(rows: Rows) -> list[float]:
        model = trained.found.model
        return trained.session.run(feed_inputs(model, facts, rows), [facts.prediction])[0].ravel().tolist()

    def predicted() -> list[float]:
        predict(trained.found, tmp_path / "train.csv", tmp_path / "made.parquet", {})
        return parquet.read_table(tmp_path / "made.parquet")["prediction"].to_pylist()

    ways: list[Any] = [
        lambda: run(Csv(path=str(tmp_path / "train.csv"), label="y")()),
        predicted,
        lambda: run(rows_of(frame, kinds)),
        lambda: trained.loaded.predict(frame).prediction.tolist(),
    ]
    if text in NO_DATES:
        for way in ways:
            with pytest.raises((OrtpipeError, MlflowException), match="day"):
                way()
    else:
        answers = [way() for way in ways]
        assert np.isfinite(answers).all()
        np.testing.assert_allclose(answers, [answers[0]] * 4, rtol=1e-5)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("OrtRegressor", "served inputs")])
def test_a_missing_column_is_rejected_wherever_it_is_asked(trained: Trained, way: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in GOOD.items() if name != "city"})
    with pytest.raises((OrtpipeError, MlflowException), match="city"):
        WAYS[way](trained, frame, tmp_path)


def test_two_columns_of_one_name_are_rejected_wherever_they_can_be_given(trained: Trained, tmp_path: Path) -> None:
    frame = pd.DataFrame(GOOD)[[*GOOD, "size"]].astype({"vip": object, "rooms": float})
    table = pa.table([*map(pa.array, (frame.iloc[:, place].tolist() for place in range(6)))], [*frame])
    parquet.write_table(table.append_column("y", pa.array([0, 0.5, 1])), tmp_path / "rows.parquet")
    frame.assign(y=[0, 0.5, 1]).to_csv(tmp_path / "rows.csv", index=False)
    for suffix, kind in ((".csv", Csv), (".parquet", Parquet)):
        with pytest.raises(DataError, match="'size' twice"):
            kind(path=str(tmp_path / f"rows{suffix}"), label="y")()
        with pytest.raises(DataError, match="'size' twice"):
            predict(trained.found, tmp_path / f"rows{suffix}", tmp_path / "made.csv", {})
    with pytest.raises(DataError, match="'size' twice"):
        read(frame, trained.columns)
    with pytest.raises(MlflowException, match="size"):
        trained.loaded.predict(frame)
    body = {"dataframe_split": {"columns": [*frame], "data": table.to_pandas().to_numpy().tolist()}}
    with pytest.raises(MlflowException, match="size"):
        served(trained.loaded, json.dumps(body), "application/json")
