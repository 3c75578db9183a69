"""ortpipe predict: run a trained model on a table of any size."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from ortpipe import Facts
from ortpipe.app.compose import Parser
from ortpipe.app.local_path import local
from ortpipe.app.lookup import HELP, FoundModel, find
from ortpipe.app.pulse import PULSE
from ortpipe.data import SOURCES, UnseenTable, column_of, feed_inputs, offset_position, plain_column, read_source
from ortpipe.errors import ConfigError, DataError, under, words
from ortpipe.files import sync, temporary
from ortpipe.metrics.columns import as_columns
from ortpipe.own import is_path
from ortpipe.runtime import Session
from ortpipe.settings import checked, fields_of

ABOUT = """Predict the rows of a table and write the predictions to another table, in pieces: memory does not
grow with the rows. Columns are found by name, in any order, and others are ignored; words are
encoded as in training. For classes the output has the column `prediction` and each class's
probability, `probability_CLASS`; for values `prediction`, or `prediction_0`, `prediction_1` …; for
a further head HEAD_prediction and so on."""
EXAMPLES = (
    "ortpipe predict patients new_patients.csv --output predicted.csv",
    "ortpipe predict patients new_patients.csv --output predicted.parquet --keep id,name",
)
ROWS = 8192  # per batch of predictions
TEXT = ("delimiter", "encoding")  # settings of a CSV file
OUTPUTS, WRITES = (".csv", ".parquet"), "a .csv or .parquet file"


def run(arguments: Sequence[str]) -> None:
    """Predict one table."""
    parser = Parser("predict", ABOUT, EXAMPLES)
    parser.add_argument("subject", metavar="RUN|FILE|DIGEST", help=HELP)
    parser.add_argument("rows", metavar="ROWS", help="a file with the run's columns, as its data source reads them")
    parser.add_argument("--output", required=True, metavar="FILE", help=WRITES)
    parser.add_argument("--keep", default="", metavar="COLUMNS", help="columns to copy to the output: id,name")
    parser.add_argument("--stage", help="of a run: the stage whose model predicts; by default the last one")
    parser.add_argument("--delimiter", help="the character between fields; by default that of the run's CSV")
    parser.add_argument("--encoding", help="of the rows' text, such as cp1252; by default that of the run's CSV")
    parser.add_argument("--trust", action="store_true", help="run the code of the run's own data source")
    parser.add_argument("--force", action="store_true", help="overwrite an existing output")
    options = parser.read(arguments)
    rows, output = Path(options.rows), local(options.output, "--output")
    _check_files(rows, output, force=options.force)
    of_text = {
        name: checked(getattr(options, name), fields_of(SOURCES["csv"])[name][1], f"--{name}", None)
        for name in TEXT
        if getattr(options, name) is not None
    }
    subject = find(options.subject, options.composed, options.stage)
    lineage = [record.get("stage") for record in subject.facts.get("lineage", ())]
    if options.stage is None and lineage and "train" not in lineage:
        actual = f"{subject.name}: the run ended before training"
        raise ConfigError("Only a trained model predicts.", got=actual, fix="Choose another run, or a --stage.")
    settings = {**subject.config.get("data", {}).get("source", {}), **of_text}
    keep = [name for name in options.keep.split(",") if name]
    count = predict(subject, rows, output, settings, keep, trust=options.trust)
    print(f"{count:,} row{'s' if count != 1 else ''} predicted: {output}")


def _check_files(rows: Path, output: Path, *, force: bool) -> None:
    if not output.name.endswith(OUTPUTS):
        raise ConfigError(f"--output must be {WRITES}.", got=repr(str(output)), fix=f"Name {WRITES}.")
    if not rows.is_file():
        raise ConfigError("ROWS must be a file that exists.", got=rows, fix="Check the path.")
    if output.exists() and not (force and output.is_file() and not output.samefile(rows)):
        raise ConfigError("The output must not exist yet.", got=output, fix="Name another, or add --force.")


def predict(
    subject: FoundModel,
    rows: Path,
    output: Path,
    settings: Mapping[str, Any],
    keep: Sequence[str] = (),
    *,
    trust: bool = False,
) -> int:
    """Predict the rows of a file, write the predictions to another atomically, and return the number of rows.

    `settings` are those of the run's data source.
    """
    facts = _facts(subject)
    session, count = Session(subject.model, weights=subject.weights), 0
    outputs = [column.prediction for column in facts.predictions.values()]
    keys = {f"data.source.{name}": f"--{name}" for name in TEXT}
    with words(keys), under("data", "source"), _table_writer(output) as write:
        source = _source(rows, settings, trust=trust)
        read = _read_columns if hasattr(source, "new_rows") else _read_arrays
        for feeds, columns, size in read(source, subject, facts, keep):
            arrays = session.run(feeds, outputs)
            for (head, column), array in zip(facts.predictions.items(), arrays, strict=True):
                columns |= as_columns(column, array, f"{head}_" if head else "")
            write(columns)
            count += size
            PULSE.detail(f"{count:,} rows")
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


def _source(rows: Path, settings: Mapping[str, Any], *, trust: bool) -> Any:
    """Return a source of the file, with the run's settings: the run's own if it reads such files, else the first."""
    name = str(settings.get("name"))
    if is_path(name) and not trust:
        rule = "The data source of the run is code, which predict runs only on request."
        raise ConfigError(rule, got=name, fix="Add --trust if you know its author.")
    names = dict.fromkeys([*filter(SOURCES.__contains__, [name]), *SOURCES])
    classes: list[Any] = [SOURCES[each] for each in names if "path" in fields_of(SOURCES[each])]
    for cls in classes:
        if rows.name.endswith(getattr(cls, "endings", "")):
            values = {**({"label": "label"} if hasattr(cls, "new_rows") else {}), **settings, "path": str(rows)}
            return cls(**{key: value for key, value in values.items() if key in fields_of(cls)})
    endings = ", ".join(ending for cls in classes for ending in cls.endings)
    raise ConfigError("ROWS must be a file that a data source reads.", got=rows, fix=f"Its name may end in {endings}.")


Piece = tuple[dict[str, np.ndarray], dict[str, Any], int]  # the model's inputs, columns to keep, number of rows


def _read_columns(source: Any, subject: FoundModel, facts: Facts, keep: Sequence[str]) -> Iterator[Piece]:
    """Yield a table in pieces that fit in memory, with its columns as in training; print notes at the end."""
    table = subject.facts["lineage"][0].get("table", {}) if subject.facts.get("lineage") else {}
    forms = {name: column["of"] or column["kind"] for name, column in table.get("columns", {}).items()}
    unseen = UnseenTable(subject.model, facts, forms, source.missing)
    schema, group = source.new_rows(unseen.columns)
    unseen.check(schema, group.file)
    if unknown_names := [name for name in keep if name not in schema.names]:
        fix = f"They are {', '.join(schema.names[:24])}."
        raise ConfigError("--keep must name columns of the rows.", got=unknown_names[0], fix=fix)
    first = 0
    for piece in group.read(list(dict.fromkeys([*unseen.columns, *keep])), ROWS):
        feeds = unseen.feeds(piece, offset_position(group.position, first))
        yield feeds, {name: plain_column(piece.column(name)) for name in keep}, piece.num_rows
        first += piece.num_rows
    for note in unseen.notes:
        print(note, file=sys.stderr)


def _read_arrays(source: Any, subject: FoundModel, facts: Facts, keep: Sequence[str]) -> Iterator[Piece]:
    """Yield the rows of a source without columns, as it reads them for training."""
    for piece in read_source(source).pieces():
        columns = {name: column_of(piece, name) for name in keep}
        yield feed_inputs(subject.model, facts, piece), columns, len(piece)


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
