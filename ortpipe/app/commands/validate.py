"""ortpipe validate: everything that can be known to be wrong with a run before it runs, all at once."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ortpipe.app.assemble import open_run
from ortpipe.app.compose import Composition, Parser, composition
from ortpipe.app.hydra_errors import REFUSALS, explained
from ortpipe.app.schema import all_at_once, check, located
from ortpipe.artifact import Artifact
from ortpipe.data.rows import Data
from ortpipe.errors import OrtpipeError, under
from ortpipe.flow import FLOW
from ortpipe.metrics import check_objective

ABOUT = """Check a run's config, its data, its model and the graphs in front of training, and print every error at once:
the key, its value, where it was set, and the nearest valid choice. Nothing is trained or written; an estimator is
fitted on a few rows only. The exit code is 1 where there are errors."""
FEW = 256  # rows that an estimator is fitted on
MOST_CLASSES = 1000


def run(arguments: Sequence[str]) -> None:
    """Check what the arguments configure."""
    given = Parser("validate", ABOUT).read(arguments)
    errors: list[str] = []
    found = _accepted(given.overrides, given.config_dir, errors)
    said = ""
    if found is not None:
        values, problems = check(found.values)
        later, said = _check_parts(values)
        errors += [located(error, found.where) for error in [*problems, *later]]
    if errors:
        raise all_at_once(dict.fromkeys(errors))
    print(said)


def _accepted(overrides: Sequence[str], config_dir: str | None, errors: list[str]) -> Composition | None:
    """Return the composition of those overrides that Hydra takes; the others are errors, each with its reason."""
    left, reason = list(overrides), ""
    while True:
        found = _refusal(left, config_dir)
        if not isinstance(found, str):
            return found
        reason, culprit = found, None
        for override in left:
            rest = [other for other in left if other != override]
            if _refusal(rest, config_dir) != reason:
                culprit, left = override, rest
                break
        if culprit is None:  # it is in the files
            errors.append(reason)
            return None
        errors.append(f"{reason}\n  set: {culprit} on the command line")


def _refusal(overrides: Sequence[str], config_dir: str | None) -> Composition | str:
    try:
        return composition(overrides, config_dir)
    except REFUSALS as error:
        return str(explained(error))


def _check_parts(values: dict[str, Any]) -> tuple[list[OrtpipeError], str]:
    """Check data, model and every stage whose config is right.

    Returns:
        The errors; where there are none, all that was found, in a line.
    """
    errors: list[OrtpipeError] = []
    rest = {"start": None, **{key: values[key] for key in ("runtime",) if key in values}}
    context = rest | open_run(values, collect=lambda key: _collected(errors, key))
    artifact = _check_stages(values, context, errors)
    if (objective := values.get("objective", "loss")) != "loss":
        with _collected(errors, "objective"):
            if artifact is not None and "data" in context:
                check_objective(objective, artifact.facts.task, weighted=context["data"].weighted)
    return errors, "" if artifact is None or errors or "data" not in context else _summary(context["data"], artifact)


def _check_stages(values: dict[str, Any], context: dict[str, Any], errors: list[OrtpipeError]) -> Artifact | None:
    """Convert, ask every later stage what it refuses, and build the graphs in front of the stage that trains."""
    first, *later = FLOW
    artifact: Artifact | None = None
    if first.name in values:
        with _collected(errors):
            data = context.get("data")
            artifact = first(None, values[first.name], data=None if data is None else _few(data))
    if artifact is None:
        return None
    facts, building = artifact.facts, True
    for stage in later:
        ready = stage.name in values and {*stage.reads, *stage.takes} <= set(context)
        building = building and ready and "report" not in stage.takes  # what has progress to report takes long
        if not ready:
            continue
        before = len(errors)
        with _collected(errors):
            stage.refuse_early(facts, values[stage.name], **context)
        if building and len(errors) == before:
            with _collected(errors):
                artifact = stage(artifact, values[stage.name], **context)
        building = building and len(errors) == before
    return artifact


@contextmanager
def _collected(errors: list[OrtpipeError], *group: str) -> Iterator[None]:
    """Put an error of ours, about a group of the config, into the list and go on; warnings come when it is run."""
    try:
        with warnings.catch_warnings(), under(*group):
            warnings.simplefilter("ignore")
            yield
    except OrtpipeError as error:
        if error.key != "convert.source.data":  # which could not be read: they have an error of their own
            errors.append(error)


def _few(data: Data) -> Data:
    """Return some of the rows to train on, evenly spaced, with at least one of every class."""
    rows = data.train.sample()
    places = np.linspace(0, len(rows) - 1, min(FEW, len(rows))).astype(int)
    if rows.label.ndim == 1:
        _, of_each_class = np.unique(rows.label, return_index=True)
        places = np.concatenate([places, of_each_class[:MOST_CLASSES]])
    return Data(train=rows.take(np.unique(places)))


def _summary(data: Data, artifact: Artifact) -> str:
    facts = artifact.facts
    sizes = {name: array.size for name, array in artifact.initializers.items()}
    rows = {"to train": data.train, "to validate": data.validation, "to test": data.test}
    counts = ", ".join(f"{len(part):,} {what}" for what, part in rows.items() if part is not None)
    trained = sum(sizes[name] for name in facts.parameters)
    notes = {"data": data.notes, **{r["stage"]: r.get("notes", ()) for r in facts.lineage}}
    said = "".join(f"{name}: {note}\n" for name, about in notes.items() for note in about)
    return (
        f"{said}no problems found: rows: {counts}; {facts.task} model: {trained:,} numbers in {len(facts.parameters)} "
        f"parameters to train; config, data, model and gradients checked, nothing was trained"
    )
