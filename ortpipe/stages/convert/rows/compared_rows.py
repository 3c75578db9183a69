"""The real rows that predictions are compared on: their number, and the columns of a table that a model reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError
from ortpipe.facts import Facts
from ortpipe.runtime.session import Session

ROWS = 256  # fewer if rows are large,
FEWEST = 32  # but at least these
NUMBERS = 1 << 17  # in all of them: a network's activations may take a thousand times a row's memory


def compared_rows(data: Data) -> Rows:
    """Return the real rows that predictions are compared on."""
    width = sum(array.size for array in data.train.head(1).inputs.values())
    return data.train.head(min(ROWS, max(FEWEST, NUMBERS // max(1, width))))


def table_record(data: Data, facts: Facts) -> dict[str, Any]:
    """Return an entry of the lineage: the table columns that the model reads, and an example row of typical values."""
    rows = compared_rows(data)
    columns = {name: column for name, column in rows.kept.items() if name in facts.inputs}
    if not columns:
        return {}
    row = {name: _typical(rows.inputs[name], column.kind) for name, column in columns.items()}
    records = {
        name: {key: value for key, value in vars(column).items() if key != "written" or value is not None}
        for name, column in columns.items()
    }
    return {"table": {"columns": records, "row": row}}


def _typical(column: np.ndarray, kind: str) -> float | str | None:
    """Return the median of numbers or dates, or the most frequent word; "text" where no word occurs twice."""
    values = np.sort(column[column == column] if kind == "number" else column[column != ""])
    if not len(values):
        return None
    words, counts = np.unique(values, return_counts=True)
    if kind == "word":
        return str(words[counts.argmax()]) if counts.max() > 1 else "text"
    return values[(len(values) - 1) // 2].item() if kind == "number" else str(values[(len(values) - 1) // 2])


def check_missing(session: Session, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], rows: Rows) -> None:
    """Reject a column with missing numbers if the model predicts nan for them."""
    first = {name: array[:1] for name, array in inputs.items()}
    single_input = len(inputs) == len(rows.kept) == 1  # the only array belongs to the only input under any name
    for name, table_column in zip(inputs, rows.kept.values(), strict=True) if single_input else rows.kept.items():
        if not table_column.missing or name not in inputs or inputs[name].dtype.kind != "f":
            continue
        predicted = session.run({**first, name: np.full_like(first[name], np.nan)}, outputs)
        if not all(np.isfinite(array).all() for array in predicted):
            raise missing_values(name, table_column.missing, ", for which it predicts nan")


def missing_values(column: str, count: int, problem: str = "") -> ConvertError:
    """Return the error for a column with missing numbers, which a model does not accept."""
    return ConvertError(
        "A model of columns with missing values must have a way to deal with them.",
        got=f"{count:,} row{'s' if count > 1 else ''} without a value in column {column!r}{problem}",
        fix="Put an imputer in front of it, drop such rows, or leave the column out of {@data.source.inputs}.",
    )
