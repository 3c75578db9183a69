"""The figure of a sweep: the objective against each key that varies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ortpipe.app.sweep.overrides import names, short
from ortpipe.app.sweep.summary import Summary
from ortpipe.metrics.titles import heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes


PANELS = 6  # keys that are drawn, in the command's order
MAX_GROUPS = 8  # values that get ticks, or colours


def panels(summary: Summary) -> list[Callable[[Axes], None]]:
    """Return a drawing function for each key that varies; points are jobs, the star is the best; [] without results."""
    return [partial(_panel, summary, key) for key in summary.varying[:PANELS]] if summary.ranked else []


def _panel(summary: Summary, key: str, axes: Axes) -> None:
    titles, ranked = names(summary.varying), summary.ranked
    heights = [row.run.values[summary.column] for row in ranked]
    places = _places([row.job.varies.get(key, "") for row in ranked], axes)
    distinct = {name: len({row.job.varies.get(name, "") for row in ranked}) for name in summary.varying if name != key}
    colour_key = next((name for name, count in distinct.items() if 1 < count <= MAX_GROUPS), None)
    groups = [row.job.varies.get(colour_key, "") if colour_key else "" for row in ranked]
    for i, group in enumerate(sorted(set(groups), key=_sort_key)):
        points = sorted((x, y) for x, y, of in zip(places, heights, groups, strict=True) if of == group)
        grid = len({x for x, _ in points}) == len(points) and len(set(places)) < len(places)
        legend = f"{titles[colour_key]}={short(group)}" if colour_key else None
        axes.plot(
            *zip(*points, strict=True), "o-" if grid else "o", markersize=5, alpha=0.8, color=f"C{i}", label=legend
        )
    axes.plot(places[0], heights[0], "*", color="black", markersize=13, label="best", zorder=3)
    axes.set(xlabel=titles[key], ylabel=heading(summary.column, summary.measured))
    _scale_heights(heights, axes)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _places(values: Sequence[str], axes: Axes) -> list[float]:
    """Return the positions of values on the axis, and scale it: numbers by their size, words side by side."""
    distinct = sorted(set(values), key=_sort_key)
    try:
        places = {value: float(value) for value in distinct}
    except ValueError:
        places = {value: float(i) for i, value in enumerate(distinct)}
        axes.margins(x=0.15)
    else:
        if min(places.values()) > 0 and max(places.values()) >= 10 * min(places.values()):
            axes.set_xscale("log")
    if len(distinct) <= MAX_GROUPS:
        axes.set_xticks(list(places.values()), [short(value) for value in distinct])
        axes.minorticks_off()
    return [places[value] for value in values]


def _scale_heights(heights: Sequence[float], axes: Axes) -> None:
    """Scale the axis such that the best three quarters of the heights, which are sorted, can be distinguished."""
    near = heights[: max(2, len(heights) * 3 // 4)]
    span, low, high = abs(near[-1] - near[0]), min(near), max(near)
    if min(heights) > 0 and max(heights) > 30 * min(heights):
        axes.set_yscale("log")
    elif 0 < 20 * span < abs(heights[-1] - heights[0]):
        low, high = low - 0.1 * span, high + 0.1 * span
        axes.set_ylim(low, high)
        beyond = sum(not low <= height <= high for height in heights)
        axes.set_title(f"{beyond} more beyond this range", fontsize="small")


def _sort_key(value: str) -> tuple[float, str]:
    try:
        return float(value), value
    except ValueError:
        return float("inf"), value
