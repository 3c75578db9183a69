"""report.md and report.html: a run on one page, for a person who was not there."""

from __future__ import annotations

import base64
import functools
import json
import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.app.redact import redacted
from ortpipe.app.run.report_text import code, fenced, number, plain, seconds
from ortpipe.app.run.state import COMMAND, FAILED, FINISHED, KILLED, RUNNING, RunState
from ortpipe.errors import TrackingError
from ortpipe.files import whole_file
from ortpipe.metrics import greater_is_better, label
from ortpipe.pipeline.events import Event, RunFailed, RunFinished, StageFinished

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
TAIL = 40  # lines of the failing stage's log
STATUS = {RUNNING: "running", FINISHED: "finished", FAILED: "failed", KILLED: "stopped"}
STATES = ("before", "trained", "source")


class Report:
    """Writes a run's reports at its end, and adds to the error that ended it what its user needs next.

    These notes say which stage was at work, where its log and the report are, and the command that does what is left.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._stored: list[str] = []

    def __call__(self, event: Event) -> None:
        """Listen."""
        if isinstance(event, StageFinished) and event.stored is not None:
            self._stored.append(event.name)
        if isinstance(event, RunFinished):
            try:
                write_report(self._state.folder)
            except (OSError, TrackingError) as error:  # the run has finished, whatever becomes of its page
                folder, (reason, *_) = self._state.folder, str(error).splitlines()
                print(f"warning: no report of {folder}: {reason}; the run has finished.", file=sys.stderr)
        elif isinstance(event, RunFailed):
            try:
                write_report(self._state.folder)
            finally:
                if self._state.status != FINISHED:
                    for name, value in self._way_on(event.stage).items():
                        event.error.add_note(f"{name:<14} {value}")

    def _way_on(self, stage: str) -> dict[str, Any]:
        folder, found = self._state.folder, log_of(self._state, stage)
        log = {"stage": stage, "its log": folder / found} if found is not None else {}
        report = {"report": folder / "report.html"} if (folder / "report.html").is_file() else {}
        stored = {"in the store": ", ".join(self._stored)} if self._stored else {}
        again = {"continue with:": self._state.again} if self._state.again is not None else {}
        return {**log, **report, **stored, **again}


def write_report(folder: Path) -> None:
    """Write both reports of a run folder from its files, those that there are if the run failed or was killed."""
    page = gathered(folder)
    for name in ("report.md", "report.html"):
        text = redacted(_templates().get_template(f"{name}.jinja").render(page))
        whole_file(folder / name, text.encode(errors="backslashreplace"))  # what names of files may hold


@functools.cache  # a sweep compiles them once
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(seconds=seconds, number=number, code=code, fenced=fenced, plain=plain)
    return templates


def gathered(folder: Path) -> dict[str, Any]:
    """Return what a report says of the run in a folder."""

    def read(name: str) -> Any:
        path = folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    run = RunState.read(folder)
    results = {name: read(name) if run.stages else {} for name in ("lock.json", "metrics.json")}  # else an older run's
    done = {stage["stage"]: stage for stage in results["lock.json"].get("stages", [])}
    stages = stages_of(run, done)
    drawn = (folder / "figures").glob("*.png") if run.stages else ()
    pictures = sorted(drawn, key=lambda path: (path.stem != "losses", path.stem))
    return {
        "run": run,
        "status": STATUS[run.status],
        "started": datetime.fromtimestamp(run.started / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "took": (run.ended - run.started) / 1000 if run.ended is not None else None,
        "mlflow": read("mlflow.json").get("run_id"),
        "command": run.tags[COMMAND],
        "stages": stages,
        "saved": sum(stage["of"]["seconds"] - stage["seconds"] for stage in stages if stage["of"]),
        "metrics": metrics_of(results["metrics.json"]),
        "figures": [
            {
                "name": path.stem,
                "path": path.relative_to(folder).as_posix(),
                "data": base64.b64encode(path.read_bytes()).decode(),
            }
            for path in pictures
        ],
        "parameters": [
            {"name": name, "shape": " × ".join(map(str, shape)) or "scalar", "count": math.prod(shape)}
            for name, shape in run.model.get("parameters", {}).items()
        ],
        "where": f" {'after' if run.stage in done else 'at'} {run.stage}" if run.stage else "",
        "log": log_of(run, run.stage),
        "tail": tail_of(folder, log_of(run, run.stage)),
        "config": (folder / "config.yaml").read_text(encoding="utf-8"),
        "environment": read("environment.json"),
    }


def log_of(run: RunState, stage: str | None) -> str | None:
    """Return where a stage's log is in the run's folder; None if it has none."""
    found = [f"logs/{number}_{name}.log" for number, name in enumerate(run.plan, start=1) if name == stage]
    return next((path for path in found if (run.folder / path).exists()), None)


def stages_of(run: RunState, done: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every stage of the plan: what is chosen for it, what became of it, in how many seconds.

    `done` are the parts of the lock file by stage. A `state` is computed, stored (taken from the store `of` another
    run), failed, stopped, unfinished or waiting.
    """
    stages = []
    for name, choice in run.plan.items():
        lock, log = done.get(name), log_of(run, name)
        if lock is not None:
            state = "stored" if lock["hit"] else "computed"
        else:
            state = STATUS[run.status] if name == run.stage else "unfinished" if log is not None else "waiting"
        stages.append(
            {
                "name": name,
                "choice": choice,
                "state": state,
                "seconds": lock["seconds"] if lock else None,
                "of": lock["from"] if lock else None,
                "log": log,
                "lock": lock,
            }
        )
    return stages


def tail_of(folder: Path, log: str | None) -> str:
    """Return the last lines of a log, if there is one."""
    path = folder / (log or "-")
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]) if path.exists() else ""


def metrics_of(metrics: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return a row per metric: its values by state, which way is better, whether training did as well as the source."""
    rows = []
    for name, values in metrics.items():
        up, known = greater_is_better(name), {state: values.get(state, math.nan) for state in STATES}
        worse = known["trained"] < known["source"] if up else known["trained"] > known["source"]
        rows.append({"name": label(name, metrics), "up": up, "wins": not worse, **known})
    return rows
