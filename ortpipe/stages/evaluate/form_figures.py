"""Figures of quantiles, risks and survival on the test rows."""

from typing import Any

import numpy as np

from ortpipe.artifact import Artifact
from ortpipe.metrics.survival import kaplan_meier

Axes = Any  # matplotlib's

SHOWN = 20_000  # the largest number of rows that are drawn


def _entries(artifact: Artifact) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and predictions."""
    return artifact.tensors["evaluation/label"], artifact.tensors["evaluation/prediction"]


def interval(artifact: Artifact, axes: Axes) -> None:
    """Draw the true values and the interval between the outer quantiles, over the middle quantile."""
    truth, predicted = (array[:: -(-len(array) // SHOWN)] for array in _entries(artifact))
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
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    axes.plot(artifact.facts.levels, (truth <= predicted).mean(axis=0), marker="o", linewidth=1.2)
    axes.set(xlabel="quantile", ylabel="share of labels not above it", title="Reliability, test rows")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)


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
