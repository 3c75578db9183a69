"""Titles of metrics in tables and figures."""

from collections.abc import Collection, Mapping

from ortpipe.metrics import UNWEIGHTED

BOOSTING = "HistGradientBoosting"  # the baseline on request
# The columns of a table of metrics.
STATES = ("before", "unadjusted", "trained", "int8", "baseline", BOOSTING, "source")


def columns_of(metrics: Mapping[str, Mapping[str, float]], source: str) -> dict[str, str]:
    """Return the titles of the measured states in order, with the name of the source.

    >>> columns_of({"r2": {"source": 0.5, "trained": 0.5}}, "nets:Net")
    {'trained': 'trained', 'source': 'nets:Net'}
    """
    states = [state for state in STATES if any(state in values for values in metrics.values())]
    return {state: source if state == "source" else state for state in states}


def heading(column: str, columns: Collection[str]) -> str:
    """Return the title of a column whose name consists of rows and a value.

    >>> heading("test/r2", ["train/loss", "test/r2"]), heading("validation/a/r2", [])
    ('test r2', 'validation a/r2')
    """
    rows, _, name = column.partition("/")
    return f"{rows} {label(name, [other.partition('/')[2] for other in columns])}"


def label(name: str, measured: Collection[str]) -> str:
    """Return the name of a metric in a table, marked if both the weighted and the unweighted one were measured.

    >>> [label(name, ["r2", "r2_unweighted"]) for name in ("r2", "r2_unweighted")], label("r2", ["r2"])
    (['r2 (weighted)', 'r2 (unweighted)'], 'r2')
    """
    if name.endswith(UNWEIGHTED):
        return f"{name.removesuffix(UNWEIGHTED)} (unweighted)"
    return f"{name} (weighted)" if f"{name}{UNWEIGHTED}" in measured else name
