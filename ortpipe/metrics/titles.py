"""Titles of metrics in tables and figures."""

from collections.abc import Collection

from ortpipe.metrics import UNWEIGHTED


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
