"""ortpipe plan: what a run would take from the store, what it would compute, and why."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortpipe.app.compose import Parser, composition
from ortpipe.app.units import span

if TYPE_CHECKING:
    from ortpipe.pipeline.explain import Forecast

ABOUT = """Say of each stage whether a run with these settings would take it from the store (hit) or compute it (run),
and why: what differs from the nearest result that is stored. `after`: a stage behind one that runs is still
taken from the store if that one gives what it gave before. Reads the data; runs nothing."""
COLOURS = {"hit": "#d7f0d7", "run": "#ffd9b3", "after": "#fff3c4"}


def run(arguments: Sequence[str]) -> None:
    """Print the plan of what the arguments configure; with --check, exit with 1 if anything would run.

    Raises:
        ConfigError: the config has errors.
        DataError: the rows cannot be read.
    """
    parser = Parser("plan", ABOUT)
    parser.add_argument("--check", action="store_true", help="exit with 1 if any stage would run")
    parser.add_argument("--mermaid", action="store_true", help="print the flow as a Mermaid graph")
    given = parser.read(arguments)
    found = composition(given.overrides, given.config_dir)
    from ortpipe.app.assemble import context_of, plan_of, store_of
    from ortpipe.app.schema import build
    from ortpipe.data.split import load
    from ortpipe.pipeline.explain import foresee

    config = build(found.values, found.where)
    store = store_of(config, data=found.record["data"])
    context = context_of(config, load(config.data)) | {"report": None}
    forecasts = foresee(plan_of(config), context, store)
    print(mermaid(forecasts) if given.mermaid else table(forecasts))
    if given.check and any(forecast.fate != "hit" for forecast in forecasts):
        sys.exit(1)


def table(forecasts: Sequence[Forecast]) -> str:
    """Return a line per stage."""
    width = max(len(forecast.stage) for forecast in forecasts)
    return "\n".join(f"{forecast.stage:<{width}}  {forecast.fate:<5}  {_why(forecast)}" for forecast in forecasts)


def _why(forecast: Forecast) -> str:
    if forecast.entry is None:
        return ", ".join(forecast.reasons)
    maker = forecast.entry.run.get("folder", "another run")
    ago = span(time.time() - forecast.entry.made)
    return f"computed {ago} ago in {forecast.entry.seconds:.2f} s by {maker}"


def mermaid(forecasts: Sequence[Forecast]) -> str:
    """Return the flow as a Mermaid graph, a colour for each fate."""
    lines = ["flowchart LR"]
    for forecast in forecasts:
        why = "" if forecast.entry is not None else "<br/>" + "<br/>".join(map(_escaped, forecast.reasons))
        lines.append(f'  {forecast.stage}["{forecast.stage}: {forecast.fate}{why}"]:::{forecast.fate}')
    lines.append("  " + " --> ".join(forecast.stage for forecast in forecasts))
    lines += [f"  classDef {fate} fill:{colour},stroke:#555,color:#000" for fate, colour in COLOURS.items()]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "&lt;")
