"""Running a plan: each stage's artifact goes to the next, what is stored is taken, and listeners hear of everything."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortpipe.artifact import Artifact
from ortpipe.errors import OrtpipeError
from ortpipe.pipeline import events
from ortpipe.pipeline.digest import Parts, key_of, parts_of
from ortpipe.pipeline.locks import Notify
from ortpipe.pipeline.plan import Plan, Step
from ortpipe.pipeline.store import Entry, Store


def run(
    plan: Plan, context: Mapping[str, Any], listeners: Sequence[events.Listener] = (), store: Store | None = None
) -> Artifact:
    """Return the last stage's artifact. What stages read by keyword, such as `data` and `runtime`, is the context.

    Listeners are called with every event, in order. Results are taken from the store and kept there; without one every
    stage runs.
    """

    def emit(event: events.Event) -> None:
        for listener in listeners:
            listener(event)

    artifact, digest, current = None, None, ""
    notices: set[str] = set()
    try:
        emit(events.RunStarted(plan))
        for number, step in enumerate(plan, start=1):
            current = name = step.stage.name
            emit(events.StageStarted(name, number, len(plan)))
            started = time.perf_counter()

            def report(progress: object, name: str = name, started: float = started) -> None:
                emit(events.StageProgressed(name, progress, time.perf_counter() - started))

            def notify(message: str, name: str = name, *, stored: bool = False) -> None:
                if message not in notices:  # of a store that cannot be written, once is enough
                    notices.add(message)
                    emit(events.StageNotice(name, message, stored))

            stage_context = {**context, "report": report}
            parts = parts_of(step, digest, stage_context)
            key = key_of(parts)
            artifact, stored, hit = _performed(step, artifact, parts, key, stage_context, store, notify)
            seconds = time.perf_counter() - started
            output = hit.output if hit is not None else artifact.digest()
            for note in artifact.facts.lineage[-1].get("notes", ()) if artifact.facts.lineage else ():
                notify(note, stored=hit is not None)
            emit(events.StageFinished(name, number, artifact, seconds, key, parts, output, stored, hit))
            digest = output
            if number == 1:
                foreseen = artifact.facts
                for later in plan[1:]:
                    current = later.stage.name
                    foreseen = later.stage.refuse_early(foreseen, later.config, **stage_context)
        assert artifact is not None
        emit(events.RunFinished(artifact))
    except BaseException as error:
        failed = events.RunFailed(error, current, killed=not isinstance(error, Exception))
        for listener in listeners:
            try:
                listener(failed)
            except (OSError, OrtpipeError) as another:  # such as a full disk: it must not hide the first error
                error.add_note(f"after it: {another}")
        raise
    return artifact


def _performed(
    step: Step,
    artifact: Artifact | None,
    parts: Parts,
    key: str,
    context: Mapping[str, Any],
    store: Store | None,
    notify: Notify,
) -> tuple[Artifact, Path | None, Entry | None]:
    """Return a stage's result, the folder where the store holds it, and the entry that it was taken from."""
    name = step.stage.name
    if store is None:
        return step.stage(artifact, step.config, **context), None, None
    taken = store.take(name, key, artifact, notify)
    with contextlib.nullcontext() if taken else store.lock(key, notify):
        if taken := taken or store.take(name, key, artifact, notify):  # what another process computed meanwhile
            return taken[0], store.artifact_folder(taken[1].output), taken[1]
        started = time.perf_counter()
        computed = step.stage(artifact, step.config, **context)
        seconds = time.perf_counter() - started
        changed = any(context[read].changed() for read in step.stage.reads if hasattr(context[read], "changed"))
        if changed or key_of(parts_of(step, parts["input"], context)) != key:
            notify(f"what {name} reads changed while it ran: its result is not stored")
            return computed, None, None
        try:
            entry = store.publish(name, key, parts, computed, seconds, notify)
        except OSError as error:
            notify(f"nothing can be kept in {store.folder}: {error.strerror or error}; the run goes on")
            return computed, None, None
        return computed, store.artifact_folder(entry.output), None
