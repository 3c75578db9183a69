"""Figures of an evaluated artifact, as PNG bytes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ortpipe.artifact import Artifact, in_folder
from ortpipe.metrics.survival import kaplan_meier
from ortpipe.metrics.titles import label
from ortpipe.picture import picture

MOST_LABELS = 20  # the largest number of classes or columns with labels
LONG = 24  # the largest number of letters of a column's name
SHOWN, INTERVALS = 200_000, 20_000  # the largest numbers of entries, and of rows with their interval, that are drawn

Axes = Any  # matplotlib's
Panel = Callable[[Axes], None]


def figures(artifact: Artifact) -> dict[str, bytes]:
    """Return the figures by name, as PNG."""
    return {name: picture(*drawn) for name, drawn in panels(artifact).items()}


def panels(artifact: Artifact) -> dict[str, list[Panel]]:
    """Return the functions that draw each figure, by name.

    A trained model has `losses`, an evaluated one `confusion` and `curves`, or `predicted` and `residuals`, and
    `importance` and `sensitivity` of columns if the config set them.
    """
    pictures: dict[str, list[Panel]] = {}
    if "losses/train" in artifact.tensors:
        pictures["losses"] = [partial(_losses, artifact)]
    if "evaluation/label" in artifact.tensors and artifact.facts.blank is None:
        if artifact.facts.task in ("binary", "multiclass"):
            pictures["confusion"] = [partial(_confusion, artifact)]
            have = {name.partition("/")[0] for name in in_folder("evaluation", artifact.tensors)}
            curves = {"roc": _roc, "precision_recall": _precision_recall, "reliability": _reliability}
            pictures["curves"] = [partial(draw, artifact) for name, draw in curves.items() if name in have]
        elif artifact.facts.link in PANELS:
            pictures["predicted"] = [partial(draw, artifact) for draw in PANELS[artifact.facts.link]]
        elif artifact.facts.task == "regression" and artifact.facts.link != "pairs":
            pictures["predicted"] = [partial(_points, artifact, False)]
            pictures["residuals"] = [partial(_points, artifact, True)]
    last = artifact.facts.lineage[-1] if artifact.facts.lineage else {}
    importances: Mapping[str, Mapping[str, Sequence[float]]] = last.get("importance", {})
    worse, moves = "how much worse without the column", "how far the score moves, mean over rows"
    pictures["importance"] = [
        partial(_bars, f"Importance: {name}", worse, columns) for name, columns in [*importances.items()][:3]
    ]
    by_column = {name: (value,) for name, value in last.get("sensitivity", {}).items()}
    pictures["sensitivity"] = [partial(_bars, "Sensitivity", moves, by_column)] if by_column else []
    for name, entries in in_folder("evaluation/sensitivity", artifact.tensors).items():
        if (image := flat(entries)) is not None:
            pictures["sensitivity"].append(partial(_map, name, image))
    return {name: drawn for name, drawn in pictures.items() if drawn}


def _bars(title: str, words: str, columns: Mapping[str, Sequence[float]], axes: Axes) -> None:
    """Draw the columns with the largest values, the largest on top; a second number is a value's deviation."""
    most = sorted(columns, key=lambda name: columns[name][0])[-MOST_LABELS:]
    values, *deviations = zip(*(columns[name] for name in most), strict=True)
    axes.barh([_short(name) for name in most], values, xerr=deviations[0] if deviations else None, ecolor="0.4")
    axes.axvline(0, color="0.4", linewidth=1)
    axes.set(xlabel=words, title=title)
    axes.tick_params(axis="y", labelsize="small")
    axes.grid(axis="x", alpha=0.3)


def _map(name: str, image: np.ndarray, axes: Axes) -> None:
    """Draw how far the score moves with each entry of an input."""
    drawn = axes.imshow(image, cmap="magma", vmin=0)
    axes.figure.colorbar(drawn, ax=axes, shrink=0.8)
    axes.set(title=f"Sensitivity: {_short(name)}")


def flat(entries: np.ndarray) -> np.ndarray | None:
    """Return the entries of a row's input as an image [H, W], channels summed; None if it is no image.

    >>> flat(np.ones((3, 4, 5))).shape, flat(np.ones((28, 28, 3))).shape, flat(np.ones((2, 2, 2, 2)))
    ((4, 5), (28, 28), None)
    """
    if entries.ndim == 3:
        return entries.sum(axis=2 if entries.shape[2] <= 4 < entries.shape[0] else 0)
    return entries if entries.ndim == 2 else None


def _short(name: str) -> str:
    return name if len(name) < LONG else f"{name[:LONG]}…"


def _losses(artifact: Artifact, axes: Axes) -> None:
    """Draw the losses by epoch, the monitored metrics, and the epoch whose weights early stopping kept."""
    train = artifact.tensors["losses/train"]
    axes.plot(np.arange(1, len(train) + 1), train, label="training")
    if "losses/validation" in artifact.tensors:
        validation = artifact.tensors["losses/validation"]
        at = np.flatnonzero(~np.isnan(validation))
        axes.plot(at + 1, validation[at], marker="." if len(at) < len(validation) else "", label="validation")
    if (train > 0).all() and train.max() > 20 * train.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")  # 0.01, not a formula, whose parser takes longer than the drawing
    axes.set(xlabel="epoch", ylabel="loss per row", title="Loss")
    axes.locator_params(axis="x", integer=True)
    for record in artifact.facts.lineage:
        if early_stop := record.get("early_stop"):
            at = early_stop["epoch"]
            axes.axvline(at, color="0.4", linestyle="--", linewidth=1, label=f"kept: epoch {at}")
    axes.grid(alpha=0.3)
    for metric, values in in_folder("monitor", artifact.tensors).items():
        right_axes, at = axes.twinx(), np.flatnonzero(~np.isnan(values))
        right_axes.plot(at + 1, values[at], color="C2", marker="." if len(at) < len(values) else "")
        name = label(metric, artifact.facts.metrics)
        right_axes.set_ylabel(name)
        axes.plot([], [], color="C2", label=f"{name} (right)")
    # below the plot, where it hides no line
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)


def _points(artifact: Artifact, residuals: bool, axes: Axes) -> None:
    """Draw predictions over the truth, or residuals over predictions: good ones are around 0 and equally wide."""
    truth, predicted = _entries(artifact)
    if truth.shape[1] > MOST_LABELS:  # one drawing of all: one of each output of a sound takes minutes
        truth, predicted = truth.reshape(-1, 1), predicted.reshape(-1, 1)
    truth, predicted = (array[:: -(-len(array) // SHOWN)] for array in (truth, predicted))
    x, y = (predicted, truth - predicted) if residuals else (truth, predicted)
    for k in range(truth.shape[1]):
        axes.scatter(x[:, k], y[:, k], s=14, alpha=0.6, label=f"output {k}" if truth.shape[1] > 1 else None)
    if residuals:
        axes.axhline(0, color="0.4", linewidth=1)
        axes.set(xlabel="predicted", ylabel="true − predicted", title="Residuals, test rows")
    else:
        ends = [min(truth.min(), predicted.min()), max(truth.max(), predicted.max())]
        axes.plot(ends, ends, color="0.4", linewidth=1)
        axes.set(xlabel="true", ylabel="predicted", title="Predicted against true, test rows")
    axes.grid(alpha=0.3)
    if 1 < truth.shape[1] <= MOST_LABELS:
        axes.legend()


def _shares(axes: Axes, *, diagonal: bool = True, **words: str) -> None:
    """Set up a plot of shares from 0 to 1, on whose diagonal both are equal."""
    if diagonal:
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), **words)
    axes.grid(alpha=0.3)


def _lines(artifact: Artifact, kind: str, corner: str, axes: Axes) -> None:
    """Draw a curve of each class, with their names in the corner that good ones keep free."""
    classes = artifact.facts.classes or ()
    curves = in_folder(f"evaluation/{kind}", artifact.tensors)
    for k in sorted(map(int, curves)):
        axes.plot(*curves[str(k)].T, linewidth=1.2, label=str(classes[k]) if k < len(classes) else str(k))
    if len(curves) > 1:
        title = "class against the others"
        axes.legend(loc=corner, fontsize="x-small", ncols=2, title=title, title_fontsize="x-small")


def _roc(artifact: Artifact, axes: Axes) -> None:
    _lines(artifact, "roc", "lower right", axes)
    _shares(axes, xlabel="false positive rate", ylabel="true positive rate", title="ROC")


def _precision_recall(artifact: Artifact, axes: Axes) -> None:
    _lines(artifact, "precision_recall", "lower left", axes)
    _shares(axes, diagonal=False, xlabel="recall", ylabel="precision", title="Precision and recall")


def _reliability(artifact: Artifact, axes: Axes) -> None:
    _shares(axes, xlabel="predicted probability", ylabel="share that is true", title="Reliability")
    drawn = 0
    for title, name, color in (
        ("before calibration", "reliability_before", "0.5"),
        ("calibrated", "reliability", "C0"),
    ):
        if (curve := artifact.tensors.get(f"evaluation/{name}")) is not None:
            predicted, true, weight = curve.T
            axes.plot(predicted, true, linewidth=1.2, color=color, label=title)
            axes.scatter(predicted, true, s=10 + 60 * weight / weight.max(), alpha=0.7, color=color)
            drawn += 1
    if drawn > 1:
        axes.legend(loc="upper left", fontsize="small")


def _confusion(artifact: Artifact, axes: Axes) -> None:
    truth, predicted = _entries(artifact)
    classes = artifact.facts.classes or ()
    counts = np.zeros((len(classes), len(classes)), int)
    np.add.at(counts, (truth, predicted), 1)
    title = "Confusion matrix, test rows"
    if len(classes) > MOST_LABELS:  # most of them may not occur at all
        occur = np.flatnonzero(counts.sum(axis=0) + counts.sum(axis=1))
        title += f", {len(occur)} of {len(classes)} classes"
        counts, classes = counts[np.ix_(occur, occur)], tuple(classes[i] for i in occur)
    axes.imshow(counts, cmap="Blues")
    if len(classes) <= MOST_LABELS:
        for i, j in np.ndindex(counts.shape):
            if counts[i, j]:
                dark = counts[i, j] > counts.max() / 2
                axes.text(j, i, str(counts[i, j]), ha="center", va="center", color="white" if dark else "black")
        axes.set_xticks(range(len(classes)), [str(c) for c in classes])
        axes.set_yticks(range(len(classes)), [str(c) for c in classes])
    axes.set(xlabel="predicted", ylabel="true", title=title)


def _entries(artifact: Artifact) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and predictions."""
    return artifact.tensors["evaluation/label"], artifact.tensors["evaluation/prediction"]


def interval(artifact: Artifact, axes: Axes) -> None:
    """Draw the true values and the interval between the outer quantiles, over the middle quantile."""
    truth, predicted = (array[:: -(-len(array) // INTERVALS)] for array in _entries(artifact))
    order = np.argsort(predicted[:, predicted.shape[1] // 2], kind="stable")
    middle, lowest, highest = (predicted[order, k] for k in (predicted.shape[1] // 2, 0, -1))
    low, center, high = (artifact.facts.levels[k] for k in (0, len(artifact.facts.levels) // 2, -1))
    axes.vlines(middle, lowest, highest, color="C0", alpha=0.3, linewidth=1, label=f"from q{low:g} to q{high:g}")
    axes.plot(middle, middle, color="C0", linewidth=1, label=f"q{center:g}")
    axes.scatter(middle, truth[order, 0], s=8, color="C1", alpha=0.7, label="true")
    axes.set(xlabel=f"predicted q{center:g}", ylabel="value", title="Interval, test rows")
    axes.grid(alpha=0.3)
    axes.locator_params(axis="x", nbins=5)
    axes.legend(fontsize="small")


def below(artifact: Artifact, axes: Axes) -> None:
    """Draw the share of labels that are not above each predicted quantile."""
    truth, predicted = _entries(artifact)
    axes.plot(artifact.facts.levels, (truth <= predicted).mean(axis=0), marker="o", linewidth=1.2)
    _shares(axes, xlabel="quantile", ylabel="share of labels not above it", title="Reliability, test rows")


def thirds(artifact: Artifact, axes: Axes) -> None:
    """Draw the Kaplan-Meier estimate of the rows with low, medium and high predicted risks."""
    truth, predicted = _entries(artifact)
    third = np.digitize(predicted[:, 0], np.quantile(predicted[:, 0], [1 / 3, 2 / 3]))
    for number, name in enumerate(("low", "medium", "high")):
        if (third == number).any():
            _steps(axes, truth[third == number], f"{name} risk", f"C{number}")
    _survival_axes(axes, "Survival by thirds of the risk, test rows")


def survival(artifact: Artifact, axes: Axes) -> None:
    """Draw the mean predicted survival and the Kaplan-Meier estimate."""
    truth, predicted = _entries(artifact)
    _steps(axes, truth, "Kaplan-Meier", "C1")
    axes.plot([0, *artifact.facts.levels], [1, *predicted.mean(axis=0)], marker="o", label="predicted, mean of rows")
    _survival_axes(axes, "Survival, test rows")


def _steps(axes: Axes, truth: np.ndarray, label: str, color: str) -> None:
    times = np.unique(truth[:, 0])
    axes.step([0, *times], [1, *kaplan_meier(*truth.T)(times)], where="post", label=label, color=color)


def _survival_axes(axes: Axes, title: str) -> None:
    axes.set(xlabel="time", ylabel="probability of no event", title=title, ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    axes.legend()


PANELS = {"quantiles": (interval, below), "risk": (thirds,), "survival": (survival,)}
