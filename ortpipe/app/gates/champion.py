"""The comparison of a trained model with the registered version that it would replace, on the same validation rows."""

from pathlib import Path
from typing import Any

from ortpipe import EvaluateConfig, RuntimeConfig
from ortpipe.app.tracking import Mlflow, champion_of
from ortpipe.data import RowSet
from ortpipe.errors import ConfigError, OrtpipeError
from ortpipe.facts_json import read_facts, read_metadata
from ortpipe.graph import read_apart
from ortpipe.metrics import METRICS
from ortpipe.stages import Scored, paired, score


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


def in_words(comparison: dict[str, Any]) -> list[str]:
    """Return a sentence about a comparison; none if there is none.

    >>> in_words({"metric": "r2", "margin": 0.0, "version": None, "passed": True})
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
