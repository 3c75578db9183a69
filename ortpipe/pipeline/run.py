"""Running a plan: each stage's artifact goes to the next, what is stored is taken, and listeners hear of everything."""

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
    StageNotice,
    StageProgressed,
    StageStarted,
)
from ortpipe.pipeline.locks import Notify
from ortpipe.pipeline.plan import MayChange, Plan, Step
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

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    artifact, digest, current = None, None, ""
    notices: set[str] = set()
    try:
        emit(RunStarted(plan))
        for number, step in enumerate(plan, start=1):
            current = name = step.stage.name
            emit(StageStarted(name, number, len(plan)))
            started = time.perf_counter()

            def report(progress: object, name: str = name, started: float = started) -> None:
                emit(StageProgressed(name, progress, time.perf_counter() - started))

            def notify(message: str, name: str = name) -> None:
                if message not in notices:  # of a store that cannot be written, once is enough
                    notices.add(message)
                    emit(StageNotice(name, message))

            stage_context = {**context, "report": report}
            parts = parts_of(step, digest, stage_context)
            key = key_of(parts)
            result = _performed(step, artifact, parts, key, stage_context, store, notify)
            artifact, seconds = result.artifact, time.perf_counter() - started
            output = result.hit.output if result.hit is not None else artifact.digest()
            for note in artifact.facts.lineage[-1].get("notes", ()) if artifact.facts.lineage else ():
                notify(note)
            emit(StageFinished(name, number, artifact, seconds, key, parts, digest, output, result.stored, result.hit))
            digest = output
            if number == 1:
                for later in plan[1:]:
                    current = later.stage.name
                    later.stage.refuse_early(artifact.facts, later.config, **stage_context)
        assert artifact is not None
        emit(RunFinished(artifact))
    except BaseException as error:
        failed = RunFailed(error, current, killed=not isinstance(error, Exception))
        for listener in listeners:
            try:
                listener(failed)
            except (OSError, OrtpipeError) as another:  # such as a full disk: it must not hide the first error
                error.add_note(f"after it: {another}")
        raise
    return artifact


@dataclass(frozen=True)
class _Result:
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
    notify: Notify,
) -> _Result:
    """Take a stage's result from the store, or run the stage and keep its result."""
    if store is None:
        return _Result(step.stage(artifact, step.config, **context))
    name = step.stage.name
    if hit := _taken(store, name, key, artifact, notify):
        return hit
    with store.lock(key, notify):
        if hit := _taken(store, name, key, artifact, notify):  # what another process computed meanwhile
            return hit
        started = time.perf_counter()
        computed = step.stage(artifact, step.config, **context)
        seconds = time.perf_counter() - started
        if _changed(step, parts["input"], key, context):
            notify(f"what {name} reads changed while it ran: its result is not stored")
            return _Result(computed)
        try:
            entry = store.publish(name, key, parts, computed, seconds, notify)
        except OSError as error:
            notify(f"nothing can be kept in {store.folder}: {error.strerror or error}; the run goes on")
            return _Result(computed)
        return _Result(computed, store.artifact_folder(entry.output))


def _taken(store: Store, name: str, key: str, artifact: Artifact | None, notify: Notify) -> _Result | None:
    hit = store.take(name, key, artifact, notify)
    return None if hit is None else _Result(hit[0], store.artifact_folder(hit[1].output), hit[1])


def _changed(step: Step, digest: str | None, key: str, context: Mapping[str, Any]) -> bool:
    """Return whether a file that the stage reads is another one than when its key was made."""
    if any(isinstance(value, MayChange) and value.changed() for value in map(context.get, step.stage.reads)):
        return True
    return key_of(parts_of(step, digest, context)) != key
