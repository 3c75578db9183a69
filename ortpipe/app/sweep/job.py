"""One job of a sweep: it knows its sweep, and however it ends is written into its folder."""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hydra.conf import HydraConf

from ortpipe.app.claim import claimed
from ortpipe.app.redact import hidden, redacted
from ortpipe.app.run.process import PID, gone, this_process
from ortpipe.app.run.record import FAILED, FILE, FINISHED, JobRecord, Manifest, RunRecord, is_copy
from ortpipe.app.stop import Stopped
from ortpipe.app.sweep.overrides import title, varying
from ortpipe.app.tracking.client import PARENT
from ortpipe.errors import ConfigError, TrackingError
from ortpipe.files import atomic_write

EVERY = 1.0  # seconds between two looks at the process that leads the sweep
_leader: Mapping[str, str] | None = None  # of the latest job
_at_work = threading.Event()


class Row(NamedTuple):
    """A job of a sweep that began, and its record."""

    job: JobRecord
    run: RunRecord


class Job:
    """The job that Hydra started, and its record, which the run completes."""

    def __init__(self, hydra: HydraConf) -> None:
        sweep, self.manifest = read_sweep(Path(hydra.sweep.dir))
        self.leader, self._looked = sweep.tags, 0.0  # the process that leads the sweep, and when it was looked for
        varies = hidden(varying(list(hydra.overrides.task), self.manifest.fixed))
        self.job = JobRecord(sweep.id, int(hydra.job.num), varies)
        tags = {"ortpipe.sweep": str(sweep.folder), "ortpipe.job": str(self.job.number), **this_process()}
        if sweep.mlflow is not None:
            tags[PARENT] = sweep.mlflow
        self.record = RunRecord(Path(hydra.runtime.output_dir), title(varies), tags, job=self.job)

    def stop_with_leader(self) -> None:
        """Stop the run if the process that leads the sweep was killed and left its workers behind."""
        if time.monotonic() - self._looked > EVERY:
            if gone(self.leader):
                raise Stopped(signal.SIGTERM)
            self._looked = time.monotonic()


def run_job(hydra: HydraConf, run: Callable[[Job], object]) -> float | None:
    """Run a job where its sweep was started; return its objective, or None if it failed: the other jobs go on.

    Whatever it raises is printed and kept in the job's folder; what stops it (Ctrl-C) stops the sweep. A worker that a
    killed sweep left behind may still be at work in the folder, and is waited for.
    """
    job = Job(hydra)
    folder, number = job.record.folder, job.job.number
    rule, fix = "Every job of a sweep has a folder of its own.", "Let hydra.sweep.subdir hold ${hydra:job.num}."
    if folder.resolve() == Path(hydra.sweep.dir).resolve():
        raise ConfigError(rule, got=f"job {number} in {folder}, which is the sweep's", fix=fix)
    with claimed(folder, "hydra.sweep.dir", wait=True):
        other = RunRecord.read(folder).job if (folder / FILE).exists() else None
        if other is not None and other.sweep == job.job.sweep and other.number != number:
            raise ConfigError(rule, got=f"job {number} in {folder}, which is the other job's", fix=fix)
        with at_work(job.leader):
            return _run(job, run)


@contextlib.contextmanager
def at_work(leader: Mapping[str, str]) -> Iterator[None]:
    """Work on a job; from now on this process ends if it has none and the leader was killed.

    A job that is under way is stopped by itself, with its state written: see `Job.stop_with_leader`.
    """
    global _leader
    first, _leader = _leader is None, leader
    _at_work.set()
    if first and leader.get(PID) != str(os.getpid()):
        threading.Thread(target=_watch, daemon=True).start()
    try:
        yield
    finally:
        _at_work.clear()


def _watch() -> None:
    while _at_work.is_set() or not gone(_leader or {}):
        time.sleep(EVERY)
    os._exit(128 + signal.SIGTERM)


def _run(job: Job, run: Callable[[Job], object]) -> float | None:
    record, error_file = job.record, job.record.folder / "error.txt"
    for earlier in (error_file, record.folder / "config.yaml"):  # of an earlier sweep into the same folder
        earlier.unlink(missing_ok=True)
    record.write()
    try:
        # Where the sweep was started, which a cluster's worker is not in
        with contextlib.chdir(job.manifest.cwd) if os.path.isdir(job.manifest.cwd) else contextlib.nullcontext():
            run(job)
    except Exception as error:  # noqa: BLE001 - a job that fails stops no other, whatever it raises
        reason = redacted(str(error)) or type(error).__name__
        atomic_write(error_file, redacted("".join(traceback.format_exception(error))))
        if record.status != FAILED:
            record.end(FAILED, reason)
        notes = getattr(error, "__notes__", [])  # its stage, log, and the command that does what is left
        if not job.manifest.live:
            print(ending(Row(job.job, record)), *notes, sep="\n", file=sys.stderr, flush=True)
        return None
    except BaseException:  # Ctrl-C and SIGTERM: the folder says that the job was stopped
        record.abandon("stopped")
        if gone(job.leader):
            os._exit(128 + signal.SIGTERM)  # nobody waits for this worker
        raise
    if not job.manifest.live:
        print(ending(Row(job.job, record)), flush=True)
    return record.values.get(job.manifest.objective)


def ending(row: Row) -> str:
    """Return in a line how a job ended, and what came of it; an error has more lines."""
    called, run = f"job {row.job.number} ({title(row.job.varies)})", row.run
    if run.status != FINISHED:
        return f"{called} {'failed' if run.status == FAILED else 'was stopped'}: {run.error}"
    return f"{called} finished: {', '.join(f'{name} {value:.4g}' for name, value in run.values.items())}"


def read_sweep(folder: Path) -> tuple[RunRecord, Manifest]:
    """Return the record of a sweep, and what its jobs share."""
    record = RunRecord.read(folder)
    if record.sweep is None:
        fix = "Start the sweep again, in a folder of its own."
        raise TrackingError("A job's sweep has a folder of its own.", got=f"{folder}, where a run was started", fix=fix)
    return record, record.sweep


def read_jobs(sweep: RunRecord) -> list[Row]:
    """Return every job of a sweep that began, in their order; not those of an earlier sweep into its folder."""
    folders = [file.parent for file in sweep.folder.rglob(FILE)]
    records = [RunRecord.read(folder) for folder in folders if folder != sweep.folder and not is_copy(folder)]
    rows = [Row(run.job, run) for run in records if run.job is not None and run.job.sweep == sweep.id]
    return sorted(rows, key=lambda row: row.job.number)
