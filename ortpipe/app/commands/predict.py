"""ortpipe predict: run a trained model on a table of any size."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from ortpipe import Facts
from ortpipe.app.compose import Parser
from ortpipe.app.local_path import local
from ortpipe.app.lookup import HELP, FoundModel, find
from ortpipe.data import (
    CsvFile,
    Delimiter,
    Encoding,
    Position,
    UnseenTable,
    by_row,
    offset_position,
    parquet_batches,
    parquet_schema,
    separator,
)
from ortpipe.errors import ConfigError, DataError, under, words
from ortpipe.files import sync, temporary
from ortpipe.metrics.columns import as_columns
from ortpipe.runtime import Session
from ortpipe.settings import checked

ABOUT = """Predict the rows of a table and write the predictions to another table, in pieces: memory does not grow with
the rows. Columns are found by name, in any order, and others are ignored; words are encoded as in training. For classes
the output has the column `prediction` and each class's probability, `probability_CLASS`; for values `prediction`, or
`prediction_0`, `prediction_1` …; for a further head HEAD_prediction and so on."""
ROWS = 8192  # per batch of predictions
TEXT: dict[str, Any] = {"delimiter": Delimiter, "encoding": Encoding}  # settings of a CSV file
FORMATS, OUTPUTS = (".csv", ".csv.gz", ".parquet"), (".csv", ".parquet")
READS, WRITES = (f"a {', '.join(of[:-1])} or {of[-1]} file" for of in (FORMATS, OUTPUTS))


def run(arguments: Sequence[str]) -> None:
    """Predict one table."""
    parser = Parser("predict", ABOUT)
    parser.add_argument("subject", metavar="RUN|FILE|DIGEST", help=HELP)
    parser.add_argument("rows", metavar="ROWS", help=f"{READS}, with the run's column names")
    parser.add_argument("--output", required=True, metavar="FILE", help=WRITES)
    parser.add_argument("--keep", default="", metavar="COLUMNS", help="columns to copy to the output: id,name")
    parser.add_argument("--stage", help="of a run: the stage whose model predicts; by default the last one")
    parser.add_argument("--delimiter", help="the character between fields; by default that of the run's CSV")
    parser.add_argument("--encoding", help="of the rows' text, such as cp1252; by default that of the run's CSV")
    parser.add_argument("--force", action="store_true", help="overwrite an existing output")
    options = parser.read(arguments)
    rows, output = Path(options.rows), local(options.output, "--output")
    _check_files(rows, output, force=options.force)
    of_text = {
        name: checked(getattr(options, name), hint, f"--{name}", None)
        for name, hint in TEXT.items()
        if getattr(options, name) is not None
    }
    subject = find(options.subject, options.composed, options.stage)
    lineage = [record.get("stage") for record in subject.facts.get("lineage", ())]
    if options.stage is None and lineage and "train" not in lineage:
        actual = f"{subject.name}: the run ended before training"
        raise ConfigError("Only a trained model predicts.", got=actual, fix="Choose another run, or a --stage.")
    settings = {**subject.config.get("data", {}).get("source", {}), **of_text}
    keep = [name for name in options.keep.split(",") if name]
    count = predict(subject, rows, output, settings, keep)
    print(f"{count:,} row{'s' if count != 1 else ''} predicted: {output}")


def _check_files(rows: Path, output: Path, *, force: bool) -> None:
    for name, file, formats, text in (("ROWS", rows, FORMATS, READS), ("--output", output, OUTPUTS, WRITES)):
        if not file.name.endswith(formats):
            raise ConfigError(f"{name} must be {text}.", got=repr(str(file)), fix=f"Name {text}.")
    if not rows.is_file():
        raise ConfigError("ROWS must be a file that exists.", got=rows, fix="Check the path.")
    if output.exists() and not (force and output.is_file() and not output.samefile(rows)):
        raise ConfigError("The output must not exist yet.", got=output, fix="Name another, or add --force.")


def predict(
    subject: FoundModel, rows: Path, output: Path, settings: Mapping[str, Any], keep: Sequence[str] = ()
) -> int:
    """Predict the rows of a file, write the predictions to another atomically, and return the number of rows."""
    facts = _facts(subject)
    table = subject.facts["lineage"][0].get("table", {}) if subject.facts.get("lineage") else {}
    forms = {name: column["of"] or column["kind"] for name, column in table.get("columns", {}).items()}
    unseen = UnseenTable(subject.model, facts, forms, tuple(settings.get("missing") or ()))
    session, count = Session(subject.model, weights=subject.weights), 0
    outputs = [column.prediction for column in facts.predictions.values()]
    with _table_writer(output) as write:
        for piece, position in _pieces(rows, unseen, settings, keep):
            arrays = session.run(unseen.feeds(piece, position), outputs)
            columns: dict[str, Any] = {name: piece.column(name) for name in keep}
            for (head, column), array in zip(facts.predictions.items(), arrays, strict=True):
                columns |= as_columns(column, array, f"{head}_" if head else "")
            write(columns)
            count += piece.num_rows
    for note in unseen.notes:
        print(note, file=sys.stderr)
    return count


def _facts(subject: FoundModel) -> Facts:
    if not subject.facts:
        rule = "predict needs a model that ortpipe wrote: its metadata name its inputs and predictions."
        fix = "Name a run, or a model.onnx that a run wrote."
        raise ConfigError(rule, got=f"{subject.name}, without ortpipe's metadata", fix=fix)
    facts = Facts.from_json(subject.facts)
    if facts.blank is not None or any(prediction.class_axis is not None for prediction in facts.predictions.values()):
        rule, fix = "predict writes one prediction per row.", "Run the model with onnxruntime."
        raise ConfigError(rule, got=f"{subject.name}, which predicts each element of a row", fix=fix)
    return facts


def _pieces(
    rows: Path, unseen: UnseenTable, settings: Mapping[str, Any], keep: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, Position]]:
    """Yield the file's rows in pieces that fit in memory, with the needed columns, and each piece's position."""
    columns = tuple(dict.fromkeys([*unseen.columns, *keep]))
    read: Callable[[tuple[str, ...], int], Iterator[pa.RecordBatch]]
    with words({f"data.source.{name}": f"--{name}" for name in TEXT}), under("data", "source"):
        if rows.suffix == ".parquet":
            schema, read, position = parquet_schema(rows), functools.partial(parquet_batches, rows), by_row(str(rows))
        else:
            file = _csv_file(rows, unseen, settings)
            schema = pa.schema([(name, pa.string()) for name in file.header()])
            read, position = file.words, file.position
        unseen.check(schema, str(rows))
        if unknown_names := [name for name in keep if name not in schema.names]:
            fix = f"They are {', '.join(schema.names[:24])}."
            raise ConfigError("--keep must name columns of the rows.", got=unknown_names[0], fix=fix)
        first = 0
        for piece in read(columns, ROWS):
            yield piece, offset_position(position, first)
            first += piece.num_rows


def _csv_file(rows: Path, unseen: UnseenTable, settings: Mapping[str, Any]) -> CsvFile:
    """Return the file; its first line is a row if it lacks the model's columns and the run's file had no names."""
    file = CsvFile(rows, separator(settings.get("delimiter", ",")), encoding=settings.get("encoding", "utf-8"))
    file.check()
    first_line = file.header() if settings.get("names") else []
    is_row = bool(settings.get("names")) and not {*unseen.columns} <= {*first_line}
    return dataclasses.replace(file, names=_names(rows, settings, len(first_line))) if is_row else file


def _names(rows: Path, settings: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the columns of a file without a header line, which are the run's, with or without the label."""
    every, label = list(settings["names"]), settings.get("label")
    labels = [label] if isinstance(label, str) else label or ()
    inputs = [name for name in every if name not in labels]
    if count not in (len(every), len(inputs)):
        rule = "A file without a header line must have the columns of the run's data.source.names, label or not."
        fix = f"They are {', '.join(every[:24])}; or add a header line to the file."
        raise DataError(rule, got=f"{count} fields in the first line of {rows}", fix=fix)
    return tuple(every if count == len(every) else inputs)


@contextlib.contextmanager
def _table_writer(output: Path) -> Iterator[Any]:
    """Yield a function that writes columns; the file gets its name when the block succeeds."""

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
            raise DataError("The table must have at least one row.", got="none", fix="Add rows to the file.")
        writers.pop().close()
        sync(partial)
        os.replace(partial, output)
    finally:
        for writer in writers:
            writer.close()
        partial.unlink(missing_ok=True)
