"""Run a plan: pass each stage's artifact to the next, reuse stored results, and notify listeners."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.artifact import Artifact
from ortpipe.doors import later
from ortpipe.errors import OrtpipeError
from ortpipe.pipeline import events
from ortpipe.pipeline.digest import Parts, key_of, parts_of
from ortpipe.pipeline.locks import Notify
from ortpipe.pipeline.plan import Plan, Step
from ortpipe.pipeline.store import Entry, Store

if TYPE_CHECKING:  # for runs with a store
    from ortpipe.pipeline.continued import start
else:
    later(__name__)


def run(
    plan: Plan, context: Mapping[str, Any], listeners: Sequence[events.Listener] = (), store: Store | None = None
) -> Artifact:
    """Run the plan and return the last stage's artifact.

    The context holds the stages' keyword arguments, such as `data` and `runtime`. Listeners get every event, in order.
    Results are read from and written to the store; without one every stage runs.
    """

    emit, notices = _emitter(listeners), set[str]()
    finished: events.StageFinished | None = None
    current = ""  # the stage that an error is about
    try:
        emit(events.RunStarted(plan))
        for number, step in enumerate(plan, start=1):
            current = step.stage.name
            emit(events.StageStarted(current, number, len(plan)))
            finished = _run_stage(step, number, finished, context, store, emit, notices)
            emit(finished)
            if number == 1:
                expected = finished.artifact.facts
                for later in plan[1:]:
                    current = later.stage.name
                    expected = later.stage.check_early(expected, later.config, **{**context, "report": emit})
        assert finished is not None
        emit(events.RunFinished(finished.artifact))
    except BaseException as error:
        failed = events.RunFailed(error, current, killed=not isinstance(error, Exception))
        for listener in listeners:
            try:
                listener(failed)
            except (OSError, OrtpipeError) as later_error:  # a full disk, say, must not hide the first error
                error.add_note(f"after it: {later_error}")
        raise
    return finished.artifact


def _emitter(listeners: Sequence[events.Listener]) -> events.Listener:
    """Return a function that sends an event to all listeners, in order."""

    def emit(event: events.Event) -> None:
        for listener in listeners:
            listener(event)

    return emit


def _run_stage(
    step: Step,
    number: int,
    before: events.StageFinished | None,
    context: Mapping[str, Any],
    store: Store | None,
    emit: events.Listener,
    notices: set[str],
) -> events.StageFinished:
    """Run a stage or load its result, and send the events until it is finished; `notices` are those of the run."""
    name, started = step.stage.name, time.perf_counter()

    def report(progress: object) -> None:
        emit(events.StageProgressed(name, progress, time.perf_counter() - started))

    def notify(message: str, *, stored: bool = False) -> None:
        if message not in notices:  # a store that cannot be written is reported once
            notices.add(message)
            emit(events.StageNotice(name, message, stored))

    stage_context = {**context, "report": report}
    parts = parts_of(step, None if before is None else before.output, stage_context)
    key, previous = key_of(parts), None if before is None else before.artifact
    artifact, stored, hit = _run_or_load(step, previous, parts, key, stage_context, store, notify)
    seconds = time.perf_counter() - started
    digest = hit.output if hit is not None else artifact.digest()
    for note in artifact.facts.lineage[-1].get("notes", ()) if artifact.facts.lineage else ():
        notify(note, stored=hit is not None)
    return events.StageFinished(name, number, artifact, seconds, key, parts, digest, stored, hit)


def _run_or_load(
    step: Step,
    artifact: Artifact | None,
    parts: Parts,
    key: str,
    context: Mapping[str, Any],
    store: Store | None,
    notify: Notify,
) -> tuple[Artifact, Path | None, Entry | None]:
    """Return a stage's result, its folder in the store, and for a hit the store's entry."""
    name = step.stage.name

    def compute() -> Artifact:
        more = {}
        if store is not None and step.stage.continued is not None and context["start"] is None:
            more = start(step, artifact, parts, context, store, notify, _run_or_load)
        context["report"](events.Began())
        return step.stage(artifact, step.config, **{**context, **more})

    if store is None:
        return compute(), None, None
    cached = store.take(name, key, artifact, notify)
    with contextlib.nullcontext() if cached else store.lock(key, notify):
        cached = cached or store.take(name, key, artifact, notify)  # another process may have computed it meanwhile
        if cached:
            return cached[0], store.artifact_folder(cached[1].output), cached[1]
        started = time.perf_counter()
        result = compute()
        seconds = time.perf_counter() - started
        changed = any(
            context[name_read].changed() for name_read in step.stage.reads if hasattr(context[name_read], "changed")
        )
        if changed or key_of(parts_of(step, parts["input"], context)) != key:
            notify(f"the data or files that {name} reads changed while it ran: its result is not stored")
            return result, None, None
        try:
            entry = store.publish(name, key, parts, result, seconds, notify)
        except OSError as error:
            notify(f"cannot write to the store {store.folder}: {error.strerror or error}; the run continues")
            return result, None, None
        return result, store.artifact_folder(entry.output), None
