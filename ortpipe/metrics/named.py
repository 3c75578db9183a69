"""Metrics that a user names: own functions, numbers in names, checks, and the metric that a sweep optimizes."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ortpipe import own
from ortpipe.errors import ConfigError, EvaluateError, nearest
from ortpipe.facts import Facts
from ortpipe.metrics import LABELS, METRICS, UNWEIGHTED, VALUES, Metric, head_and_metric, shown
from ortpipe.own_code import loaded
from ortpipe.settings import Must

OBJECTIVE = Must(  # the value that a sweep optimizes
    "the name of a metric or 'loss'",
    lambda name: name == "loss" or str(name).removesuffix(UNWEIGHTED) in METRICS,
    ("loss", *METRICS, *(f"{name}{UNWEIGHTED}" for name in METRICS)),
)


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


def named_metric(catalogue: Mapping[str, Metric], name: str) -> Metric | None:
    """Return the metric of a name with a head before it or a number behind it, such as `mean_pinball_loss_0.9`."""
    head, plain = head_and_metric(name)
    if head:
        return catalogue.get(plain)
    base, _, number = plain.rpartition("_")
    metric = catalogue[base] if base in [*catalogue] else None
    if metric is None or metric.parameter is None:
        return None
    keyword, _, bound = metric.parameter
    try:
        value: float = int(number) if keyword == "k" else float(number)
    except ValueError:
        return None
    return replace(metric, params={**metric.params, keyword: value}) if bound.holds(value) else None


def greater_is_better(name: str, *, recorded: bool = False) -> bool:
    """Return the direction of a metric; lower is better for the loss.

    For recorded results, a user's function is not imported: its direction is only known if a config has named it.

    >>> greater_is_better("accuracy"), greater_is_better("accuracy_unweighted"), greater_is_better("loss")
    (True, True, False)
    """
    plain = head_and_metric(name.removesuffix(UNWEIGHTED))[1]
    if recorded and own.is_path(plain) and loaded(plain) is None:
        return False
    metric = METRICS.get(plain)
    return metric is not None and metric.greater_is_better


def check_fits(name: str, facts: Facts, key: str | None = None) -> None:
    """Raise if a metric, named by the setting `key`, does not fit the task of the model or of its head."""
    head, plain = head_and_metric(name)
    if head not in facts.predictions:
        rule, fix = "A metric with the prefix of a head must name one of the model's heads.", nearest(head, facts.heads)
        raise EvaluateError(
            rule, key=key, got=f"{head!r} in {name!r}", fix=f"{fix} They are {{@convert.source.heads}}."
        )
    task = facts.predictions[head].measured_as
    if task in METRICS[plain].tasks:
        level = METRICS[plain].params.get("level")
        if level is not None and level not in facts.predictions[head].levels:
            rule, fix = (
                "A metric of a quantile must name one that the model predicts.",
                f"Choose from {', '.join(shown(facts))}.",
            )
            raise EvaluateError(rule, key=key, got=name, fix=fix)
        return
    fitting = [name for name, metric in METRICS.items() if task in metric.tasks]
    rule, fix = "A metric must fit the model's task.", f"Choose from {', '.join(fitting)}."
    fitting_heads = [
        of for of, head_facts in facts.predictions.items() if of and head_facts.measured_as in METRICS[plain].tasks
    ]
    fix += f" Prefix it with a head's name: {fitting_heads[0]}/{plain}." if fitting_heads and not head else ""
    raise EvaluateError(rule, key=key, got=f"{name} for a {task} {'head' if head else 'model'}", fix=fix)


def check_rows(name: str, *, validated: bool) -> None:
    """Raise if a metric is the objective but there are no validation rows: test rows must not influence choices."""
    if name != "loss" and not validated:
        raise ConfigError(
            "An objective metric is computed on validation rows; test rows must not influence choices.",
            got=f"{name}, without validation rows",
            fix="Set {@data.split.validation}=0.15, or objective=loss.",
        )


def check_value(name: str, values: Mapping[str, float]) -> None:
    """Raise if a finished job has no value for the objective, such as the ROC AUC of rows of one class."""
    if objective_in(name, [values]) not in values:
        raise EvaluateError(
            "The objective must have a value on the validation rows.",
            got=f"none for {name}",
            fix="Give more validation rows of every class ({@data.split.stratify}=true), or choose another objective.",
        )


def objective_in(name: str, jobs: Iterable[Mapping[str, float]]) -> str:
    """Return the key of an objective among the values of jobs: on validation rows if any job has them.

    >>> objective_in("loss", [{"train/loss": 1.0}, {"validation/loss": 2.0}]), objective_in("r2", [])
    ('validation/loss', 'validation/r2')
    """
    on_train = name == "loss" and not any("validation/loss" in values for values in jobs)
    return f"{'train' if on_train else 'validation'}/{name}"


def check_objective(name: str, facts: Facts, *, weighted: bool) -> None:
    """Raise if an objective does not fit the model's task, or is unweighted although no rows have weights."""
    if name == "loss":
        return
    check_fits(plain := name.removesuffix(UNWEIGHTED), facts)
    if name != plain and not weighted:
        raise EvaluateError(
            f"An objective that ends in {UNWEIGHTED} needs weighted rows.",
            got=f"{name}, with unweighted rows",
            fix=f"Set objective={plain}: each row counts once.",
        )
