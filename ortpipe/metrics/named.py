"""Metrics beyond the catalogue's own: a user's function, and a name that ends in a parameter."""

from dataclasses import replace
from typing import Any

from ortpipe import own
from ortpipe.errors import ConfigError
from ortpipe.metrics import LABELS, VALUES, Metric


def own_metric(part: Any) -> Metric:
    """Return the metric of a user's function."""
    up = getattr(part, "greater_is_better", None)
    reads, tasks = getattr(part, "reads", "label"), getattr(part, "tasks", (*VALUES, *LABELS))
    if not isinstance(up, bool) or reads not in ("label", "probability"):
        name = part.__name__
        raise ConfigError(
            "A custom metric must define greater_is_better, and `reads` as label or probability.",
            got=f"{own.path_of(part)} with greater_is_better={up!r}, reads={reads!r}",
            fix=f"Write {name}.greater_is_better = False (or True) below it, and {name}.reads unless it reads "
            "predicted values or labels.",
        )
    return Metric(part, tuple(tasks), "label" if reads == "label" else "probability", up)


def with_number(metric: Metric, number: str) -> Metric | None:
    """Return a metric with the parameter that ends its name; None if that is no valid number."""
    assert metric.parameter is not None
    keyword, bound = metric.parameter
    try:
        value: float = int(number) if keyword == "k" else float(number)
    except ValueError:
        return None
    return replace(metric, params={**metric.params, keyword: value}) if bound.holds(value) else None
