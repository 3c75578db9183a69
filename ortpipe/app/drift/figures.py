"""The figure of a comparison with a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ortpipe.app.drift.compare import REPORTED, SHOWN
from ortpipe.picture import picture

MOST_COLUMNS, PANELS = 20, 5  # with the largest stability index


def drift_figures(drift: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the figure by its name: the stability index of columns, and the distributions that changed most."""
    measured = {name: column for name, column in drift.get("columns", {}).items() if _is_drawn(column)}
    if not measured:
        return {}
    names = sorted(measured, key=lambda name: -measured[name]["psi"])
    panels: list[Callable[[Any], None]] = [partial(_indices, {name: measured[name]["psi"] for name in names})]
    panels += [partial(_distribution, name, measured[name]) for name in names[:PANELS]]
    return {"drift": picture(*panels)}


def _is_drawn(column: Mapping[str, Any]) -> bool:
    return column["psi"] is not None and len(column["bins"]) == len(column["old"]) == len(column["new"])


def _indices(values: Mapping[str, float], axes: Any) -> None:
    names = [*values][:MOST_COLUMNS][::-1]
    axes.barh(names, [values[name] for name in names])
    axes.axvline(REPORTED["psi"], color="0.4", linestyle="--", linewidth=1)
    axes.set(title="Drift", xlabel="population stability index")
    axes.tick_params(axis="y", labelsize="small")


def _distribution(name: str, column: Mapping[str, Any], axes: Any) -> None:
    order = np.argsort(-np.array(column["old"]), kind="stable")[:SHOWN] if column["kind"] == "word" else slice(None)
    bins = np.array(column["bins"])[order]
    for shift, part, label in ((-0.2, "old", "training"), (0.2, "new", "new")):
        axes.bar(np.arange(len(bins)) + shift, np.array(column[part])[order], 0.4, label=label)
    axes.set_xticks(np.arange(len(bins)), bins, rotation=60, fontsize="x-small", parse_math=False)
    axes.set_title(f"{name}: {column['psi']:.2g}", parse_math=False)
    axes.legend(fontsize="small")
