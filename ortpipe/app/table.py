"""Text tables, and numbers in them."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from statistics import fmean, pstdev


def aligned(rows: Iterable[Sequence[str]], heads: Sequence[str] = (), *, text_columns: int | None = None) -> list[str]:
    r"""Return the lines of a table with aligned columns, below a line of heads and a rule if there are heads.

    Rows may have different lengths. The first `text_columns` columns, by default all, are aligned left, others right.

    >>> print(*aligned([["r2", "0.5"], ["loss", "12.25"]], ["metric", "trained"], text_columns=1), sep="\n")
    metric  trained
    ------  -------
    r2          0.5
    loss      12.25
    """
    table = [*([heads] if heads else []), *rows]
    widths = [max(map(len, column)) for column in zip_longest(*table, fillvalue="")]
    if heads:
        table.insert(1, ["-" * width for width in widths])
    lines = []
    for row in table:
        cells = enumerate(zip(row, widths, strict=False))
        fitted = [
            cell.ljust(width) if text_columns is None or i < text_columns else cell.rjust(width)
            for i, (cell, width) in cells
        ]
        lines.append("  ".join(fitted).rstrip())
    return lines


def section(title: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the indented lines of a table under a title, or nothing if there are no rows.

    >>> section("inputs", [["x", "float[?, 4]"]]), section("outputs", [])
    (['', 'inputs', '  x  float[?, 4]'], [])
    """
    lines = aligned(rows)
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation of a metric in words.

    >>> spread((0.5, 0.7))
    '0.6000 ± 0.1000'
    """
    return f"{fmean(values):.4f} ± {pstdev(values):.4f}"
