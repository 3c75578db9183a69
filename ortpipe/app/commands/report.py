"""ortpipe report: the figures and the report of runs, drawn when someone looks."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from ortpipe.app.compose import Parser
from ortpipe.app.run.folder import illustrate
from ortpipe.app.run.record import RUNNING, RunRecord
from ortpipe.app.tracking.sync import refuse_links, run_folders

ABOUT = """Draw the figures of runs that finished, and write report.md and report.html anew. A run draws its own when it
ends, unless figures=false; of a sweep's jobs only the best one's are drawn, the others' here; `ortpipe sync FOLDER`
records them later."""


def run(arguments: Sequence[str]) -> None:
    """Illustrate every run of the folders; one that goes on does so itself."""
    parser = Parser("report", ABOUT, overrides=False)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run's or a sweep's, or one above")
    folders = list(itertools.chain.from_iterable(map(run_folders, parser.read(arguments).folders)))
    records = [RunRecord.read_closed(folder) for folder in folders]
    for record in records:
        refuse_links(record.folder)
    for record in records:
        if record.sweep is None and record.status != RUNNING:
            illustrate(record)
            print(record.folder / "report.html", flush=True)
