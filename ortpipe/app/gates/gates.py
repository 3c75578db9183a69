"""The decision at the end of a run, before it is recorded, and the comparison with the version that it replaces."""

from pathlib import Path
from typing import Any

from ortpipe import Artifact, Data, EvaluateConfig, RuntimeConfig
from ortpipe.app.gates.require import check_model, in_words, required
from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking import GATES, Mlflow, champion_of
from ortpipe.data import RowSet
from ortpipe.errors import ConfigError, OrtpipeError
from ortpipe.facts_json import read_facts, read_metadata
from ortpipe.graph import read_apart
from ortpipe.metrics import METRICS
from ortpipe.pipeline.events import Event, RunFinished, StageFinished
from ortpipe.stages import Scored, paired, score


class GateError(OrtpipeError):
    """A trained model that fails its requirements, or is not better than the champion; its run is complete."""

    code = 3  # of the process


class Gates:
    """Checks the settings once the model's task is known, and decides when the run has finished."""

    def __init__(
        self, config: EvaluateConfig, runtime: RuntimeConfig, recorder: object, data: Data, record: RunRecord
    ) -> None:
        self._config, self._runtime, self._data, self._record = config, runtime, data, record
        better = isinstance(recorder, Mlflow) and recorder.only_if_better is not None
        self._target = recorder if isinstance(recorder, Mlflow) and better else None

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
    target: Mlflow, scored: Scored, rows: RowSet, config: EvaluateConfig, runtime: RuntimeConfig
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
