"""Baselines on the test rows: the majority class or the mean of the training rows, and on request gradient boosting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.row_set import RowSet
from ortpipe.doors import later
from ortpipe.facts import Facts
from ortpipe.metrics import CLASSES
from ortpipe.metrics.predictions import Compared, measured, truth
from ortpipe.metrics.survival import kaplan_meier
from ortpipe.metrics.titles import BOOSTING
from ortpipe.stages.evaluate.early import labels_and_weights
from ortpipe.stages.evaluate.stage import Work

if TYPE_CHECKING:  # it imports scikit-learn and pandas
    from ortpipe.stages.evaluate.boosting import boosted
else:
    later(__name__)


@dataclass(frozen=True)
class BaselineFit:
    """The fit of a baseline begins, or has ended."""

    name: str
    ended: bool


def add_baselines(
    work: Work, train: RowSet, tested: Mapping[str, Compared], table: Mapping[str, dict[str, float]]
) -> list[str]:
    """Add the metrics of each baseline to a table with those of the entries `tested`; return notes.

    Heads without a baseline, such as sequences, and metrics without a value for it, are left out.
    """
    heads = work.artifact.facts.predictions
    constants = {head: constant(part, head, train, tested[head]) for head, part in heads.items()}
    tables, notes = {"baseline": {head: entries for head, entries in constants.items() if entries}}, list[str]()
    if work.config.baseline == BOOSTING:
        work.report(BaselineFit(BOOSTING, ended=False))
        entries, note = boosted(work.artifact.facts, train, work.rows, tested[""], work.most, work.config.seed)
        work.report(BaselineFit(BOOSTING, ended=True))
        tables[BOOSTING], notes = {"": entries}, [note]
    for state, entries_by_head in tables.items():
        for name, value in measured(entries_by_head, work.names, lenient=True).items():
            if name in table and np.isfinite(value):
                table[name][state] = value
    return notes


def constant(facts: Facts, head: str, train: RowSet, tested: Compared) -> Compared | None:
    """Return the same prediction for all entries: the shares of the classes in the training rows, or the means.

    It is scikit-learn's DummyClassifier(strategy="prior") or DummyRegressor, fitted with the weights of the rows. Of
    quantiles it has those of the labels, of survival the Kaplan-Meier estimate, of a risk 0.
    """
    if facts.link == "pairs":
        return None
    if facts.link not in (None, "log"):
        labels, weights = map(np.concatenate, zip(*labels_and_weights(train.of(head)), strict=True))
        row = _constant_row(facts, truth(facts, labels), weights)
        return tested._replace(label=np.broadcast_to(row, tested.label.shape))
    is_class = facts.task in CLASSES
    if facts.blank is not None or (not is_class and (facts.class_axis is not None or facts.padding is not None)):
        return None
    shape = tested.label.shape[1:] if tested.probability is None else tested.probability.shape[1:]
    labels, weights = zip(*labels_and_weights(train.of(head)), strict=True)
    true, weight = truth(facts, np.concatenate(labels)), np.concatenate(weights)  # one sum for pieces of any size
    if is_class:
        entries, weight = true.reshape(-1), np.repeat(weight, true.size // len(true))
        counted = entries >= 0
        total, weight_sum = np.bincount(entries[counted], weight[counted], shape[0]), weight[counted].sum()
    else:
        total, weight_sum = weight @ true, weight.sum()
    if not weight_sum:
        return None
    means = np.broadcast_to(total / weight_sum, (len(tested.truth), *shape))
    if facts.task == "regression":
        return tested._replace(label=means)
    label = means.argmax(axis=1) if is_class else (means > 0.5).astype(np.int64)
    return tested._replace(label=label, probability=means)


def _constant_row(facts: Facts, true: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the constant prediction [K] of quantiles, of survival at times, or of a risk."""
    if facts.link == "quantiles":
        return np.quantile(true[:, 0], facts.levels, weights=weight, method="inverted_cdf")
    if facts.link == "survival":
        return kaplan_meier(true[:, 0], true[:, 1], weight)(np.array(facts.levels))
    return np.zeros(1)
