"""report.md and report.html: a run on one page."""

from __future__ import annotations

import base64
import functools
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.app.drift import drift_table
from ortpipe.app.redact import redacted
from ortpipe.app.run.record import COMMAND, FAILED, FINISHED, KILLED, RUNNING, RunRecord, read_environment
from ortpipe.app.table import spread
from ortpipe.bounded import files_below, has_file, read, read_below
from ortpipe.files import atomic_write
from ortpipe.metrics.named import greater_is_better
from ortpipe.metrics.titles import STATES, columns_of, label

if TYPE_CHECKING:
    from jinja2 import Template

LARGEST = 2**18  # bytes of a graph's picture
TAIL = 40  # lines of the failing stage's log
LOG = 2**16  # the bytes at the end of the log in which these lines are searched
PNG = 2**24  # bytes of a figure
STATUS = {RUNNING: "running", FINISHED: "finished", FAILED: "failed", KILLED: "stopped"}
FIGURE = re.compile(r"figures/\w+\.png", re.ASCII)


def write_report(folder: Path) -> None:
    """Write both reports of a run from the files in its folder; a run that failed or was killed may lack some."""
    page = report_contents(folder)
    for name, template in templates().items():
        text = redacted(template.render(page))
        if name.endswith(".html"):
            text = embed_pictures(text, folder, page["figures"], page["graphs"])
        atomic_write(folder / name, text.encode(errors="backslashreplace"))  # names of files may hold undecodable bytes


@functools.cache  # compiling them takes three times as long as filling them in
def templates() -> dict[str, Template]:
    """Return the templates of both reports, by the names of their files."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(seconds=seconds, number=number, code=code, fenced=fenced, plain=plain, prod=math.prod)
    return {name: environment.get_template(f"{name}.jinja") for name in ("report.md", "report.html")}


def embed_pictures(html: str, folder: Path, figures: Iterable[str], graphs: Iterable[str] = ()) -> str:
    """Return a page with its pictures embedded, after redaction: searching pictures took a tenth of a run."""
    for name in figures:
        png = base64.b64encode(read_below(folder, f"figures/{name}.png", PNG)).decode()
        html = html.replace(f'src="figures/{name}.png"', f'src="data:image/png;base64,{png}"')
    for name in graphs:
        svg = base64.b64encode(read_below(folder, name)).decode()
        html = html.replace(f'src="{name}"', f'src="data:image/svg+xml;base64,{svg}"')
    return html


def report_contents(folder: Path) -> dict[str, Any]:
    """Return the values that the report's templates fill in."""
    run = RunRecord.read_closed(folder)
    log, stages = log_of(run, run.stage), stages_of(run)
    lines = [] if log is None else read(folder / log, LOG, end=True).decode(errors="replace").splitlines()
    drawings = files_below(folder, "figures") if run.stages else ()  # without stages they are an older run's
    pictures = [path.stem for path in drawings if FIGURE.fullmatch(path.relative_to(folder).as_posix())]
    return {
        "run": run,
        "status": STATUS[run.status],
        "started": datetime.fromtimestamp(run.started / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "command": run.tags.get(COMMAND, ""),
        "stages": stages,
        "saved": sum(s["record"].origin["seconds"] - s["record"].seconds for s in stages if s["state"] == "stored"),
        "metrics": metrics_of(run.metrics, run.folds),
        "columns": columns_of(run.metrics, str(run.model.get("from", "source"))),
        "intervals": run.intervals,
        "slices": run.slices,
        "drift": drift_table(run.drift),
        "figures": sorted(pictures, key=lambda name: (name != "losses", name)),
        "undrawn": shlex.join(["ortpipe", "report", str(run.folder)])
        if run.status == FINISHED and not pictures
        else None,
        "graphs": graphs_of(run),
        "parameters": run.model.get("parameters", {}),  # shapes by name
        "where": f" {'after' if run.stage in {s.name for s in run.stages} else 'at'} {run.stage}" if run.stage else "",
        "log": log,
        "tail": "\n".join(lines[-TAIL:]),
        "config": read_below(folder, "config.yaml").decode(errors="replace"),
        "environment": read_environment(folder) if has_file(folder, "environment.json") else {},
    }


def graphs_of(run: RunRecord) -> dict[str, str]:
    """Return the paths of the graphs' pictures, each with the names of its stages: equal graphs share a picture."""
    stages_by_file: dict[str, str] = {}
    last = b""
    for folder, stage in zip(run.stage_folders, run.stages, strict=True):
        name = f"stages/{folder}/model.svg"
        if not has_file(run.folder, name) or (run.folder / name).stat().st_size > LARGEST:
            continue
        picture = read_below(run.folder, name)
        if picture == last:
            *_, name = stages_by_file
            stages_by_file[name] += f", {stage.name}"
        else:
            stages_by_file[name], last = stage.name, picture
    return stages_by_file


def log_of(run: RunRecord, stage: str | None) -> str | None:
    """Return the path of a stage's log in the run's folder, or None if there is no log."""
    paths = [f"logs/{number}_{name}.log" for number, name in enumerate(run.plan, start=1) if name == stage]
    return next((path for path in paths if has_file(run.folder, path)), None)


def stages_of(run: RunRecord) -> list[dict[str, Any]]:
    """Return the stages of the plan: name, choice, state, log, and the record of a finished stage.

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


def metrics_of(
    metrics: Mapping[str, Mapping[str, float]], folds: Mapping[str, tuple[float, ...]]
) -> list[dict[str, Any]]:
    """Return a row per metric: its values by state, whether higher is better, and whether training beat the source."""
    rows = []
    for name, values in metrics.items():
        up, by_state = greater_is_better(name, recorded=True), {state: values.get(state, math.nan) for state in STATES}
        worse = by_state["trained"] < by_state["source"] if up else by_state["trained"] > by_state["source"]
        of_folds = spread(folds[name]) if name in folds else ""
        rows.append(
            {
                "name": label(name, metrics),
                "folds": of_folds,
                "up": up,
                "best": "source" if worse else "trained",
                **by_state,
            }
        )
    return rows


def seconds(value: float) -> str:
    """Return a duration in words.

    >>> seconds(0.0042), seconds(1.26), seconds(75), seconds(7325)
    ('0.004 s', '1.26 s', '1 min 15 s', '2 h 02 min')
    """
    if value < 60:
        return f"{value:.3f} s" if value < 0.1 else f"{value:.3g} s"
    minutes, remainder = divmod(round(value), 60)
    return f"{minutes} min {remainder:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def number(value: float) -> str:
    """Return a number with 4 decimals, 1 from 1,000 on, or 4 significant digits if it is very large or small.

    >>> number(0.97551), number(-3180.44), number(1.5e-9), number(math.nan)
    ('0.9755', '−3,180.4', '1.5e−09', '')
    """
    size = abs(value)
    form = ".4f" if size == 0 or 1e-3 <= size < 1e3 else ",.1f" if 1e3 <= size < 1e6 else ".4g"
    return "" if math.isnan(value) else f"{value:{form}}".replace("-", "−")


def plain(text: object) -> str:
    r"""Return text on one line with Markdown's special characters escaped.

    >>> print(plain("a|b <i> *c*"))
    a\|b \<i\> \*c\*
    """
    return re.sub(r"([\\`*_\[\]<>|&#~$])", r"\\\1", " ".join(str(text).split()))


def code(text: object) -> str:
    r"""Return text as inline code of Markdown that is also valid in a table.

    >>> print(code("a|b"), code("a`b"))
    `a\|b` `` a`b ``
    """
    line = " ".join(str(text).split()).replace("|", r"\|")
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return f"{ticks}{line}{ticks}" if len(ticks) == 1 else f"{ticks} {line} {ticks}"


def fenced(text: str, language: str = "text") -> str:
    """Return text as a code block of Markdown with a fence longer than any in the text."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
