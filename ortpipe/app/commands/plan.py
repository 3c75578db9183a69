"""ortpipe plan: what a run would take from the store, what it would compute, and why."""

import sys
import time
from collections.abc import Sequence

from ortpipe.app.assemble import open_run, plan_of, store_of
from ortpipe.app.compose import Parser
from ortpipe.app.table import aligned
from ortpipe.app.units import span
from ortpipe.pipeline.dry_run import Reason, StageStatus, dry_run
from ortpipe.pipeline.flatten import differing
from ortpipe.pipeline.trust import VARIABLE

ABOUT = """Say of each stage whether a run with these settings would take it from the store (hit) or compute it (miss),
and why: what differs from the nearest result that is stored. `blocked`: a stage behind one that is computed is
still taken from the store if that one gives what it gave before. Reads the data; runs nothing."""
COLOURS = {"hit": "#d7f0d7", "miss": "#ffd9b3", "blocked": "#fff3c4"}
MOST = 5  # reasons that are shown
WORDS = {
    "no store": "there is no store: paths.cache is null",
    "nothing stored": "nothing of it is stored",
    "unsealed": f"the one that is stored is not sealed with this {VARIABLE}",
    "evicted": "its artifact is gone from the store",
    "order": "the order of what its config holds",
}


def run(arguments: Sequence[str]) -> None:
    """Print the plan of what the arguments configure; with --check, exit with 1 if anything would run."""
    parser = Parser("plan", ABOUT)
    parser.add_argument("--check", action="store_true", help="exit with 1 if any stage would run")
    parser.add_argument("--mermaid", action="store_true", help="print the flow as a Mermaid graph")
    given = parser.read(arguments)
    config = given.composed.config
    store = store_of(config, data=given.composed.record["data"])
    statuses = dry_run(plan_of(config), open_run(vars(config)), store)
    print(mermaid(statuses) if given.mermaid else table(statuses))
    if given.check and any(status.status != "hit" for status in statuses):
        sys.exit(1)


def table(statuses: Sequence[StageStatus]) -> str:
    """Return a line per stage."""
    return "\n".join(aligned([status.stage, status.status, _why(status)] for status in statuses))


def _why(status: StageStatus) -> str:
    if status.entry is None:
        return ", ".join(_reasons(status))
    maker = status.entry.run.get("folder", "another run")
    ago = span(time.time() - status.entry.made)
    return f"computed {ago} ago in {status.entry.seconds:.2f} s by {maker}"


def _reasons(status: StageStatus) -> list[str]:
    shown = [_in_words(reason, status) for reason in status.reasons]
    return [*shown[:MOST], *([f"and {len(shown) - MOST} more"] if len(shown) > MOST else [])]


def _in_words(reason: Reason, status: StageStatus) -> str:
    name = reason.name
    if reason.kind == "after":
        return f"after {name}"
    if reason.kind != "changed":
        return WORDS[reason.kind]
    if name == "data":
        changed = ", ".join(f"{key} {a} → {b}" for key, (a, b) in differing(*status.about).items())
        return changed or "the content of its data"
    if name == "input":
        return "its input"
    if name.endswith(".files"):
        return f"the content of {name.removesuffix('.files')}"
    if name == "version":
        name = f"{status.stage}'s code, version"
    return f"{name.removeprefix('packages.')} {reason.old} → {reason.new}"


def mermaid(statuses: Sequence[StageStatus]) -> str:
    """Return the flow as a Mermaid graph, a colour for each status."""
    lines = ["flowchart LR"]
    for status in statuses:
        why = "" if status.entry is not None else "<br/>" + "<br/>".join(map(_escaped, _reasons(status)))
        lines.append(f'  {status.stage}["{status.stage}: {status.status}{why}"]:::{status.status}')
    lines.append("  " + " --> ".join(status.stage for status in statuses))
    lines += [f"  classDef {status} fill:{colour},stroke:#555,color:#000" for status, colour in COLOURS.items()]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "&lt;")
