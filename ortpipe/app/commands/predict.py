"""ortpipe predict: run a trained model on a table of any size."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from ortpipe.app.compose import Parser
from ortpipe.app.local_path import local, reject_existing
from ortpipe.app.lookup import HELP, FoundModel, find
from ortpipe.app.prediction import predictions
from ortpipe.app.pulse import PULSE
from ortpipe.data import SOURCES
from ortpipe.errors import ConfigError, DataError, words
from ortpipe.files import atomic_file
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
TEXT = ("delimiter", "encoding")  # settings of a CSV file
STDOUT = "-"
OUTPUTS, WRITES = (".csv", ".parquet"), "a .csv or .parquet file, or - for CSV on standard output"


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
    rows, output = Path(options.rows), None if options.output == STDOUT else local(options.output, "--output")
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
    where = f": {output}" if output is not None else ""
    print(f"{count:,} row{'s' if count != 1 else ''} predicted{where}", file=sys.stderr if output is None else None)


def _check_files(rows: Path, output: Path | None, *, force: bool) -> None:
    if output is not None and not output.name.endswith(OUTPUTS):
        raise ConfigError(f"--output must be {WRITES}.", got=repr(str(output)), fix=f"Name {WRITES}.")
    if not rows.is_file():
        raise ConfigError("ROWS must be a file that exists.", got=rows, fix="Check the path.")
    if output is not None:
        reject_existing(output, force=force and output.is_file() and not output.samefile(rows))


def predict(
    subject: FoundModel,
    rows: Path,
    output: Path | None,
    settings: Mapping[str, Any],
    keep: Sequence[str] = (),
    *,
    trust: bool = False,
) -> int:
    """Predict the rows of a file, write the predictions to another atomically, and return the number of rows.

    `settings` are those of the run's data source. Without an output, the predictions go to standard output.
    """
    count = 0
    keys = {f"data.source.{name}": f"--{name}" for name in (*TEXT, "keep")}
    with words(keys), _table_writer(output) as write:
        for columns, size in predictions(subject, rows, settings, keep, trust=trust):
            write(columns)
            count += size
            PULSE.detail(f"{count:,} rows")
    return count


@contextlib.contextmanager
def _table_writer(output: Path | None) -> Iterator[Any]:
    """Yield a function that writes columns; a file gets its name when the block succeeds."""
    writers: list[Any] = []
    with contextlib.nullcontext() if output is None else atomic_file(output) as partial:

        def write(columns: Mapping[str, Any]) -> None:
            table = pa.table(dict(columns))
            if not writers:
                make = parquet.ParquetWriter if output is not None and output.suffix == ".parquet" else csv.CSVWriter
                writers.append(make(sys.stdout.buffer if partial is None else str(partial), table.schema))
            writers[0].write_table(table)

        try:
            yield write
            if not writers:
                raise DataError("The table must have at least one row.", got="none", fix="Add rows to the file.")
        finally:
            for writer in writers:
                writer.close()
