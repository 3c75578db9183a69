"""ortpipe validate: everything that can be known to be wrong with a run before it runs, all at once."""

import re
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from ortpipe.app.assemble import open_run
from ortpipe.app.compose import Composition, Parser
from ortpipe.app.hydra_errors import REFUSALS, explained
from ortpipe.app.schema import all_at_once, check, collected
from ortpipe.artifact import Artifact
from ortpipe.data.rows import Data
from ortpipe.errors import NoRowsError, OrtpipeError
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
    errors: list[OrtpipeError | str] = []
    composed = _accepted(given.overrides, given.config_dir, errors)
    if composed is not None:
        with warnings.catch_warnings():  # they come when it is run
            warnings.simplefilter("ignore")
            said = _check_parts(composed.values, errors)
    if errors:
        raise all_at_once(errors, None if composed is None else composed.where)
    print(said)


def _accepted(overrides: Sequence[str], config_dir: str | None, errors: list[OrtpipeError | str]) -> Composition | None:
    """Return the composition of those overrides that Hydra takes; the others are errors, each with its reason."""
    found = _composed(overrides, config_dir)
    while isinstance(found, str):
        message = found
        for culprit in sorted(overrides, key=lambda one: _named(one, message), reverse=True):
            rest = [other for other in overrides if other != culprit]
            if (found := _composed(rest, config_dir)) != message:
                break
        else:  # it is in the files
            errors.append(message)
            return None
        errors.append(f"{message}\n  set: {culprit} on the command line")
        overrides = rest
    return found


def _named(override: str, message: str) -> int:
    """Return how many parts of its key a message begins with: each override that is tried costs a composition."""
    parts = [re.split(r"[.=\s]", text.lstrip("+~")) for text in (override, message)]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*parts, strict=False)))


def _composed(overrides: Sequence[str], config_dir: str | None) -> Composition | str:
    """Return the composition of overrides, or why there is none."""
    composed = Composition(overrides, config_dir)
    try:
        composed.values  # noqa: B018 - composes
    except REFUSALS as error:
        return str(explained(error))
    return composed


def _check_parts(config: dict[str, Any], errors: list[OrtpipeError | str]) -> str:
    """Check data, model and every stage whose config is right; return what was found, in a line."""
    values, problems = check(config)
    context = open_run(values, partial(collected, problems))
    artifact, data = _check_stages(values, context, problems), context.get("data")
    if (objective := values.get("objective", "loss")) != "loss" and artifact is not None and data is not None:
        with collected(problems, "objective"):
            check_objective(objective, artifact.facts, weighted=data.weighted)
    if data is None:  # which has an error of its own: what only lacks rows is no other
        problems = [problem for problem in problems if not isinstance(problem, NoRowsError)]
    errors += problems
    return "" if artifact is None or errors or data is None else _summary(data, artifact)


def _check_stages(values: dict[str, Any], context: dict[str, Any], errors: list[OrtpipeError]) -> Artifact | None:
    """Convert, ask every later stage what it refuses, and build the graphs in front of the stage that trains."""
    first, *later = FLOW
    artifact: Artifact | None = None
    if first.name in values:
        with collected(errors):
            data = context.get("data")
            artifact = first(None, values[first.name], data=None if data is None else _few(data))
    if artifact is None:
        return None
    facts, building = artifact.facts, True
    for stage in later:
        # without its data a stage that only looks at them is checked all the same
        only_looks = "data" in stage.takes and not getattr(values.get(stage.name), "check", False)
        given = {"data": None, **context} if only_looks else context
        ready = stage.name in values and {*stage.reads, *stage.takes} <= set(given)
        building = building and ready and "report" not in stage.takes  # what has progress to report takes long
        if not ready:
            continue
        before = len(errors)
        with collected(errors):
            facts = stage.refuse_early(facts, values[stage.name], **given)
        if building and len(errors) == before:
            with collected(errors):
                artifact = stage(artifact, values[stage.name], **given)
        building = building and len(errors) == before
    return artifact


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
