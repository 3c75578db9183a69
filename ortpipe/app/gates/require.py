"""Requirements: `{accuracy: ">= 0.97", "slice.country=DE.accuracy": ">= 0.9"}`, on validation rows."""

import contextlib
import math
import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ortpipe import Data, EvaluateConfig, Facts
from ortpipe.doors import later
from ortpipe.errors import ConfigError, EvaluateError, nearest, under
from ortpipe.metrics import METRICS
from ortpipe.metrics.named import check_fits

if TYPE_CHECKING:
    from ortpipe.stages import Scored, slice_of
else:
    later(__name__)  # they import onnxruntime and onnx-ir

LIMIT = re.compile(r"\s*(>=|<=)\s*(\S+)\s*")
SLICE = re.compile(r"slice\.([^=]+)=(.*)\.([^.]+(?:\.\d+)?)", re.DOTALL)
HOLDS = {">=": operator.ge, "<=": operator.le}


class Requirement(NamedTuple):
    """A limit of a metric, on all rows or on those with a value in a column."""

    metric: str
    column: str | None
    value: str
    sign: str
    limit: float

    def holds(self, value: float | None) -> bool:
        """Return whether a value is within the limit; no value is not."""
        return value is not None and bool(HOLDS[self.sign](value, self.limit))


def requirement(name: str, limit: str) -> Requirement:
    """Return the requirement of a name and a limit.

    >>> requirement("slice.country=DE.accuracy", ">= 0.9")
    Requirement(metric='accuracy', column='country', value='DE', sign='>=', limit=0.9)
    """
    key = f"require.{name}"
    match, parts = LIMIT.fullmatch(limit), SLICE.fullmatch(name)
    number = math.nan
    if match is not None:
        with contextlib.suppress(ValueError):
            number = float(match[2])
    if match is None or not math.isfinite(number):
        fix = "Write '>= 0.9' or '<= 0.1'."
        raise ConfigError("A requirement must be >= or <= and a number.", key=key, got=repr(limit), fix=fix)
    metric = parts[3] if parts is not None else name
    if metric not in METRICS or (parts is None and name.startswith("slice.")):
        rule = "A requirement must be of a metric, or of a metric on a slice: slice.COLUMN=VALUE.METRIC."
        raise ConfigError(rule, key=key, got=name, fix=nearest(metric, METRICS))
    column, value = (parts[1], parts[2]) if parts is not None else (None, "")
    return Requirement(metric, column, value, match[1], number)


def check_gates(config: EvaluateConfig, recorder: object, *, validated: bool) -> None:
    """Reject requirements that cannot be read, and gates without validation rows."""
    with under("evaluate"):
        for name, limit in config.require.items():
            requirement(name, limit)
    metrics = [("evaluate.require", name) for name in config.require]
    better = getattr(recorder, "only_if_better", None)
    for key, name in [*metrics, *([] if better is None else [("recorder.only_if_better", better)])]:
        if not validated:
            rule, fix = "{key} decides on validation rows, never on test rows.", "Set {@data.split.validation}=0.15."
            raise ConfigError(rule, key=key, got=f"{name}, without validation rows", fix=fix)


def check_model(config: EvaluateConfig, recorder: object, facts: Facts, data: Data) -> None:
    """Reject metrics that do not fit the model's task, and slices of unknown columns."""
    rows = data.validation
    for name, limit in config.require.items():
        needed = requirement(name, limit)
        with under("evaluate"):
            check_fits(needed.metric, facts, f"require.{name}")
        if needed.column is not None and rows is not None:
            with under("evaluate"):
                slice_of(rows.head(1), 1, needed.column, needed.value)
    if (better := getattr(recorder, "only_if_better", None)) is not None:
        with under("recorder"):
            check_fits(better, facts, "only_if_better")


def required(config: EvaluateConfig, scored: "Scored", data: Data) -> dict[str, dict[str, Any]]:
    """Return the value, the limit and the outcome of each requirement."""
    assert data.validation is not None
    gates: dict[str, dict[str, Any]] = {}
    for name, limit in config.require.items():
        needed = requirement(name, limit)
        where = None
        if needed.column is not None:
            where = slice_of(data.validation, config.rows, needed.column, needed.value)
            if len(where) != scored.rows or any(len(e.truth) != scored.rows for e in scored.entries.values()):
                raise EvaluateError("A slice needs one prediction per row.", key="require", got=name)
        value = scored.value(needed.metric, where) if where is None or where.any() else None
        gates[name] = {"value": value, "limit": limit, "passed": needed.holds(value)}
    return gates


def in_words(gates: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence per requirement.

    >>> in_words({"accuracy": {"value": 0.95, "limit": ">= 0.97", "passed": False}})
    ['fails accuracy >= 0.97: it is 0.95 on the validation rows']
    """
    return [
        f"{'meets' if gate['passed'] else 'fails'} {name} {gate['limit']}: "
        + ("it has no value" if gate["value"] is None else f"it is {gate['value']:.4g} on the validation rows")
        for name, gate in gates.items()
    ]
