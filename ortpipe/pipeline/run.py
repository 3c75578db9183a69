"""Running a plan: each stage's artifact goes to the next, what is stored is taken, and everything is told."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortpipe.artifact import Artifact
from ortpipe.errors import OrtpipeError
from ortpipe.pipeline.digest import Parts, key_of, parts_of
from ortpipe.pipeline.events import (
    Event,
    Listener,
    RunFailed,
    RunFinished,
    RunStarted,
    StageFinished,
    StageProgressed,
    StageSaid,
    StageStarted,
)
from ortpipe.pipeline.locks import Say
from ortpipe.pipeline.plan import Plan, Step
from ortpipe.pipeline.store import Entry, Store


def run(
    plan: Plan, context: Mapping[str, Any], listeners: Sequence[Listener] = (), store: Store | None = None
) -> Artifact:
    """Return the last stage's artifact.

    Args:
        plan: stages with their configs, in order.
        context: what stages read by keyword, such as `data` and `runtime`; `report` is added.
        listeners: called with every event, in order.
        store: where results are taken from and kept; without one every stage runs.
    """

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    started, artifact, current = time.perf_counter(), None, ""
    given: str | None = None
    said: set[str] = set()
    try:
        tell(RunStarted(plan))
        for number, step in enumerate(plan, start=1):
            current = name = step.stage.name
            tell(StageStarted(name, number, len(plan)))
            begun = time.perf_counter()

            def report(progress: object, name: str = name) -> None:
                tell(StageProgressed(name, progress))

            def say(message: str, name: str = name) -> None:
                if message not in said:  # of a store that cannot be written, once is enough
                    said.add(message)
                    tell(StageSaid(name, message))

            known = {**context, "report": report}
            parts = parts_of(step, given, known)
            key = key_of(parts)
            found = _performed(step, artifact, parts, key, known, store, say)
            artifact, seconds = found.artifact, time.perf_counter() - begun
            output = found.hit.output if found.hit is not None else artifact.digest()
            for note in artifact.facts.lineage[-1].get("notes", ()) if artifact.facts.lineage else ():
                say(note)
            tell(StageFinished(name, number, artifact, seconds, key, parts, given, output, found.stored, found.hit))
            given = output
            if number == 1:
                for later in plan[1:]:
                    current = later.stage.name
                    later.stage.refuse_early(artifact.facts, later.config, **known)
        assert artifact is not None
        tell(RunFinished(artifact, time.perf_counter() - started))
    except BaseException as error:
        failed = RunFailed(error, current, killed=not isinstance(error, Exception))
        for listener in listeners:
            try:
                listener(failed)
            except (
                OSError,
                OrtpipeError,
            ) as another:  # such as a full disk: it hides neither the first error nor the end of the run
                error.add_note(f"after it: {another}")
        raise
    return artifact


@dataclass(frozen=True)
class _Found:
    """A stage's result, where the store holds it, and the entry if it came from there."""

    artifact: Artifact
    stored: Path | None = None
    hit: Entry | None = None


def _performed(
    step: Step,
    artifact: Artifact | None,
    parts: Parts,
    key: str,
    context: Mapping[str, Any],
    store: Store | None,
    say: Say,
) -> _Found:
    """Take a stage's result from the store, or run the stage and keep what it gives."""
    if store is None:
        return _Found(step.stage(artifact, step.config, **context))
    name = step.stage.name
    if found := _taken(store, name, key, artifact, say):
        return found
    with store.alone(key, say):
        if found := _taken(store, name, key, artifact, say):  # what another process computed meanwhile
            return found
        begun = time.perf_counter()
        made = step.stage(artifact, step.config, **context)
        seconds = time.perf_counter() - begun
        if _changed(step, parts["input"], key, context):
            say(f"what {name} reads changed while it ran: its result is not stored")
            return _Found(made)
        try:
            entry = store.publish(name, key, parts, made, seconds, say)
        except OSError as error:
            say(f"nothing can be kept in {store.folder}: {error.strerror or error}; the run goes on")
            return _Found(made)
        return _Found(made, store.path(entry.output))


def _taken(store: Store, name: str, key: str, artifact: Artifact | None, say: Say) -> _Found | None:
    found = store.take(name, key, artifact, say)
    return None if found is None else _Found(found[0], store.path(found[1].output), found[1])


def _changed(step: Step, given: str | None, key: str, context: Mapping[str, Any]) -> bool:
    """Return whether a file that the stage reads is another one than when its key was made."""
    read = [context[name] for name in step.stage.reads]
    if any(value.changed() for value in read if hasattr(value, "changed")):
        return True
    return key_of(parts_of(step, given, context)) != key
