"""Running a plan: each stage's artifact goes to the next, and everything is told to the listeners."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ortpipe.artifact import Artifact
from ortpipe.pipeline.events import (
    Event,
    Listener,
    RunFailed,
    RunFinished,
    RunStarted,
    StageFinished,
    StageProgressed,
    StageStarted,
)
from ortpipe.pipeline.plan import Plan


def run(plan: Plan, context: Mapping[str, Any], listeners: Sequence[Listener] = ()) -> Artifact:
    """Return the last stage's artifact.

    Args:
        plan: stages with their configs, in order.
        context: what stages read by keyword, such as `data` and `runtime`; `report` is added.
        listeners: called with every event, in order.
    """

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    started, artifact, current = time.perf_counter(), None, ""
    try:
        tell(RunStarted(plan))
        for number, step in enumerate(plan, start=1):
            current = name = step.stage.name
            tell(StageStarted(name, number, len(plan)))
            begun = time.perf_counter()

            def report(progress: object, name: str = name) -> None:
                tell(StageProgressed(name, progress))

            artifact = step.stage(artifact, step.config, **{**context, "report": report})
            tell(StageFinished(name, number, artifact, time.perf_counter() - begun))
            if number == 1:
                for later in plan[1:]:
                    current = later.stage.name
                    later.stage.refuse_early(artifact.facts, later.config, **{**context, "report": report})
        assert artifact is not None
        tell(RunFinished(artifact, time.perf_counter() - started))
    except BaseException as error:
        tell(RunFailed(error, current, killed=not isinstance(error, Exception)))
        raise
    return artifact
