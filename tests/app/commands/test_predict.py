"""ortpipe predict gives the same predictions for a table as the model in training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from ortpipe.app import prediction
from ortpipe.app.commands import predict as command
from ortpipe.app.commands.predict import predict
from ortpipe.app.lookup import FoundModel
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.sources.csv import Csv
from ortpipe.data.split import split
from ortpipe.errors import ConfigError, DataError, OrtpipeError
from ortpipe.metrics.predictions import predicted
from ortpipe.runtime.session import Session
from ortpipe.settings import Config
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.stage import convert

N = 50


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    columns = {
        "id": [f"p{i}" for i in range(N)],
        "age": rng.normal(size=N).round(3),
        "colour": rng.choice(["red", "blue", "green"], N),
        "smokes": rng.choice(["true", "false"], N),
        "kind": rng.choice(["cat", "dog", "eel"], N),
    }
    file = tmp_path_factory.mktemp("rows") / "rows.csv"
    csv.write_csv(pa.table(columns), file)
    return file


def found(rows: Path, **settings: object) -> tuple[FoundModel, Rows]:
    read = Csv(path=str(rows), label="kind", **{"inputs": ("age", "colour", "smokes"), **settings})()  # type: ignore[arg-type]
    artifact = convert(None, ConvertConfig(MLP((4,), dropout=0.0)), data=split(read, SplitConfig()))
    return FoundModel("model", artifact.model, {}, artifact.facts.as_json()), read


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("suffixes", [(".csv", ".parquet"), (".parquet", ".csv")])
def test_a_table_gets_the_predictions_of_the_rows_as_training_reads_them(
    rows: Path, tmp_path: Path, array: bool, suffixes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "ROWS", 7)  # several pieces
    inputs = {"X": ("age", "age"), "colour": ("colour",), "smokes": ("smokes",)}
    model, read = found(rows, **({"inputs": inputs} if array else {}))
    facts = prediction._facts(model)
    [scores] = Session(model.model).run(feed_inputs(model.model, facts, read), [facts.prediction])
    label, probability = predicted(facts, scores)
    assert probability is not None

    given, output = tmp_path / f"given{suffixes[0]}", tmp_path / f"made{suffixes[1]}"
    table = csv.read_csv(rows)
    table = table.select(table.column_names[::-1])  # columns have names, and no order
    csv.write_csv(table, given) if given.suffix == ".csv" else parquet.write_table(table, given)
    assert predict(model, given, output, {}, ["id"]) == N
    made = csv.read_csv(output) if output.suffix == ".csv" else parquet.read_table(output)
    assert made.column_names == ["id", "prediction", "probability_cat", "probability_dog", "probability_eel"]
    assert made["id"].to_pylist() == [f"p{i}" for i in range(N)]
    assert made["prediction"].to_pylist() == [("cat", "dog", "eel")[i] for i in label]
    shares = np.stack([made[name].to_numpy() for name in made.column_names[2:]], axis=1)
    np.testing.assert_allclose(shares, probability, rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("colour", "color", "no 'colour' in"),
        ("true", "maybe", "'maybe' in line"),
        ('"p3",', '"p3",old', r"in line 5 of(.|\n)*or leave it empty"),
        ('"p3",', '"p3","p3",', "line 5 of"),
        ("age", "age2", r"Did you mean 'age2'\?.* It reads age, colour, smokes\."),
    ],
)
def test_what_the_model_cannot_read_is_refused_and_nothing_is_written(
    rows: Path, tmp_path: Path, old: str, new: str, said: str
) -> None:
    model, _ = found(rows)
    given = tmp_path / "given.csv"
    given.write_text(rows.read_text().replace(old, new))
    with pytest.raises(OrtpipeError, match=r"Column|columns|fields") as error:
        predict(model, given, tmp_path / "made.csv", {})
    assert error.match(said)
    assert [file.name for file in tmp_path.iterdir()] == ["given.csv"]


def test_gaps_and_unknown_words_are_read_by_a_model_of_raw_columns_and_the_words_said(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = found(rows)
    given = tmp_path / "given.csv"
    given.write_text("smokes,colour,age\ntrue,red,\n,,1.5\n")
    assert predict(model, given, tmp_path / "known.parquet", {}) == 2
    assert capsys.readouterr().err == ""
    given.write_text("smokes,colour,age\ntrue,pink,\n,,1.5\nfalse,Red,2\n")
    assert predict(model, given, tmp_path / "made.parquet", {}) == 3
    said = f"column 'colour': 2 rows have a word that was not in training, the first 'pink' in line 2 of {given}\n"
    assert capsys.readouterr().err == said
    assert np.isfinite(parquet.read_table(tmp_path / "made.parquet")["probability_cat"].to_numpy()).all()
    given.write_text("smokes,colour,age\ntrue,pink,\nmaybe,,1.5\n")
    with pytest.raises(DataError, match=r"'smokes' must hold true and false(?s:.)*'maybe' in line 3"):
        predict(model, given, tmp_path / "other.csv", {})


NAMES = ("id", "age", "colour", "smokes", "kind")


@pytest.mark.parametrize("left", [NAMES, NAMES[:4]])
def test_a_file_without_names_is_read_as_the_run_s_own(rows: Path, left: tuple[str, ...], tmp_path: Path) -> None:
    table = csv.read_csv(rows)
    nameless, other = tmp_path / "nameless.csv", tmp_path / "other.csv"
    csv.write_csv(table, nameless, csv.WriteOptions(include_header=False))
    model, _ = found(nameless, names=NAMES)
    csv.write_csv(table.select(left), other, csv.WriteOptions(include_header=False))
    settings = {"names": list(NAMES), "label": "kind"}
    made = []
    for file in (rows, other):  # with a line of names, and without
        output = tmp_path / f"from_{file.name}"
        assert predict(model, file, output, settings, ["id"]) == N
        made.append(output.read_text())
    assert made[0] == made[1]
    other.write_text("1,2\n")
    with pytest.raises(DataError, match="2 fields in the first line"):
        predict(model, other, tmp_path / "no.csv", settings)
    for empty in ("", "\n\n"):
        other.write_text(empty)
        with pytest.raises(DataError, match="Empty CSV file"):
            predict(model, other, tmp_path / "no.csv", settings)
    other.write_text(nameless.read_text().replace('"red"', '"red","x"', 1))
    with pytest.raises(DataError, match=r"line \d+ of "):
        predict(model, other, tmp_path / "no.csv", settings)


@dataclass(frozen=True)
class Pipes(Config):
    """A source of a user: a file with | between its fields."""

    path: str
    target: str

    def __call__(self, split: SplitConfig | None = None) -> Rows:
        names, *lines = [line.split("|") for line in Path(self.path).read_text().splitlines()]
        label = names.index(self.target)
        columns = {name: np.array([line[place] for line in lines]) for place, name in enumerate(names)}
        columns["age"] = columns["age"].astype(float)
        del columns["id"], columns[self.target]
        return Rows(columns, np.array([line[label] for line in lines]))


def test_rows_are_read_by_the_run_s_own_source_on_request(rows: Path, tmp_path: Path) -> None:
    model, _ = found(rows)
    given, outputs = tmp_path / "given.txt", [tmp_path / "own.csv", tmp_path / "csv.csv"]
    given.write_text(rows.read_text().replace('"', "").replace(",", "|"))
    settings = {"name": f"{__name__}:Pipes", "target": "kind"}
    with pytest.raises(ConfigError, match=r"only on request(.|\n)*test_predict:Pipes(.|\n)*--trust"):
        predict(model, given, outputs[0], settings, ["id"])
    assert predict(model, given, outputs[0], settings, ["colour"], trust=True) == N
    assert predict(model, rows, outputs[1], {}, ["colour"]) == N
    assert outputs[0].read_text() == outputs[1].read_text()
    with pytest.raises(ConfigError, match=r"a data source reads(.|\n)*\.csv, \.csv\.gz, (.*), \.npy, \.npz, \.parquet"):
        predict(model, given, tmp_path / "no.csv", {})


def test_rows_of_arrays_are_read_as_the_run_reads_them(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(N, 3)), np.arange(float(N))
    np.savez(tmp_path / "rows.npz", X=x, y=y)
    artifact = convert(None, ConvertConfig(MLP((4,), dropout=0.0)), data=split(Rows({"X": x}, y), SplitConfig()))
    model = FoundModel("model", artifact.model, {}, artifact.facts.as_json())
    assert predict(model, tmp_path / "rows.npz", tmp_path / "made.parquet", {"name": "npz"}) == N
    [expected] = Session(model.model).run({"X": x.astype(np.float32)}, ["prediction"])
    np.testing.assert_array_equal(parquet.read_table(tmp_path / "made.parquet")["prediction"], expected.ravel())


@pytest.mark.parametrize(("given", "output"), [("none.csv", "x.csv"), ("{rows}", "x.txt"), ("{rows}", "{rows}")])
def test_files_are_checked_before_any_work(rows: Path, given: str, output: str) -> None:
    with pytest.raises(ConfigError, match=r"ROWS must be|must not exist yet|--output"):
        command.run(["run", given.format(rows=rows), "--output", output.format(rows=rows)])


WRONG = {
    "two columns of one name": ({"text": "age,age,colour,smokes\n1,2,red,true\n"}, "must be unique(.|\n)*'age' twice"),
    "an open quote": (
        {"text": 'age,colour,smokes\n1,red,true\n2,red,"true\n3,red,true\n'},
        r"quote(.|\n)*line 3 of",
    ),
    "a name in another encoding": (
        {"text": "age,colour,smokes,größe\n1,red,true,2\n"},
        r"encoding of --encoding(.|\n)*is not utf-8, line 1 of(.|\n)*Set --encoding=cp1252",
    ),
    "a value in another encoding": ({"text": "age,colour,smokes\n1,größe,true\n"}, "is not utf-8, line 2 of"),
    "lines of several lengths": (
        {"text": "age,colour,smokes\n1,red,true\n2,red\n"},
        r"line 3 of .* has 2(.|\n)*Check the file and --delimiter",
    ),
    "a column of bytes": ({"age": [1.0], "colour": [b"red"], "smokes": [True]}, "'colour' of .*, of type binary"),
    "truth values for numbers": ({"age": [True], "colour": ["red"], "smokes": [True]}, "'age' must hold numbers"),
}


@pytest.mark.parametrize(("columns", "message"), WRONG.values(), ids=WRONG)
def test_what_training_rejects_in_a_file_is_rejected(
    rows: Path, tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    model, _ = found(rows)
    if "text" in columns:
        given = tmp_path / "given.csv"
        given.write_text(columns["text"], encoding="latin-1")
    else:
        given = tmp_path / "given.parquet"
        parquet.write_table(pa.table(columns), given)
    with pytest.raises(DataError, match=message):
        predict(model, given, tmp_path / "made.csv", {})


def test_two_columns_of_one_name_in_parquet_are_rejected(rows: Path, tmp_path: Path) -> None:
    model, _ = found(rows)
    table = pa.table([[1.0], [2.0], ["red"], ["true"]], ["age", "age", "colour", "smokes"])
    parquet.write_table(table, tmp_path / "given.parquet")
    with pytest.raises(DataError, match="must be unique"):
        predict(model, tmp_path / "given.parquet", tmp_path / "made.csv", {})


@pytest.mark.parametrize(
    "setting", [("delimiter", "ab"), ("delimiter", ""), ("delimiter", "é"), ("encoding", "latin1x")]
)
def test_a_delimiter_and_an_encoding_are_checked_before_any_work(
    rows: Path, tmp_path: Path, setting: tuple[str, str]
) -> None:
    name, value = setting
    arguments = ["run", str(rows), "--output", str(tmp_path / "made.csv"), f"--{name}", value]
    with pytest.raises(ConfigError, match=rf"--{name} must be (.|\n)*got: '{value}'(.|\n)*Set --{name}="):
        command.run(arguments)


def test_integers_above_2_to_the_53_and_marks_of_missing_numbers_are_read_alike_from_every_file(
    rows: Path, tmp_path: Path
) -> None:
    model, _ = found(rows, inputs=("age", "smokes"))
    table = pa.table({"age": [2**53 + 1, 2**60 + 2**36 + 1, -(2**62) - 3, None], "smokes": ["true"] * 4})
    csv.write_csv(table, tmp_path / "given.csv")
    parquet.write_table(table, tmp_path / "given.parquet")
    (tmp_path / "marks.csv").write_text((tmp_path / "given.csv").read_text().replace("\n,", "\nNA,"))
    made = []
    for given in ("given.csv", "given.parquet", "marks.csv"):
        predict(model, tmp_path / given, tmp_path / f"{given}.made.csv", {})
        made.append((tmp_path / f"{given}.made.csv").read_text())
    assert made[0] == made[1] == made[2]
