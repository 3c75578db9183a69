"""ortpipe plan: a dry run, which stages would be taken from the store, which would be computed, and why."""

import sys
import time
from collections.abc import Sequence

import humanize

from ortpipe.app.assemble import open_run, plan_of, store_of
from ortpipe.app.compose import Parser
from ortpipe.app.table import aligned
from ortpipe.errors import under
from ortpipe.pipeline.dry_run import Reason, StageStatus, dry_run
from ortpipe.pipeline.flatten import differing
from ortpipe.pipeline.store import VARIABLE
from ortpipe.stages.convert.sources import Automatic

ABOUT = """Print for each stage whether a run with these settings would take its result from the store (hit) or
compute it (miss), and why: the differences from the nearest stored result. `blocked`: an earlier
stage would be computed; if it returns the same result as before, this stage is still a hit. Reads
the data; runs nothing."""
EXAMPLES = (
    "ortpipe plan",
    "ortpipe plan train.epochs=5 --mermaid",
)
COLOURS = {"hit": "#d7f0d7", "miss": "#ffd9b3", "blocked": "#fff3c4"}
MAX_REASONS = 5  # that are shown
REASON_TEXTS = {
    "no store": "there is no store: paths.cache is null",
    "nothing stored": "no result of this stage is stored",
    "unsealed": f"the stored result is not sealed with this {VARIABLE}",
    "evicted": "its artifact was removed from the store",
    "order": "the order of its config's entries",
}


def run(arguments: Sequence[str]) -> None:
    """Print the plan of the run that the arguments configure; with --check, exit with 1 if any stage would run."""
    parser = Parser("plan", ABOUT, EXAMPLES)
    parser.add_argument("--check", action="store_true", help="exit with 1 if any stage would run")
    parser.add_argument("--mermaid", action="store_true", help="print the flow as a Mermaid graph")
    options = parser.read(arguments)
    config = options.composed.config
    if config.start is not None:
        print(f"starts from {config.start}", file=sys.stderr)
    store = store_of(config, data=options.composed.record["data"])
    context = open_run(vars(config), store=store)
    if isinstance(config.convert.source, Automatic):
        with under("convert", "source"):
            print(config.convert.source.choice(context["data"]).note, file=sys.stderr)
    statuses = dry_run(plan_of(config), context, store)
    if store is not None and store.trouble is not None:
        print(store.trouble, file=sys.stderr)
    print(mermaid(statuses) if options.mermaid else table(statuses))
    if options.check and any(status.status != "hit" for status in statuses):
        sys.exit(1)


def table(statuses: Sequence[StageStatus]) -> str:
    """Return one line per stage."""
    return "\n".join(aligned([status.stage, status.status, _why(status)] for status in statuses))


def _why(status: StageStatus) -> str:
    if status.entry is None:
        return ", ".join(_reasons(status))
    producer = status.entry.run.get("folder", "another run")
    ago = humanize.naturaldelta(time.time() - status.entry.made)
    return f"computed {ago} ago in {status.entry.seconds:.2f} s by {producer}"


def _reasons(status: StageStatus) -> list[str]:
    texts = [_reason_text(reason, status) for reason in status.reasons]
    more = [f"and {len(texts) - MAX_REASONS} more"] if len(texts) > MAX_REASONS else []
    return [*texts[:MAX_REASONS], *more]


def _reason_text(reason: Reason, status: StageStatus) -> str:
    name = reason.name
    if reason.kind == "after":
        return f"after {name}"
    if reason.kind == "continued":
        return f"epochs {reason.old + 1} to {reason.new} to compute; 1 to {reason.old} from the store"
    if reason.kind != "changed":
        return REASON_TEXTS[reason.kind]
    if name == "data":
        changes = ", ".join(f"{key} {a} → {b}" for key, (a, b) in differing(*status.about).items())
        return changes or "the content of its data"
    if name == "input":
        return "its input"
    if name.endswith(".files"):
        return f"the content of {name.removesuffix('.files')}"
    if name == "version":
        name = f"{status.stage}'s code, version"
    return f"{name.removeprefix('packages.')} {reason.old} → {reason.new}"


def mermaid(statuses: Sequence[StageStatus]) -> str:
    """Return the flow as a Mermaid graph, with one colour per status."""
    lines = ["flowchart LR"]
    for status in statuses:
        why = "" if status.entry is not None else "<br/>" + "<br/>".join(map(_escape, _reasons(status)))
        lines.append(f'  {status.stage}["{status.stage}: {status.status}{why}"]:::{status.status}')
    lines.append("  " + " --> ".join(status.stage for status in statuses))
    lines += [f"  classDef {status} fill:{colour},stroke:#555,color:#000" for status, colour in COLOURS.items()]
    return "\n".join(lines)


def _escape(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "&lt;")
