"""What MLflow shows above a run's metrics, as Markdown: the flow, the metrics, the rows, the command."""

from ortpipe.app.run.record import COMMAND, RUNNING, RunRecord
from ortpipe.app.run.report import code, metrics_of, number, plain, seconds, stages_of

LONGEST = 5000  # characters, MLflow's limit of a tag
SHOWN = 30  # metrics
SUMMARY = "summary.md"  # of a sweep


def description(run: RunRecord) -> str:
    """Return a run's or a sweep's description: of what is known so far."""
    command = run.tags.get(COMMAND, "")
    command = command and code(command)  # a line of a block would not wrap, and push the page's right side out of view
    if run.sweep is not None:
        parts = [_summary(run), command]
    else:
        parts = [_flow(run), _metrics(run), _end(run), _rows(run), command, _notes(run)]
    text = ""
    for part in filter(None, parts):  # what does not fit is left out, whole
        text += f"{part}\n\n" if len(text) + len(part) < LONGEST else ""
    return text.rstrip()


def _summary(run: RunRecord) -> str:
    """Return what a sweep that has ended wrote for people."""
    file = run.folder / SUMMARY
    return "" if run.status == RUNNING or not file.is_file() else file.read_text(encoding="utf-8").rstrip()


def _flow(run: RunRecord) -> str:
    return " → ".join(f"{name} {code(choice)}" if choice else name for name, choice in run.plan.items())


def _end(run: RunRecord) -> str:
    if run.seconds is None:
        return ""
    stored = [stage["name"] for stage in stages_of(run) if stage["state"] == "stored"]
    took = f"{run.status.capitalize()} in {seconds(run.seconds)}"
    return f"{took}, of which {', '.join(stored)} came from the store." if stored else f"{took}."


def _notes(run: RunRecord) -> str:
    return "\n".join(f"- {stage}: {plain(note)}" for stage, found in run.notes.items() for note in found)


def _metrics(run: RunRecord) -> str:
    if not run.metrics or run.sweep is not None:
        return ""
    heads = {"before": "before", "trained": "trained", "int8": "int8", "source": plain(run.model.get("from", "source"))}
    heads = {state: head for state, head in heads.items() if any(state in values for values in run.metrics.values())}
    lines = [f"| metric | {' | '.join(heads.values())} |", f"|---|{'--:|' * len(heads)}"]
    for row in metrics_of(run.metrics)[:SHOWN]:
        cells = [f"{plain(row['name'])} {'↑' if row['up'] else '↓'}", *(number(row[state]) for state in heads)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(run: RunRecord) -> str:
    rows = ", ".join(f"{count:,} {part}" for part, count in run.data.get("rows", {}).items())
    source = run.data.get("source", {})
    name = source.get("path") or source.get("dataset") or source.get("name", "")
    return f"Rows of {code(name)}: {rows}." if rows else ""
