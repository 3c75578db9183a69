"""Run one job of a sweep, and write its outcome into its folder."""

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
from ortpipe.app.tracking import PARENT
from ortpipe.bounded import files_below, has_file
from ortpipe.errors import ConfigError, TrackingError
from ortpipe.files import atomic_write
from ortpipe.metrics.named import objective_in
from ortpipe.metrics.titles import heading

EVERY = 1.0  # seconds between two checks of the sweep's own process
_leader: Mapping[str, str] | None = None  # of the latest job
_at_work = threading.Event()


class Row(NamedTuple):
    """A started job of a sweep, and its record."""

    job: JobRecord
    run: RunRecord


class Job:
    """The job that Hydra has started, with its record, which the run completes."""

    def __init__(self, hydra: HydraConf) -> None:
        sweep, self.manifest = read_sweep(Path(hydra.sweep.dir))
        self.leader = sweep.tags  # of the sweep's own process
        self._looked = 0.0  # time of the last check
        varied = hidden(varying(list(hydra.overrides.task), self.manifest.fixed))
        self.job = JobRecord(sweep.id, int(hydra.job.num), varied)
        tags = {"ortpipe.sweep": str(sweep.folder), "ortpipe.job": str(self.job.number), **this_process()}
        if sweep.mlflow is not None:
            tags[PARENT] = sweep.mlflow
        self.record = RunRecord(Path(hydra.runtime.output_dir), title(varied), tags, job=self.job)

    def stop_with_leader(self) -> None:
        """Stop the run if the sweep's own process was killed."""
        if time.monotonic() - self._looked > EVERY:
            if gone(self.leader):
                raise Stopped(signal.SIGTERM)
            self._looked = time.monotonic()


def run_job(hydra: HydraConf, run: Callable[[Job], object]) -> float | None:
    """Run a job in the folder where its sweep was started; return its objective, or None if it failed.

    An exception is printed and written into the job's folder, and the other jobs go on; Ctrl-C stops the sweep. If a
    worker of a killed sweep is still writing the folder, the job waits for it.
    """
    job = Job(hydra)
    folder, number = job.record.folder, job.job.number
    rule, fix = "Every job of a sweep must have its own folder.", "Use ${hydra:job.num} in hydra.sweep.subdir."
    if folder.resolve() == Path(hydra.sweep.dir).resolve():
        raise ConfigError(rule, got=f"job {number} in {folder}, which is the sweep's", fix=fix)
    with claimed(folder, "hydra.sweep.dir", wait=True):
        previous = RunRecord.read(folder).job if has_file(folder, FILE) else None
        if previous is not None and previous.sweep == job.job.sweep and previous.number != number:
            raise ConfigError(rule, got=f"job {number} in {folder}, which is job {previous.number}'s", fix=fix)
        with at_work(job.leader):
            return _run(job, run)


@contextlib.contextmanager
def at_work(leader: Mapping[str, str]) -> Iterator[None]:
    """Mark this process as running a job; from now on it exits once it runs none and the leader was killed.

    A running job stops itself, with its status written: see `Job.stop_with_leader`.
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
        # The sweep's working folder; a cluster's worker starts in another one
        with contextlib.chdir(job.manifest.cwd) if os.path.isdir(job.manifest.cwd) else contextlib.nullcontext():
            run(job)
    except Exception as error:  # noqa: BLE001 - a failed job must not stop the others
        reason = redacted(str(error)) or type(error).__name__
        atomic_write(error_file, redacted("".join(traceback.format_exception(error))))
        if record.status != FAILED:
            record.end(FAILED, reason)
        notes = getattr(error, "__notes__", [])  # its stage, log, and the command that continues it
        if not job.manifest.live:
            print(ending(Row(job.job, record)), *notes, sep="\n", file=sys.stderr, flush=True)
        return None
    except BaseException:  # Ctrl-C and SIGTERM: the folder says that the job was stopped
        record.abandon("stopped")
        if gone(job.leader):
            os._exit(128 + signal.SIGTERM)  # this worker has no parent that waits for it
        raise
    if not job.manifest.live:
        print(ending(Row(job.job, record)), flush=True)
    return record.values.get(objective_in(job.manifest.objective, [record.values]))


def ending(row: Row) -> str:
    """Return a line with a job's status and values; an error may have more lines."""
    job_name, run = f"job {row.job.number} ({title(row.job.varies)})", row.run
    if run.status != FINISHED:
        return f"{job_name} {'failed' if run.status == FAILED else 'was stopped'}: {run.error}"
    values = (f"{heading(name, run.values)} {value:.4g}" for name, value in run.values.items())
    return f"{job_name} finished: {', '.join(values)}"


def read_sweep(folder: Path) -> tuple[RunRecord, Manifest]:
    """Return the record of a sweep, and its manifest."""
    record = RunRecord.read(folder)
    if record.sweep is None:
        fix = "Start the sweep again, in another folder."
        raise TrackingError("A sweep must have its own folder.", got=f"{folder}, where a run was started", fix=fix)
    return record, record.sweep


def read_jobs(sweep: RunRecord) -> list[Row]:
    """Return the started jobs of a sweep, in order, without those of an earlier sweep in its folder."""
    folders = [file.parent for file in files_below(sweep.folder) if file.name == FILE]
    records = [RunRecord.read(folder) for folder in folders if folder != sweep.folder and not is_copy(folder)]
    rows = [Row(run.job, run) for run in records if run.job is not None and run.job.sweep == sweep.id]
    return sorted(rows, key=lambda row: row.job.number)
