"""A live table of the running jobs of a sweep, on a terminal."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ortpipe.app.run.data_facts import in_words
from ortpipe.app.run.record import RUNNING, RunRecord
from ortpipe.app.sweep.job import Row, ending, read_jobs
from ortpipe.app.sweep.overrides import title
from ortpipe.app.sweep.summary import Summary
from ortpipe.app.table import aligned
from ortpipe.app.terminal import printable
from ortpipe.errors import TrackingError
from ortpipe.metrics.titles import heading

EVERY = 1.0  # seconds between two looks at the jobs
SHARE = 0.02  # the largest fraction of the time for looking
TAIL = 4096  # bytes of a log in which its last line is searched
CLEAR = "\x1b[{lines}F\x1b[J"  # moves the cursor up and clears the lines below


class LiveTable:
    """Draws the running jobs on standard error; a line above the table reports each job that ended.

    Jobs may be processes on other machines: the table shows the last lines of the logs in their folders.
    """

    def __init__(self, sweep: RunRecord, objective: str) -> None:
        self._sweep, self._objective = sweep, objective
        self._lines = 0  # of the table on the screen
        self._reported: set[int] = set()  # jobs whose end was printed
        self._data_reported = False
        self._drawing, self._closed = threading.Lock(), threading.Event()
        # A fork during drawing would give the new process locks that are never released.
        release = self._drawing.release
        os.register_at_fork(before=self._drawing.acquire, after_in_parent=release, after_in_child=release)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the last jobs' ends, and clear the table."""
        self._closed.set()
        self._thread.join()
        self._look()
        with contextlib.suppress(OSError):
            self._draw([])

    def _watch(self) -> None:
        pause = EVERY
        while not self._closed.wait(pause):
            began = time.monotonic()
            with self._drawing:
                self._look()
            pause = max(EVERY, (time.monotonic() - began) / SHARE)

    def _look(self) -> None:
        # The summary reports a damaged record; a missing file or terminal must not end the sweep.
        with contextlib.suppress(TrackingError, OSError):
            self._report(read_jobs(self._sweep))

    def _report(self, rows: Sequence[Row]) -> None:
        if not self._data_reported and rows and (data := rows[0].run.data):  # the same for all jobs
            self._data_reported = True
            self._print([f"data: {note}" for note in (in_words(data), *rows[0].run.notes.get("data", ()))])
        ended_jobs = [row for row in rows if row.run.status != RUNNING]
        for row in ended_jobs:
            if row.job.number not in self._reported:
                self._reported.add(row.job.number)
                self._print(ending(row).splitlines()[:1])  # the summary has the rest of an error
        running_jobs = [row for row in rows if row.run.status == RUNNING]
        columns, height = (size or 80 for size in os.get_terminal_size(sys.stderr.fileno()))  # 0 if unknown
        table = aligned([_cells(row) for row in running_jobs[: height - 3]])
        lines = [f"ended: {len(ended_jobs)}, running: {len(running_jobs)}{self._best(rows)}", *table] if rows else []
        self._draw([printable(line)[: columns - 1] for line in lines])

    def _best(self, rows: Sequence[Row]) -> str:
        summary = Summary(self._objective, rows)
        if (best := summary.best) is None:
            return ""
        column = summary.column
        return f", best: job {best.job.number}, {heading(column, best.run.values)} {best.run.values[column]:.4g}"

    def _print(self, lines: Sequence[str]) -> None:
        self._draw([])
        print(*lines, sep="\n", file=sys.stderr, flush=True)

    def _draw(self, lines: Sequence[str]) -> None:
        stream = sys.__stderr__  # our own stream would escape the control codes
        assert stream is not None
        stream.write((CLEAR.format(lines=self._lines) if self._lines else "") + "".join(f"{line}\n" for line in lines))
        stream.flush()
        self._lines = len(lines)


def _cells(row: Row) -> list[str]:
    stage, words = _progress(row.run.folder)
    return [f"job {row.job.number}", title(row.job.varies), stage, words]


def _progress(folder: Path) -> tuple[str, str]:
    """Return a job's current stage and the last line of its log."""
    logs = sorted((folder / "logs").glob("*.log"))
    if not logs:
        return "", ""
    with logs[-1].open("rb") as file:
        file.seek(-min(TAIL, os.path.getsize(logs[-1])), os.SEEK_END)
        lines = file.read().decode(errors="replace").splitlines()
    return logs[-1].stem.partition("_")[2], lines[-1].partition(" ")[2] if lines else ""


def can_draw() -> bool:
    """Return whether standard error is a terminal whose cursor can be moved."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb" if os.name == "posix" else "") != "dumb"
