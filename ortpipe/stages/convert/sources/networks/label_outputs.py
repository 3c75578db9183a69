"""Raw outputs of a regression that are not one per label column: several quantiles, a risk, hazards of intervals."""

from dataclasses import replace
from typing import NoReturn

import numpy as np

from ortpipe.data.labels import check_survival
from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError, NoRowsError
from ortpipe.metrics.survival import kaplan_meier
from ortpipe.stages.convert.sources.networks.network import LabelKind


def with_outputs(
    labels: LabelKind, data: Data, outputs: int | None, intervals: int | tuple[float, ...] | None, *, scaled: bool
) -> LabelKind:
    """Return the kind of labels with other raw outputs than one for each column.

    `outputs` is their number, for example of quantiles. The scale of one label column applies to all of them. With
    `intervals`, labels are times and events: the ends of intervals of time, or their number, with ends at quantiles of
    the times of events. The raw output of each interval is the logit of its hazard, at first that of all training rows
    (by Kaplan and Meier) if they are scaled.

    Raises:
        ConvertError: the labels are classes, or several columns with a scale; or all events are at time 0.
        DataError: labels are no times and events, or there is no event.
    """
    if labels.task != "regression":
        rule, fix = "Only a regression has {key}.", "Leave {key} out, or set {at}task=regression."
        raise ConvertError(rule, key="intervals" if intervals else "outputs", got=f"a {labels.task} network", fix=fix)
    if intervals:
        check_survival(data)
        times, events = np.concatenate([label.astype(np.float64) for label, _ in data.train.read_labels()]).T
        points = cut_points(times[events == 1], intervals) if isinstance(intervals, int) else intervals
        if not points:
            rule, fix = "{key} need an event after time 0.", "Set {key} to times, such as [30,60,90]."
            raise ConvertError(rule, key="intervals", got="all events at time 0", fix=fix)
        mean = logits(kaplan_meier(times, events)(np.array(points))) if scaled else np.zeros(1)
        return replace(labels, width=len(points), mean=mean, scale=np.ones(1), levels=points)
    if len(labels.mean) > 1 and labels.scaled:
        rule, fix = "Several quantiles need labels of one column.", "Choose one as {@data.source.label}."
        raise ConvertError(rule, got=f"{len(labels.mean)} columns", fix=fix)
    return replace(labels, width=outputs or labels.width)


def cut_points(times: np.ndarray, count: int) -> tuple[float, ...]:
    """Return the distinct quantiles 1/count, 2/count … 1 of the times of events, each the time of an event above 0.

    >>> cut_points(np.array([1.0, 2, 2, 2, 5, 9]), 3), cut_points(np.array([4.0]), 3)
    ((2.0, 9.0), (4.0,))
    """
    shares = np.arange(1, count + 1) / count
    cuts = np.unique(np.quantile(times.astype(np.float64), shares, method="inverted_cdf"))
    return tuple(float(cut) for cut in cuts if cut > 0)


def logits(survival: np.ndarray) -> np.ndarray:
    """Return the logits of the hazards 1 − Sₖ/Sₖ₋₁ of intervals, each between 0.001 and 0.999.

    >>> logits(np.array([0.5, 0.25])).tolist()
    [0.0, 0.0]
    """
    before = np.concatenate([[1.0], survival[:-1]])
    hazard = np.clip(1 - survival / np.maximum(before, np.finfo(float).tiny), 0.001, 0.999)
    return np.log(hazard / (1 - hazard))


def reject_no_rows() -> NoReturn:
    """Raise for a network without training rows."""
    raise NoRowsError("A network by config needs training rows, for its sizes.", got="no rows", fix="Give data.")


def reject_text(name: str, array: np.ndarray) -> NoReturn:
    """Raise for an input of text of a network that reads arrays."""
    raise ConvertError(
        "The inputs of this network must be numbers.",
        got=f"input {name!r} of {array.dtype}",
        fix="Leave out columns of text: {@data.source.inputs}={X: [age, height]}.",
    )
