"""The metric that a sweep optimizes, and checks of metrics that a user names."""

from collections.abc import Iterable, Mapping
from typing import NoReturn

from ortpipe.errors import ConfigError, EvaluateError, nearest
from ortpipe.facts import Facts
from ortpipe.metrics import METRICS, UNWEIGHTED, check_fits, part_of
from ortpipe.settings import Must

OBJECTIVE = Must(  # the value that a sweep optimizes
    "the name of a metric or 'loss'",
    lambda name: name == "loss" or str(name).removesuffix(UNWEIGHTED) in METRICS,
    ("loss", *METRICS, *(f"{name}{UNWEIGHTED}" for name in METRICS)),
)


def reject_metric(name: str, facts: Facts, key: str | None = None) -> NoReturn:
    """Raise for a metric, named by the setting `key`, that does not fit the task of the model or of its head."""
    head, plain = part_of(name)
    if head not in facts.predictions:
        rule, fix = "A metric with the prefix of a head must name one of the model's heads.", nearest(head, facts.heads)
        raise EvaluateError(
            rule, key=key, got=f"{head!r} in {name!r}", fix=f"{fix} They are {{@convert.source.heads}}."
        )
    task = facts.predictions[head].measured_as
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
