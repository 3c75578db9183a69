"""The description of a run in Markdown, which MLflow shows above its metrics: flow, metrics, rows and command."""

from ortpipe.app.run.record import COMMAND, RUNNING, RunRecord
from ortpipe.app.run.report import code, metrics_of, number, plain, seconds, stages_of
from ortpipe.bounded import has_file, read_below
from ortpipe.metrics.titles import columns_of

LONGEST = 5000  # characters, MLflow's limit for a tag
SHOWN = 30  # metrics
SUMMARY = "summary.md"  # of a sweep


def description(run: RunRecord) -> str:
    """Return the description of a run or a sweep with its results so far."""
    command = run.tags.get(COMMAND, "")
    command = command and code(command)  # a line in a code block would not wrap, and widen the page
    if run.sweep is not None:
        parts = [_summary(run), command]
    else:
        parts = [_flow(run), _metrics(run), _end(run), _rows(run), command, _notes(run)]
    text = ""
    for part in filter(None, parts):  # a part that does not fit is left out as a whole
        text += f"{part}\n\n" if len(text) + len(part) < LONGEST else ""
    return text.rstrip()


def _summary(run: RunRecord) -> str:
    """Return the summary that a finished sweep has written."""
    if run.status == RUNNING or not has_file(run.folder, SUMMARY):
        return ""
    return read_below(run.folder, SUMMARY).decode(errors="replace").rstrip()


def _flow(run: RunRecord) -> str:
    return " → ".join(f"{name} {code(choice)}" if choice else name for name, choice in run.plan.items())


def _end(run: RunRecord) -> str:
    if run.seconds is None:
        return ""
    stored_stages = [stage["name"] for stage in stages_of(run) if stage["state"] == "stored"]
    text = f"{run.status.capitalize()} in {seconds(run.seconds)}"
    return f"{text}, of which {', '.join(stored_stages)} came from the store." if stored_stages else f"{text}."


def _notes(run: RunRecord) -> str:
    return "\n".join(f"- {stage}: {plain(note)}" for stage, stage_notes in run.notes.items() for note in stage_notes)


def _metrics(run: RunRecord) -> str:
    if not run.metrics or run.sweep is not None:
        return ""
    heads = columns_of(run.metrics, str(run.model.get("from", "source")))
    lines = [f"| metric | {' | '.join(map(plain, heads.values()))} |", f"|---|{'--:|' * len(heads)}"]
    for row in metrics_of(run.metrics, run.folds)[:SHOWN]:
        cells = [f"{plain(row['name'])} {'↑' if row['up'] else '↓'}", *(number(row[state]) for state in heads)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(run: RunRecord) -> str:
    rows = ", ".join(f"{count:,} {plain(part)}" for part, count in run.data.get("rows", {}).items())
    source = run.data.get("source", {})
    name = source.get("path") or source.get("dataset") or source.get("name", "")
    return f"Rows of {code(name)}: {rows}." if rows else ""
