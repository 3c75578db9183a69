"""Checks of evaluate's settings by facts alone, before any stage runs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Data
from ortpipe.data.slices import check_columns
from ortpipe.doors import later
from ortpipe.errors import EvaluateError, nearest
from ortpipe.facts import Facts
from ortpipe.metrics import CLASSES, METRICS, head_and_metric
from ortpipe.metrics.named import check_fits
from ortpipe.metrics.predictions import truth
from ortpipe.stages.evaluate.config import DECIDING, EvaluateConfig

if TYPE_CHECKING:  # it imports scikit-learn and pandas
    from ortpipe.stages.evaluate.boosting import check_boosting
else:
    later(__name__)

FEWEST = 5  # validation rows of each of two classes
TASKS = {"temperature": CLASSES, "isotonic": ("binary",)}  # of a threshold: binary


def check(facts: Facts, config: EvaluateConfig, *, data: Data, **others: object) -> None:
    """Raise EvaluateError for settings that do not fit the task or the rows, and for data without test rows."""
    if data.test is None:
        raise EvaluateError("evaluate needs test rows.", got="none", fix="Set {@data.split.test}=0.25.")
    if config.folds:
        raise EvaluateError("Folds belong to a run.", key="folds", got=config.folds, fix="Set {key}=0.")
    for name in config.metrics or ():
        check_fits(name, facts, "metrics")
    if config.baseline not in (None, "constant"):
        check_boosting(facts)
    if config.by:
        check_columns(data.test.head(1), config.by, "by")
    _check_adjustable(facts, config, data.validation)


def _check_adjustable(facts: Facts, config: EvaluateConfig, rows: RowSet | None) -> None:
    for key, value in (("calibration", config.calibration), ("threshold", config.threshold)):
        if value is None:
            continue
        if rows is None:
            rule, fix = "{key} is fitted on validation rows, never on test rows.", "Set {@data.split.validation}=0.15."
            raise EvaluateError(rule, key=key, got=f"{value}, without validation rows", fix=fix)
        tasks, of_rows = TASKS.get(value, ("binary",)), facts.class_axis is None and facts.padding is None
        if facts.task not in tasks or not of_rows:
            kind = "two exclusive classes" if tasks == ("binary",) else "exclusive classes"
            actual = f"{value} for a {facts.task} model" + ("" if of_rows else " of each row's elements")
            fix = "Set {key}=temperature." if value == "isotonic" and facts.task in CLASSES else "Set {key}=null."
            raise EvaluateError(f"{{key}} needs one prediction of {kind} per row.", key=key, got=actual, fix=fix)
        if facts.calibration is not None or facts.threshold is not None:
            rule, fix = "{key} is fitted once, to the model as trained.", "Give the artifact that train returned."
            raise EvaluateError(rule, key=key, got="a calibrated model, or one with a threshold", fix=fix)
        _check_counts(facts, key, rows)
    if (name := config.threshold) is not None and (head_and_metric(name)[0] or METRICS[name].reads != "label"):
        rule = "{key} needs a metric of predicted classes, by its plain name."
        raise EvaluateError(rule, key="threshold", got=name, fix=nearest(name, DECIDING))
    if name is not None:
        check_fits(name, facts, "threshold")


def _check_counts(facts: Facts, key: str, rows: RowSet) -> None:
    """Reject validation rows with fewer than two classes, or with few rows of one of two; a row may weigh 0."""
    labels = np.concatenate([truth(facts, label)[weight > 0] for label, weight in labels_and_weights(rows)])
    names, binary = facts.classes or (), facts.task == "binary"
    counts = np.bincount(labels, minlength=max(2, len(names)))
    if (np.sort(counts)[-2] if not binary else counts.min()) >= (FEWEST if binary else 1):
        return
    least = f"{FEWEST} validation rows of each class" if binary else "validation rows of two classes"
    actual = ", ".join(f"{n} of {names[k]!r}" if k < len(names) else str(n) for k, n in enumerate(counts[:10]))
    raise EvaluateError(
        f"{{key}} needs at least {least}.",
        key=key,
        got=actual,
        fix="Set {@data.split.validation}=0.3, or give more rows.",
    )


def labels_and_weights(rows: RowSet) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the labels and weights of rows; of rows on disk without weights, only the labels are read."""
    if rows.head(1).sample_weight is None:
        yield from ((label, np.ones(len(label))) for label, _ in rows.read_labels())
        return
    for piece in rows.read():
        assert piece.sample_weight is not None
        yield piece.label, piece.sample_weight.astype(np.float64)
