"""ortpipe report: draw the figures of finished runs and write their reports."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from ortpipe.app.compose import Parser
from ortpipe.app.run.folder import illustrate
from ortpipe.app.run.record import RUNNING, RunRecord
from ortpipe.app.tracking import run_folders

ABOUT = """Draw the figures of finished runs, and write report.md and report.html again. A run draws its
figures when it ends, unless figures=false; a sweep draws only those of its best job, and this
command draws the others. `ortpipe sync FOLDER` then records them."""
EXAMPLES = (
    "ortpipe report outputs/runs/DATE/TIME",
    "ortpipe report outputs/multiruns/DATE/TIME",
)


def run(arguments: Sequence[str]) -> None:
    """Draw the figures of every run in the folders, except for runs in progress, which draw their own."""
    parser = Parser("report", ABOUT, EXAMPLES, overrides=False)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="of a run or a sweep, or a parent of several"
    )
    folders = list(itertools.chain.from_iterable(map(run_folders, parser.read(arguments).folders)))
    records = [RunRecord.read_closed(folder) for folder in folders]
    for record in records:
        if record.sweep is None and record.status != RUNNING:
            illustrate(record)
            print(record.folder / "report.html", flush=True)
