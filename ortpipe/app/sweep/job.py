"""One job of a sweep: it knows its sweep, and however it ends is written into its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.app.claim import claimed
from ortpipe.app.redact import hidden, redacted
from ortpipe.app.stop import Stopped
from ortpipe.app.sweep.orphan import at_work
from ortpipe.app.sweep.status import Status, number_of, read_ground, write
from ortpipe.app.sweep.varies import title, varying
from ortpipe.app.tracking.process import gone
from ortpipe.app.tracking.store import PARENT
from ortpipe.errors import ConfigError
from ortpipe.files import whole_file
from ortpipe.pipeline.events import Event, RunFailed

if TYPE_CHECKING:
    from hydra.conf import HydraConf

    from ortpipe.app.assemble import Outcome


class Job:
    """The job that Hydra started.

    Attributes:
        folder: the job's.
        ground: what it shares with the others.
        status: what its folder says of it.
    """

    def __init__(self, hydra: HydraConf) -> None:
        self.folder, self._sweep, self._began = Path(hydra.runtime.output_dir), Path(hydra.sweep.dir), time.time()
        self.ground, self._looked = read_ground(self._sweep), 0.0
        varies = varying(list(hydra.overrides.task), self.ground.fixed)
        self.status = Status(self.ground.sweep, int(hydra.job.num), hidden(varies))

    @property
    def name(self) -> str:
        """What varies; empty where nothing does."""
        return title(self.status.varies)

    @property
    def tags(self) -> dict[str, str]:
        """How its record says whose job it is."""
        tags = {"ortpipe.sweep": str(self._sweep.absolute()), "ortpipe.job": str(self.status.job)}
        return tags if self.ground.parent is None else {**tags, PARENT: self.ground.parent}

    def stop_with_leader(self, event: Event) -> None:
        """Listen to the run: stop it if the process that leads the sweep was killed and left its workers behind."""
        if time.monotonic() - self._looked > 1 and not isinstance(event, RunFailed):
            if gone(self.ground.leader):
                raise Stopped(signal.SIGTERM)
            self._looked = time.monotonic()

    def say(self, **facts: Any) -> None:
        """Write more of its status."""
        self.status = dataclasses.replace(self.status, seconds=time.time() - self._began, **facts)
        write(self.status, self.folder)


def run_job(hydra: HydraConf, run: Callable[[Job], Outcome]) -> float | None:
    """Run a job where its sweep was started; return its objective, or None if it failed: the other jobs go on.

    Whatever it raises, it is told on the screen and kept in the job's folder; what stops it (Ctrl-C) stops the sweep.
    A worker that a killed sweep left behind may still be at work in the folder, and is waited for.

    Raises:
        ConfigError: the folder is the sweep's own, or another job's.
    """
    job = Job(hydra)
    own = job.folder.resolve() != Path(hydra.sweep.dir).resolve()
    with claimed(job.folder, "hydra.sweep.dir", wait=True) if own else contextlib.nullcontext():
        if not own or number_of(job.folder, job.ground.sweep) not in (None, job.status.job):
            rule = "Every job of a sweep has a folder of its own."
            got = f"job {job.status.job} in {job.folder}, which is the {'other job' if own else 'sweep'}'s"
            raise ConfigError(rule, got=got, fix="Let hydra.sweep.subdir hold ${hydra:job.num}.")
        with at_work(job.ground.leader):
            return _run(job, run)


def _run(job: Job, run: Callable[[Job], Outcome]) -> float | None:
    (job.folder / "error.txt").unlink(missing_ok=True)  # of an earlier sweep into the same folder
    job.say()
    called = f"job {job.status.job} ({job.name})"
    try:
        with _in(job.ground.cwd):
            outcome = run(job)
    except Exception as error:  # noqa: BLE001 - a job that fails stops no other, whatever it raises
        said = redacted(str(error)) or type(error).__name__
        whole_file(job.folder / "error.txt", redacted("".join(traceback.format_exception(error))))
        job.say(state="failed", error=said)
        notes = getattr(error, "__notes__", [])  # its stage, log, and the command that does what is left
        print(f"{called} failed: {said}", *notes, sep="\n", file=sys.stderr, flush=True)
        return None
    except BaseException:
        job.say(state="killed")
        if gone(job.ground.leader):
            os._exit(128 + signal.SIGTERM)  # nobody waits for this worker
        raise
    job.say(state="finished", values=outcome.values)
    found = ", ".join(f"{name} {value:.4g}" for name, value in outcome.values.items())
    print(f"{called} finished: {found}", flush=True)
    return outcome.values.get(job.ground.objective)


def _in(folder: str) -> contextlib.AbstractContextManager[None]:
    """Work in the folder where the sweep was started, which a cluster's worker is not in."""
    return contextlib.chdir(folder) if os.path.isdir(folder) else contextlib.nullcontext()
