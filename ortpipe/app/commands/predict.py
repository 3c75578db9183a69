"""ortpipe predict: a trained model on a table of any size."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from ortpipe.app.compose import Parser
from ortpipe.app.lookup import HELP, FoundModel, find
from ortpipe.artifact import Facts
from ortpipe.data.position import Position, behind, by_line, by_row
from ortpipe.data.sources.csv import InvalidRows, separator
from ortpipe.data.unseen import UnseenTable
from ortpipe.errors import ConfigError, DataError
from ortpipe.files import sync, temporary
from ortpipe.metrics.predictions import as_columns
from ortpipe.runtime.session import Session

ABOUT = """Predict the rows of a table and write them to another one, piece by piece: memory does not grow with them.
Columns are found by their names, in any order, and others are left out; words are encoded as in training. Of classes
the output has the column `prediction` and one of each class's probability, `probability_CLASS`; of values `prediction`,
or `prediction_0` and on; of a further head, HEAD_prediction and so on."""
ROWS = 8192  # that are predicted at a time
SUFFIXES = (".csv", ".csv.gz", ".parquet")


def run(arguments: Sequence[str]) -> None:
    """Predict one table."""
    parser = Parser("predict", ABOUT)
    parser.add_argument("subject", metavar="RUN|FILE|DIGEST", help=HELP)
    parser.add_argument("rows", metavar="ROWS", help="a .csv, .csv.gz or .parquet file, with names as the run's own")
    parser.add_argument("--output", required=True, metavar="FILE", help="a .csv or .parquet file")
    parser.add_argument("--keep", default="", metavar="COLUMNS", help="columns of the rows to copy: id,name")
    parser.add_argument("--stage", help="of a run: the stage whose model predicts; by default the last one")
    parser.add_argument("--delimiter", help="between the fields of a line; by default that of the run's own CSV")
    parser.add_argument("--force", action="store_true", help="write over an output that is there")
    given = parser.read(arguments)
    rows, output = Path(given.rows), Path(given.output)
    _check_files(rows, output, force=given.force)
    subject = find(given.subject, given.composed, given.stage)
    lineage = [record.get("stage") for record in subject.facts.get("lineage", ())]
    if given.stage is None and lineage and "train" not in lineage:
        got = f"{subject.name}: the run ended before it was trained"
        raise ConfigError("The model of a run is its trained one.", got=got, fix="Choose another run, or a --stage.")
    settings = dict(subject.config.get("data", {}).get("source", {}))
    settings |= {} if given.delimiter is None else {"delimiter": given.delimiter}
    keep = [name for name in given.keep.split(",") if name]
    count = predict(subject, rows, output, settings, keep)
    print(f"{count:,} row{'s' if count != 1 else ''} predicted: {output}")


def _check_files(rows: Path, output: Path, *, force: bool) -> None:
    if not rows.is_file() or not rows.name.endswith(SUFFIXES):
        fix = "Name a .csv, .csv.gz or .parquet file."
        raise ConfigError("The rows are a table in a file.", got=rows, fix=fix)
    if output.suffix not in (".csv", ".parquet"):
        raise ConfigError("--output ends in .csv or .parquet.", got=output, fix="Choose one of them.")
    if output.exists() and not (force and output.is_file() and not output.samefile(rows)):
        raise ConfigError("--output is a new file.", got=output, fix="Choose another, or add --force.")


def predict(
    subject: FoundModel, rows: Path, output: Path, settings: Mapping[str, Any], keep: Sequence[str] = ()
) -> int:
    """Predict the rows of a file into another one, which appears whole; return how many there were."""
    facts = _facts(subject)
    table = subject.facts["lineage"][0].get("table", {}) if subject.facts.get("lineage") else {}
    truth = frozenset(name for name, own in table.get("columns", {}).items() if own["of"] == "truth")
    unseen = UnseenTable(subject.model, facts, truth, tuple(settings.get("missing") or ()))
    session, count = Session(subject.model, weights=subject.weights), 0
    outputs = [own.prediction for own in facts.predictions.values()]
    with _written(output) as write:
        for piece, position in _pieces(rows, unseen, settings, keep):
            made = session.run(unseen.feeds(piece, position), outputs)
            columns: dict[str, Any] = {name: piece.column(name) for name in keep}
            for (head, own), array in zip(facts.predictions.items(), made, strict=True):
                columns |= as_columns(own, array, f"{head}_" if head else "")
            write(columns)
            count += piece.num_rows
    for note in unseen.notes:
        print(note, file=sys.stderr)
    return count


def _facts(subject: FoundModel) -> Facts:
    if not subject.facts:
        rule, fix = "A model says what it reads and predicts.", "Name a run, or a model.onnx that a run wrote."
        raise ConfigError(rule, got=f"{subject.name}, which ortpipe did not write", fix=fix)
    facts = Facts.from_json(subject.facts)
    if facts.blank is not None or any(own.class_axis is not None for own in facts.predictions.values()):
        rule, fix = "A table of predictions has one per row.", "Feed the model's arrays to onnxruntime."
        raise ConfigError(rule, got=f"{subject.name}, which predicts each row's elements", fix=fix)
    return facts


def _pieces(
    rows: Path, unseen: UnseenTable, settings: Mapping[str, Any], keep: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, Position]]:
    """Yield the rows of a file in pieces that fit in memory, the columns that are read and kept, with their places."""
    used = [*dict.fromkeys([*unseen.columns, *keep])]
    if rows.suffix == ".parquet":
        try:
            with parquet.ParquetFile(rows) as file:
                _check_columns(unseen, keep, file.schema_arrow.names, rows)
                yield from _placed(file.iter_batches(ROWS, columns=used), by_row(str(rows)))
        except pa.ArrowInvalid as error:
            rule = "A .parquet file is a Parquet file."
            raise DataError(rule, got=f"{rows}: {error}", fix="Write it again.") from error
        return
    wrong = InvalidRows()
    parse = csv.ParseOptions(delimiter=separator(settings.get("delimiter", ",")), invalid_row_handler=wrong)
    encoding, names, first = settings.get("encoding", "utf-8"), None, list[str]()
    read = csv.ReadOptions(use_threads=False, encoding=encoding)
    words = {name: pa.string() for name in used}
    types = words | {name: pa.float64() for name, is_text in unseen.columns.items() if not is_text}
    nulls = [*csv.ConvertOptions().null_values, *unseen.missing]
    options = [
        csv.ConvertOptions(column_types=kinds, null_values=nulls, include_columns=used) for kinds in (types, words)
    ]
    try:
        with csv.open_csv(rows, read, parse) as reader:
            first = reader.schema.names
        if settings.get("names") and not {*unseen.columns} <= {*first}:
            names = _names(rows, settings, len(first))
            read = csv.ReadOptions(use_threads=False, encoding=encoding, column_names=names)
        _check_columns(unseen, keep, names or first, rows)
        position = by_line(rows, parse.delimiter, encoding, names=names is None)
        yield from _placed(_batches(csv.open_csv(rows, read, parse, options[0])), position)
    except pa.ArrowInvalid as error:
        position = by_line(rows, parse.delimiter, encoding, names=names is None)
        fix = "Correct the line, or give --delimiter."
        wrong.refuse(position, names=names is None, fix=fix)
        if first:  # the file has lines: the first that is no number is named
            for piece, place in _placed(_batches(csv.open_csv(rows, read, parse, options[1])), position):
                unseen.feeds(piece, place)
        rule = "The rows are lines of text with one field for each column."
        raise DataError(rule, got=f"{rows}: {error}", fix=fix) from error


def _batches(reader: csv.CSVStreamingReader) -> Iterator[pa.RecordBatch]:
    with reader:
        for batch in reader:
            for first in range(0, batch.num_rows, ROWS):
                yield batch.slice(first, ROWS)


def _placed(pieces: Iterable[pa.RecordBatch], position: Position) -> Iterator[tuple[pa.RecordBatch, Position]]:
    first = 0
    for piece in pieces:
        yield piece, behind(position, first)
        first += piece.num_rows


def _names(rows: Path, settings: Mapping[str, Any], count: int) -> list[str]:
    """Return the columns of a file whose first line is a row, as in the table of the run: the label may be left out."""
    every, label = list(settings["names"]), settings.get("label")
    labels = [label] if isinstance(label, str) else label or ()
    inputs = [name for name in every if name not in labels]
    if count not in (len(every), len(inputs)):
        rule = (
            "A file without a line of names has the columns of the run's data.source.names, with the label or without."
        )
        fix = f"They are {', '.join(every[:24])}; or begin the file with a line of names."
        raise DataError(rule, got=f"{count} fields in the first line of {rows}", fix=fix)
    return every if count == len(every) else inputs


def _check_columns(unseen: UnseenTable, keep: Sequence[str], names: Sequence[str], rows: Path) -> None:
    unseen.check(names, str(rows))
    if wrong := [name for name in keep if name not in names]:
        raise ConfigError("--keep names columns of the rows.", got=wrong[0], fix=f"They are {', '.join(names[:24])}.")


@contextlib.contextmanager
def _written(output: Path) -> Iterator[Any]:
    """Give a function that writes columns; the file takes its name when the block succeeds."""

    output.parent.mkdir(parents=True, exist_ok=True)
    partial = temporary(output)
    writers: list[Any] = []

    def write(columns: Mapping[str, Any]) -> None:
        table = pa.table(dict(columns))
        if not writers:
            make = parquet.ParquetWriter if output.suffix == ".parquet" else csv.CSVWriter
            writers.append(make(str(partial), table.schema))
        writers[0].write_table(table)

    try:
        yield write
        if not writers:
            raise DataError("The rows have at least one row.", got="none", fix="Give rows.")
        writers.pop().close()
        sync(partial)
        os.replace(partial, output)
    finally:
        for writer in writers:
            writer.close()
        partial.unlink(missing_ok=True)
