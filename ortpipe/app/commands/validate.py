"""ortpipe validate: all errors of a run that can be detected before it starts."""

import re
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from ortpipe import FLOW, Artifact, Data, OrtpipeError
from ortpipe.app.assemble import open_run
from ortpipe.app.compose import Composition, Parser
from ortpipe.app.hydra_errors import REFUSALS, explained
from ortpipe.app.schema import all_at_once, check, check_data, collected
from ortpipe.errors import NoRowsError
from ortpipe.metrics.named import check_objective, check_rows
from ortpipe.stages.convert.sources import FITTED

ABOUT = """Check a run's config, its data, its model and the graphs that are built before training, and print
all errors at once: the key, its value, where it was set, and the nearest valid choice. Nothing is
trained or written; an estimator is fitted on a few rows only. The exit code is 1 if there are
errors."""
EXAMPLES = (
    "ortpipe validate",
    "ortpipe validate experiment=networks/mlp data=csv data.source.path=t.csv data.source.label=y",
)
SAMPLE_ROWS = 256  # that an estimator is fitted on
MOST_CLASSES = 1000


def run(arguments: Sequence[str]) -> None:
    """Check the run that the arguments configure."""
    options = Parser("validate", ABOUT, EXAMPLES).read(arguments)
    errors: list[OrtpipeError | str] = []
    composed = _compose_accepted(options.overrides, options.config_dir, errors)
    if composed is not None:
        with warnings.catch_warnings():  # a run shows them
            warnings.simplefilter("ignore")
            summary = _check_parts(composed.values, errors)
    if errors:
        raise all_at_once(errors, None if composed is None else composed.where)
    print(summary)


def _compose_accepted(
    overrides: Sequence[str], config_dir: str | None, errors: list[OrtpipeError | str]
) -> Composition | None:
    """Compose the overrides that Hydra accepts; append an error for each of the others."""
    composition = _compose(overrides, config_dir)
    while isinstance(composition, str):
        message = composition
        for culprit in sorted(overrides, key=lambda override: _shared_parts(override, message), reverse=True):
            remaining = [override for override in overrides if override != culprit]
            if (composition := _compose(remaining, config_dir)) != message:
                break
        else:  # the error is in a config file
            errors.append(message)
            return None
        errors.append(f"{message}\n  set: {culprit} on the command line")
        overrides = remaining
    return composition


def _shared_parts(override: str, message: str) -> int:
    """Return how many parts of an override's key a message begins with.

    The most likely culprits are tried first, because each try costs a composition.
    """
    parts = [re.split(r"[.=\s]", text.lstrip("+~")) for text in (override, message)]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*parts, strict=False)))


def _compose(overrides: Sequence[str], config_dir: str | None) -> Composition | str:
    """Return the composition of overrides, or the error message if Hydra rejects them."""
    composed = Composition(overrides, config_dir)
    try:
        composed.values  # noqa: B018 - composes
    except REFUSALS as error:
        return str(explained(error))
    return composed


def _check_parts(config: dict[str, Any], errors: list[OrtpipeError | str]) -> str:
    """Check data, model and every stage whose config is valid; return a summary if there are no errors."""
    values, problems = check(config)
    context = open_run(values, partial(collected, problems))
    if "data" not in values:
        check_data(config, problems)
    artifact, data = _check_stages(values, context, problems), context.get("data")
    if (objective := values.get("objective", "loss")) != "loss" and artifact is not None and data is not None:
        with collected(problems, "objective"):
            check_rows(objective, validated=data.validation is not None)
            check_objective(objective, artifact.facts, weighted=data.weighted)
    if data is None:  # then the data's own error is reported already
        problems = [problem for problem in problems if not isinstance(problem, NoRowsError)]
    errors += problems
    return "" if artifact is None or errors or data is None else _summary(data, artifact)


def _check_stages(values: dict[str, Any], context: dict[str, Any], errors: list[OrtpipeError]) -> Artifact | None:
    """Convert, run every later stage's early checks, and build the graphs of the stages before training."""
    first, *later = FLOW
    artifact: Artifact | None = None
    if first.name in values:
        with collected(errors):
            data = context.get("data")
            fits = getattr(values[first.name].source, "fits", False)
            artifact = first(None, values[first.name], data=_sample(data) if fits and data is not None else data)
    if artifact is None:
        return None
    facts, building = artifact.facts, True
    for stage in later:
        # a stage that only inspects the data is checked without them, too
        only_looks = "data" in stage.takes and not getattr(values.get(stage.name), "check", False)
        stage_context = {"data": None, **context} if only_looks else context
        ready = stage.name in values and {*stage.reads, *stage.takes} <= set(stage_context)
        building = building and ready and "report" not in stage.takes  # a stage that reports progress takes long
        if not ready:
            continue
        error_count = len(errors)
        with collected(errors):
            facts = stage.check_early(facts, values[stage.name], **stage_context)
        if building and len(errors) == error_count:
            with collected(errors):
                artifact = stage(artifact, values[stage.name], **stage_context)
        building = building and len(errors) == error_count
    return artifact


def _sample(data: Data) -> Data:
    """Return evenly spaced training rows, with at least one of every class."""
    rows = data.train.sample()
    places = np.linspace(0, len(rows) - 1, min(SAMPLE_ROWS, len(rows))).astype(int)
    if rows.label.ndim == 1:
        _, of_each_class = np.unique(rows.label, return_index=True)
        places = np.concatenate([places, of_each_class[:MOST_CLASSES]])
    return Data(train=rows.take(np.unique(places)))


def _summary(data: Data, artifact: Artifact) -> str:
    facts = artifact.facts
    sizes = {name: array.size for name, array in artifact.initializers.items()}
    rows = {"to train": data.train, "to validate": data.validation, "to test": data.test}
    counts = ", ".join(f"{len(part):,} {purpose}" for purpose, part in rows.items() if part is not None)
    trained = sum(sizes[name] for name in facts.parameters)
    notes = {"data": data.notes, **{r["stage"]: r.get("notes", ()) for r in facts.lineage}}
    note_lines = "".join(f"{name}: {note}\n" for name, stage_notes in notes.items() for note in stage_notes)
    is_sample = FITTED in facts.lineage[0] and len(data.train) > SAMPLE_ROWS
    sampled = " (the estimator was fitted on a sample of the rows)" if is_sample else ""
    return (
        f"{note_lines}no problems found: rows: {counts}; {facts.task} model: {trained:,} numbers in "
        f"{len(facts.parameters)} parameters to train; config, data, model and gradients checked, "
        f"nothing was trained{sampled}"
    )
