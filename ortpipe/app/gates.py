"""Requirements of a trained model on validation rows, and the comparison with the version that it would replace.

`{accuracy: ">= 0.97", "slice.country=DE.accuracy": ">= 0.9"}`
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ortpipe import Data, EvaluateConfig, Facts
from ortpipe.app.run.record import GATES
from ortpipe.doors import later
from ortpipe.errors import ConfigError, EvaluateError, OrtpipeError, nearest, under
from ortpipe.metrics import METRICS
from ortpipe.metrics.named import check_fits
from ortpipe.pipeline.events import Event, RunFinished, StageFinished

if TYPE_CHECKING:
    from ortpipe import Artifact, RuntimeConfig
    from ortpipe.app.run.record import RunRecord
    from ortpipe.app.tracking import champion_of
    from ortpipe.data import RowSet
    from ortpipe.facts_json import read_facts, read_metadata
    from ortpipe.graph import read_apart
    from ortpipe.stages import Scored, paired, score, slice_of
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


def required(config: EvaluateConfig, scored: Scored, data: Data) -> dict[str, dict[str, Any]]:
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


class GateError(OrtpipeError):
    """A trained model that fails its requirements, or is not better than the champion; its run is complete."""

    code = 3  # of the process


class Gates:
    """Checks the settings once the model's task is known, and decides when the run has finished."""

    def __init__(
        self, config: EvaluateConfig, runtime: RuntimeConfig, recorder: object, data: Data, record: RunRecord
    ) -> None:
        self._config, self._runtime, self._data, self._record = config, runtime, data, record
        self._target: Any = None if getattr(recorder, "only_if_better", None) is None else recorder

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if self._target is None and not self._config.require:
            return
        if isinstance(event, StageFinished) and event.name == "add_loss":
            check_model(self._config, self._target, event.artifact.facts, self._data)
        elif isinstance(event, RunFinished):
            self._decide(event.artifact)

    def _decide(self, artifact: Artifact) -> None:
        record, rows = self._record, self._data.validation
        assert rows is not None
        scored = score(*artifact.apart(), artifact.facts, rows, self._config.rows, self._runtime)
        record.gates = required(self._config, scored, self._data)
        if self._target is not None and record.passed:
            record.champion = compared(self._target, scored, rows, self._config, self._runtime)
        words = [*in_words(record.gates), *comparison_in_words(record.champion)]
        record.tags[GATES] = "; ".join(["passed" if record.passed else "failed", *words])
        record.notes["evaluate"] = (*record.notes.get("evaluate", ()), *words)


def raise_failed(record: RunRecord) -> None:
    """Raise GateError if the model of a finished run failed."""
    if record.passed:
        return
    champion = record.champion.get("version")
    failed = in_words({name: gate for name, gate in record.gates.items() if not gate["passed"]})
    failed += comparison_in_words(record.champion)
    fix = f"{champion} keeps its alias." if champion else "Change the training, or the limits in evaluate.require."
    raise GateError("A model that fails its gates is not registered.", got="\n       ".join(failed), fix=fix)


def compared(
    target: Any, scored: Scored, rows: RowSet, config: EvaluateConfig, runtime: RuntimeConfig
) -> dict[str, Any]:
    """Return the comparison: the version, both values, their difference with its interval, and the outcome.

    A champion that cannot be read, or predicts other rows, stays: a person decides then.
    """
    name = target.only_if_better
    assert name is not None
    facts: dict[str, Any] = {"metric": name, "margin": target.margin}
    champion = champion_of(target)
    if champion is None:
        return {**facts, "version": None, "passed": True}
    facts["version"] = champion.uri
    try:
        old = _scored(champion.file, rows, config, runtime)
    except OrtpipeError as error:
        return {**facts, "passed": False, "error": str(error.got or error.rule)[:300]}
    values = paired(scored, old, name, config.seed)
    gain = values["difference"]
    if gain is not None and not METRICS[name].greater_is_better:
        gain = -gain
    return {**facts, **values, "passed": gain is not None and gain > 0 and gain >= target.margin}


def _scored(file: Path, rows: RowSet, config: EvaluateConfig, runtime: RuntimeConfig) -> Scored:
    model, weights = read_apart(file)
    values = read_metadata(model)
    if "task" not in values:
        raise ConfigError("The champion must be a model of ortpipe.", got="a model without ortpipe's metadata")
    return score(model, weights, read_facts(values), rows, config.rows, runtime)


def comparison_in_words(comparison: dict[str, Any]) -> list[str]:
    """Return a sentence about a comparison; none if there is none.

    >>> comparison_in_words({"metric": "r2", "margin": 0.0, "version": None, "passed": True})
    ['no version has the alias yet: nothing to compare']
    """
    if not comparison:
        return []
    if comparison["version"] is None:
        return ["no version has the alias yet: nothing to compare"]
    outcome = "is better than" if comparison["passed"] else "is not better than"
    if (error := comparison.get("error")) is not None:
        return [f"{outcome} {comparison['version']}, which cannot be compared: {error}"]
    value, old, gain = (comparison[key] for key in ("value", "champion", "difference"))
    if gain is None:
        return [f"{outcome} {comparison['version']}: {comparison['metric']} has no value on the validation rows"]
    interval = (
        ""
        if comparison["interval"] is None
        else " ({:+.4g} to {:+.4g} in 95 % of bootstrap samples)".format(*comparison["interval"])
    )
    margin = f", margin {comparison['margin']:g}" if comparison["margin"] else ""
    return [
        f"{outcome} {comparison['version']} on the same validation rows: {comparison['metric']} {value:.4g} against "
        f"{old:.4g}, difference {gain:+.4g}{interval}{margin}"
    ]
