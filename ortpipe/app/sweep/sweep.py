"""A sweep from its beginning to its end: what its jobs share, its own record, the summary."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from ortpipe.app.stop import Stopped
from ortpipe.errors import OrtpipeError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ortpipe.app.sweep.status import Ground
    from ortpipe.app.tracking.parent import Parent


class SweepError(OrtpipeError):
    """Jobs of a sweep failed."""


class Refused(BaseException):
    """A sweep that cannot begin, past Hydra, which makes a warning of any Exception in a callback."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Sweep:
    """A sweep that has begun in this process."""

    folder: Path
    ground: Ground
    parent: Parent | None

    def end(self, error: BaseException | None) -> None:
        """Print the summary, write it into the sweep's folder, record it and close the record.

        Raises:
            SweepError: jobs failed, and nothing worse happened.
        """
        from ortpipe.app.sweep.figure import figure
        from ortpipe.app.sweep.status import close_jobs
        from ortpipe.app.sweep.summary import Summary
        from ortpipe.files import whole_file

        close_jobs(self.folder, self.ground.sweep)
        summary = Summary.of(self.folder, self.ground)
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        if not summary.rows and not stopped:  # it did not begin: a value of what varies is no choice, or the like
            if self.parent is not None:
                self.parent.withdraw()
            return
        table = whole_file(self.folder / "summary.csv", summary.as_csv())
        drawn = figure(summary)
        if drawn is not None:
            whole_file(self.folder / "summary.png", drawn)
        print("", summary.as_text(), "", f"summary        {table}", sep="\n")
        failed = f"{len(summary.unfinished)} of {len(summary.rows)} jobs did not finish" if summary.unfinished else None
        status = "KILLED" if stopped else "FINISHED" if error is None and failed is None else "FAILED"
        if self.parent is not None:
            self.parent.close(status, self.folder, summary, str(error) if error is not None else failed)
            print(f"MLflow run     {self.parent.run_id}", flush=True)
        if failed is not None and not stopped:  # a sweeper's own error, if it has one, is for want of results
            fix = "Each error is above, and with its traceback in error.txt of its job's folder."
            raise SweepError(f"{failed}.", got=error, fix=fix) from error


_begun: list[Sweep] = []  # Hydra starts a sweep deep inside; here it is found again, where it ends


def begin(config: DictConfig) -> None:
    """Open a sweep: check what its jobs share, open its record, write what they are to know.

    Raises:
        OrtpipeError: the objective or the recorder is wrong, or the recorder's server cannot be reached.
    """
    from ortpipe.app.environment import environment
    from ortpipe.app.schema import build_key
    from ortpipe.app.sweep.status import Ground, write
    from ortpipe.app.sweep.varies import fixed_keys
    from ortpipe.app.tracking.process import this_process
    from ortpipe.metrics import check_known

    HydraConfig.instance().set_config(config)
    check_known(config.objective, "objective", besides=("loss",))
    recorder = build_key("recorder", OmegaConf.to_container(config.recorder, resolve=True))
    folder = Path(config.hydra.sweep.dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    searched = OmegaConf.select(config, "hydra.sweeper.params") or {}
    fixed = fixed_keys([*(f"{key}={value}" for key, value in searched.items()), *config.hydra.overrides.task])
    facts = environment(config.seed)
    tags = {
        "mlflow.source.name": facts["command"],
        "ortpipe.git_commit": facts["git_commit"],
        "ortpipe.version": facts["ortpipe"],
        "ortpipe.objective": config.objective,
        "ortpipe.sweep": str(folder),
        "ortpipe.run_folder": str(folder),
    }
    parent = recorder.sweep(f"{config.name} sweep", tags)
    run = None if parent is None else parent.run_id
    ground = Ground(uuid.uuid4().hex, time.time(), os.getcwd(), fixed, config.objective, run, this_process())
    _begun.append(Sweep(folder, ground, parent))
    write(ground, folder)


@contextlib.contextmanager
def sweeping() -> Iterator[None]:
    """Close the sweep that began inside, if one did, however the inside ends."""
    try:
        yield
    except Refused as refused:
        raise refused.error from None
    except BaseException as error:
        while _begun:
            _begun.pop().end(error)
        raise
    while _begun:
        _begun.pop().end(None)
