"""A table of the jobs at work, which a terminal shows until they end."""

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
from ortpipe.metrics import label

EVERY = 1.0  # seconds between two looks at the jobs
SHARE = 0.02  # of the time that looking may take
TAIL = 4096  # bytes of a log that hold its last line
CLEAR = "\x1b[{lines}F\x1b[J"  # the cursor goes up, and what is below it goes


class LiveTable:
    """Draws the jobs at work on standard error, by their folders; a job that ended has a line above.

    Jobs may be processes of other machines: what they do is the last line of their logs.
    """

    def __init__(self, sweep: RunRecord, objective: str) -> None:
        self._sweep, self._objective = sweep, objective
        self._lines = 0  # that are drawn
        self._told: set[int] = set()  # jobs whose end was said
        self._told_data = False
        self._drawing, self._over = threading.Lock(), threading.Event()
        # A fork in the midst of drawing would give the new process locks that nobody lets go.
        release = self._drawing.release
        os.register_at_fork(before=self._drawing.acquire, after_in_parent=release, after_in_child=release)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say how the last jobs ended, and take the table away."""
        self._over.set()
        self._thread.join()
        self._look()
        with contextlib.suppress(OSError):
            self._draw([])

    def _watch(self) -> None:
        pause = EVERY
        while not self._over.wait(pause):
            began = time.monotonic()
            with self._drawing:
                self._look()
            pause = max(EVERY, (time.monotonic() - began) / SHARE)

    def _look(self) -> None:
        # A record that is damaged, the summary names; a file, or the terminal, that is gone ends no sweep.
        with contextlib.suppress(TrackingError, OSError):
            self._tell(read_jobs(self._sweep))

    def _tell(self, rows: Sequence[Row]) -> None:
        if not self._told_data and rows and (data := rows[0].run.data):  # the first job's speak for all
            self._told_data = True
            self._say([f"data: {note}" for note in (in_words(data), *rows[0].run.notes.get("data", ()))])
        ended = [row for row in rows if row.run.status != RUNNING]
        for row in ended:
            if row.job.number not in self._told:
                self._told.add(row.job.number)
                self._say(ending(row).splitlines()[:1])  # the summary has the rest of an error
        at_work = [row for row in rows if row.run.status == RUNNING]
        columns, height = (size or 80 for size in os.get_terminal_size(sys.stderr.fileno()))  # 0 where it is unknown
        table = aligned([_cells(row) for row in at_work[: height - 3]])
        lines = [f"ended: {len(ended)}, at work: {len(at_work)}{self._best(rows)}", *table] if rows else []
        self._draw([printable(line)[: columns - 1] for line in lines])

    def _best(self, rows: Sequence[Row]) -> str:
        best = next(iter(Summary(self._objective, rows).ranked), None)
        return "" if best is None else f", best: job {best.job.number}, {_value(self._objective, best)}"

    def _say(self, lines: Sequence[str]) -> None:
        self._draw([])
        print(*lines, sep="\n", file=sys.stderr, flush=True)

    def _draw(self, lines: Sequence[str]) -> None:
        stream = sys.__stderr__  # what our own stream would do with the codes is to make them visible
        assert stream is not None
        stream.write((CLEAR.format(lines=self._lines) if self._lines else "") + "".join(f"{line}\n" for line in lines))
        stream.flush()
        self._lines = len(lines)


def _value(name: str, row: Row) -> str:
    return f"{label(name, row.run.values)} {row.run.values[name]:.4g}"


def _cells(row: Row) -> list[str]:
    stage, words = _at_work(row.run.folder)
    return [f"job {row.job.number}", title(row.job.varies), stage, words]


def _at_work(folder: Path) -> tuple[str, str]:
    """Return the stage that a job is at, and what its log said last."""
    logs = sorted((folder / "logs").glob("*.log"))
    if not logs:
        return "", ""
    with logs[-1].open("rb") as file:
        file.seek(-min(TAIL, os.path.getsize(logs[-1])), os.SEEK_END)
        lines = file.read().decode(errors="replace").splitlines()
    return logs[-1].stem.partition("_")[2], lines[-1].partition(" ")[2] if lines else ""


def can_draw() -> bool:
    """Return whether standard error is a terminal that moves its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb" if os.name == "posix" else "") != "dumb"
