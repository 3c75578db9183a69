"""A model's metrics on parts of the test rows: by a column's values, and on bootstrap samples for intervals."""

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from ortpipe.data.row_set import RowSet
from ortpipe.data.slices import column_of, slice_by_value
from ortpipe.errors import EvaluateError
from ortpipe.metrics import Metric
from ortpipe.metrics.predictions import Compared, measured, of_head, value_of
from ortpipe.runtime.session import Session
from ortpipe.stages.evaluate.sensitivity import importance_of_columns, sensitivity_of_columns
from ortpipe.stages.evaluate.stage import Answers, Work, answers

PERCENTILES = 2.5, 97.5


def add_records(
    work: Work,
    tested: Answers,
    entries_by_head: Mapping[str, Compared],
    table: Mapping[str, Mapping[str, float]],
    record: dict[str, Any],
    tensors: dict[str, np.ndarray],
) -> list[str]:
    """Add to the record the metrics of parts and the importance and sensitivity of columns, if set; return notes."""
    notes = list[str]()
    if work.config.bootstrap or work.config.by:
        record |= metrics_of_parts(work, tested, entries_by_head)
    if work.config.importance:
        record["importance"] = importance_of_columns(work, table)
    if work.config.sensitivity:
        record["sensitivity"], maps, notes = sensitivity_of_columns(work)
        tensors |= maps
    return notes


def metrics_of_parts(work: Work, tested: Answers, entries_by_head: Mapping[str, Compared]) -> dict[str, Any]:
    """Return the trained model's metrics on parts of the test rows.

    Raises:
        EvaluateError: predictions are of elements, which would be sampled and split independently of their row.
    """
    config = work.config
    columns = {
        name: np.concatenate([column_of(p, name, "by") for p in work.rows.pieces(work.most)]) for name in config.by
    }
    interval_by_metric: dict[str, list[float]] = {}
    slices: dict[str, dict[str, dict[str, float]]] = {}
    for head, entries in entries_by_head.items():
        pairs, rows = work.artifact.facts.predictions[head].link == "pairs", len(tested.labels[head])
        if pairs or len(entries.truth) != rows:
            rule = "Intervals, and metrics by a column, need a model with one prediction per row."
            fix = "Set {at}bootstrap=0 and {at}by=[]."
            got = (
                "pairs, which are compared with all rows"
                if pairs
                else f"{len(entries.truth)} predictions of {rows} rows"
            )
            raise EvaluateError(rule, got=got, fix=fix)
        metrics = of_head(work.names, head)
        if config.bootstrap:
            interval_by_metric |= intervals(metrics, entries, config.bootstrap, config.seed)
        for column, values in columns.items():
            for value, values_there in by_value(metrics, entries, values).items():
                slices.setdefault(column, {}).setdefault(value, {}).update(values_there)
    return {"intervals": interval_by_metric, "slices": slices}


def metrics_of_validation(work: Work, session: Session, rows: RowSet) -> dict[str, float]:
    """Return the trained model's metrics on the validation rows, without those that have no value."""
    facts = work.artifact.facts
    [answer] = answers({"trained": session}, work.artifact.signature, facts, rows, work.most).values()
    values = measured(answer.compared(facts), work.names, lenient=True)
    return {name: value for name, value in values.items() if np.isfinite(value)}


def reject_undefined(name: str, values: Mapping[str, float]) -> NoReturn:
    """Raise for a configured metric without a value, such as the ROC AUC of one class."""
    rule = "A metric that is set must have a value on the test rows."
    fix = "Give more test rows, of every class ({@data.split.stratify}=true), or leave it out of {at}metrics."
    raise EvaluateError(rule, got=f"{name} = {values}", fix=fix)


def intervals(metrics: Mapping[str, Metric], entries: Compared, draws: int, seed: int) -> dict[str, list[float]]:
    """Return the 95 % interval of each metric: percentiles of its values on rows drawn with replacement.

    Draws without a value, such as the ROC AUC of one class, do not count; a metric without a value on half of the draws
    has no interval.
    """
    rng, count = np.random.default_rng(seed), len(entries.truth)
    values: dict[str, list[float]] = {name: [] for name in metrics}
    for _ in range(draws):
        drawn = at(entries, rng.integers(0, count, count))
        for name, metric in metrics.items():
            values[name].append(metric(*drawn))
    finite = {name: np.array(samples)[np.isfinite(samples)] for name, samples in values.items()}
    return {name: np.percentile(v, PERCENTILES).tolist() for name, v in finite.items() if 2 * len(v) > draws}


def by_value(metrics: Mapping[str, Metric], entries: Compared, column: np.ndarray) -> dict[str, dict[str, float]]:
    """Return each part's `rows` and metrics, without metrics that have no value on it."""
    by_part: dict[str, dict[str, float]] = {}
    for part, where in slice_by_value(column):
        part_entries = at(entries, where)
        measured = {name: value_of(metric, part_entries) for name, metric in metrics.items()}
        by_part[part] = {"rows": int(where.sum())} | {k: v for k, v in measured.items() if np.isfinite(v)}
    return by_part


def at(entries: Compared, where: np.ndarray) -> Compared:
    """Return some of the entries."""
    return Compared(*(None if array is None else array[where] for array in entries))  # type: ignore[arg-type]
