"""report.md and report.html: a run on one page, for a person who was not there."""

import base64
import functools
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ortpipe.app.redact import redacted
from ortpipe.app.run.record import COMMAND, FAILED, FINISHED, KILLED, RUNNING, RunRecord
from ortpipe.app.run.report_text import code, fenced, number, plain, seconds
from ortpipe.files import atomic_write
from ortpipe.metrics import greater_is_better, label

TEMPLATES = Path(__file__).parent / "templates"
TAIL = 40  # lines of the failing stage's log
STATUS = {RUNNING: "running", FINISHED: "finished", FAILED: "failed", KILLED: "stopped"}
STATES = ("before", "trained", "source")


def write_report(folder: Path) -> None:
    """Write both reports of a run folder from its files, those that there are if the run failed or was killed."""
    page = gathered(folder)
    for name in ("report.md", "report.html"):
        text = redacted(_templates().get_template(f"{name}.jinja").render(page))
        atomic_write(folder / name, text.encode(errors="backslashreplace"))  # what names of files may hold


@functools.cache  # a sweep compiles them once
def _templates() -> Environment:
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
    run = RunRecord.read_closed(folder)
    log, stages = log_of(run, run.stage), stages_of(run)
    drawn = (folder / "figures").glob("*.png") if run.stages else ()  # else an older run's
    pictures = sorted(drawn, key=lambda path: (path.stem != "losses", path.stem))
    environment = folder / "environment.json"
    return {
        "run": run,
        "status": STATUS[run.status],
        "started": datetime.fromtimestamp(run.started / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "command": run.tags[COMMAND],
        "stages": stages,
        "saved": sum(s["record"].origin["seconds"] - s["record"].seconds for s in stages if s["state"] == "stored"),
        "metrics": metrics_of(run.metrics),
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
        "where": f" {'after' if run.stage in {s.name for s in run.stages} else 'at'} {run.stage}" if run.stage else "",
        "log": log,
        "tail": tail_of(folder, log),
        "config": (folder / "config.yaml").read_text(encoding="utf-8"),
        "environment": json.loads(environment.read_text(encoding="utf-8")) if environment.exists() else {},
    }


def log_of(run: RunRecord, stage: str | None) -> str | None:
    """Return where a stage's log is in the run's folder; None if it has none."""
    paths = [f"logs/{number}_{name}.log" for number, name in enumerate(run.plan, start=1) if name == stage]
    return next((path for path in paths if (run.folder / path).exists()), None)


def stages_of(run: RunRecord) -> list[dict[str, Any]]:
    """Return every stage of the plan: what is chosen for it, what became of it, its log, and its record if it finished.

    A `state` is computed, stored (taken from the store), failed, stopped, unfinished or waiting.
    """
    finished, stages = {stage.name: stage for stage in run.stages}, []
    for name, choice in run.plan.items():
        record, log = finished.get(name), log_of(run, name)
        if record is not None:
            state = "stored" if record.origin is not None else "computed"
        else:
            state = STATUS[run.status] if name == run.stage else "unfinished" if log is not None else "waiting"
        stages.append({"name": name, "choice": choice, "state": state, "log": log, "record": record})
    return stages


def tail_of(folder: Path, log: str | None) -> str:
    """Return the last lines of a log, if there is one."""
    path = folder / (log or "-")
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]) if path.exists() else ""


def metrics_of(metrics: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return a row per metric: its values by state, which way is better, whether training did as well as the source."""
    rows = []
    for name, values in metrics.items():
        up, by_state = greater_is_better(name), {state: values.get(state, math.nan) for state in STATES}
        worse = by_state["trained"] < by_state["source"] if up else by_state["trained"] > by_state["source"]
        rows.append({"name": label(name, metrics), "up": up, "wins": not worse, **by_state})
    return rows
