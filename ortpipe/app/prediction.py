"""Predict rows with a trained model in pieces, from a file or from memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortpipe import Facts, Rows
from ortpipe.app.lookup import FoundModel
from ortpipe.data import (
    SOURCES,
    UnseenTable,
    arrow_table,
    column_names,
    column_of,
    feed_inputs,
    group_of,
    offset_position,
    plain_column,
    read_source,
)
from ortpipe.errors import ConfigError, under
from ortpipe.facts_json import read_facts
from ortpipe.metrics.columns import as_columns
from ortpipe.own import is_path
from ortpipe.runtime import Session
from ortpipe.settings import fields_of

ROWS = 8192  # per batch of predictions


def predictions(
    subject: FoundModel, rows: Any, settings: Mapping[str, Any], keep: Sequence[str] = (), *, trust: bool = False
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the columns of predictions of each piece of the rows, and its number of rows.

    `rows` is the path of a file, a DataFrame, or arrays by input. `settings` are those of the run's data source; `keep`
    names columns of the rows to copy.
    """
    facts = _facts(subject)
    session = Session(subject.model, weights=subject.weights)
    outputs = [column.prediction for column in facts.predictions.values()]
    with under("data", "source"):
        for feeds, columns, size in _pieces(subject, facts, rows, settings, keep, trust=trust):
            arrays = session.predict(feeds, outputs)
            for (head, column), array in zip(facts.predictions.items(), arrays, strict=True):
                columns |= as_columns(column, array, f"{head}_" if head else "")
            yield columns, size


def _pieces(
    subject: FoundModel, facts: Facts, rows: Any, settings: Mapping[str, Any], keep: Sequence[str], *, trust: bool
) -> Iterator[Piece]:
    if isinstance(rows, Path):
        source = _source(rows, settings, trust=trust)
        if hasattr(source, "new_rows"):
            return _read_columns(source.new_rows, source.missing, subject, facts, keep)
        return _read_arrays(read_source(source).pieces(), subject, facts, keep)
    if column_names(rows):
        table = arrow_table(rows, "the rows")
        return _read_columns(
            lambda columns: (table.schema, group_of(table, "the rows")),
            settings.get("missing") or (),
            subject,
            facts,
            keep,
        )
    inputs = rows if isinstance(rows, Mapping) else {facts.inputs[0]: np.asarray(rows)}
    first = np.asarray(next(iter(inputs.values())))
    return _read_arrays(Rows(inputs, np.zeros(len(first))).pieces(), subject, facts, keep)


def _facts(subject: FoundModel) -> Facts:
    if not subject.facts:
        rule = "predict needs a model that ortpipe wrote: its metadata name its inputs and predictions."
        fix = "Name a run, or a model.onnx that a run wrote."
        raise ConfigError(rule, got=f"{subject.name}, without ortpipe's metadata", fix=fix)
    facts = read_facts(subject.facts)
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
            used = fields_of(cls).keys() - set(getattr(cls, "of_training", ()))
            return cls(**{key: value for key, value in values.items() if key in used})
    endings = ", ".join(ending for cls in classes for ending in cls.endings)
    raise ConfigError("ROWS must be a file that a data source reads.", got=rows, fix=f"Its name may end in {endings}.")


Piece = tuple[dict[str, np.ndarray], dict[str, Any], int]  # the model's inputs, columns to keep, number of rows


def _read_columns(
    new_rows: Callable[[Sequence[str]], Any],
    missing: Sequence[str],
    subject: FoundModel,
    facts: Facts,
    keep: Sequence[str],
) -> Iterator[Piece]:
    """Yield a table in pieces that fit in memory, with its columns as in training; print notes at the end.

    `new_rows` returns the schema and the rows of a table with these columns, as a source's method of that name.
    """
    table = subject.facts["lineage"][0].get("table", {}) if subject.facts.get("lineage") else {}
    forms = {name: column["of"] or column["kind"] for name, column in table.get("columns", {}).items()}
    written = {name: column["written"] for name, column in table.get("columns", {}).items() if "written" in column}
    unseen = UnseenTable(subject.model, facts, forms, missing, written)
    schema, group = new_rows(unseen.columns)
    unseen.check(schema, group.file)
    if unknown_names := [name for name in keep if name not in schema.names]:
        fix = f"They are {', '.join(schema.names[:24])}."
        raise ConfigError("{key} must name columns of the rows.", key="keep", got=unknown_names[0], fix=fix)
    first = 0
    for piece in group.read(list(dict.fromkeys([*unseen.columns, *keep])), ROWS):
        feeds = unseen.feeds(piece, offset_position(group.position, first))
        yield feeds, {name: plain_column(piece.column(name)) for name in keep}, piece.num_rows
        first += piece.num_rows
    for note in unseen.notes:
        print(note, file=sys.stderr)


def _read_arrays(pieces: Iterable[Rows], subject: FoundModel, facts: Facts, keep: Sequence[str]) -> Iterator[Piece]:
    """Yield the rows of a source without columns, as it reads them for training."""
    for piece in pieces:
        columns = {name: column_of(piece, name) for name in keep}
        yield feed_inputs(subject.model, facts, piece), columns, len(piece)
