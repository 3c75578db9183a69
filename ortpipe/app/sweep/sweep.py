"""A sweep from its beginning to its end: what its jobs share, its own record, the summary."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from ortpipe.app.redact import guard, hidden, know_config, recordable, redacted
from ortpipe.app.stop import Stopped
from ortpipe.errors import OrtpipeError
from ortpipe.files import whole_file

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ortpipe.app.run.state import RunState
    from ortpipe.app.sweep.status import Ground
    from ortpipe.app.sweep.summary import Summary
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

    state: RunState
    ground: Ground
    parent: Parent | None

    def end(self, error: BaseException | None) -> None:
        """Write the summary into the sweep's folder, print it, and close the sweep's record.

        Raises:
            SweepError: jobs did not finish, though nobody stopped the sweep.
        """
        from ortpipe.app.run.state import FAILED, FINISHED, KILLED
        from ortpipe.app.sweep import summary as summaries
        from ortpipe.app.sweep.status import close_jobs

        close_jobs(self.state.folder, self.ground.sweep)
        summary = summaries.Summary.of(self.state.folder, self.ground)
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        if not summary.rows and not stopped:  # it did not begin: a value of what varies is no choice, or the like
            if self.parent is not None:
                self.parent.withdraw()
            return
        self._write(summary)
        print("", summary.as_text(), "", f"summary        {self.state.folder / 'summary.csv'}", sep="\n")
        count = len(summary.unfinished)
        failed = f"{count} of {len(summary.rows)} jobs did not finish" if count else None
        status = KILLED if stopped else FINISHED if error is None and failed is None else FAILED
        self.state.end(status, failed if error is None else str(error))
        if self.parent is not None:
            self.parent.close(summary.ranked[0].status.mlflow if summary.ranked else None)
            print(f"MLflow run     {self.parent.run_id}", flush=True)
        if failed is not None and not stopped:  # a sweeper's own error, if it has one, is for want of results
            fix = "Each error is above, and with its traceback in error.txt of its job's folder."
            raise SweepError(f"{failed}.", got=error, fix=fix) from error

    def _write(self, summary: Summary) -> None:
        from ortpipe.app.sweep.figure import figure

        folder = self.state.folder
        whole_file(folder / "summary.csv", summary.as_csv())
        whole_file(folder / "summary.json", summary.as_table())
        whole_file(folder / "metrics.json", json.dumps(summary.metrics(), indent=1) + "\n")
        if (drawn := figure(summary)) is not None:
            whole_file(folder / "summary.png", drawn)


_begun: list[Sweep] = []  # Hydra starts a sweep deep inside; here it is found again, where it ends


def begin(config: DictConfig) -> str:
    """Open a sweep: claim its folder, check what its jobs share, open its record, write what they know; return its id.

    Raises:
        OrtpipeError: the objective or the recorder is wrong, its server cannot be reached, or another process is at
            work in the folder.
    """
    import yaml

    from ortpipe.app.claim import hold
    from ortpipe.app.run.again import typed
    from ortpipe.app.run.environment import environment
    from ortpipe.app.run.state import RunState, origin
    from ortpipe.app.schema import build_key
    from ortpipe.app.sweep.status import Ground, write
    from ortpipe.app.sweep.varies import planned
    from ortpipe.app.terminal import forgive
    from ortpipe.app.tracking.process import this_process
    from ortpipe.metrics import OBJECTIVES, check_known

    forgive()
    HydraConfig.instance().set_config(config)
    know_config(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
    guard()
    check_known(config.objective, "objective", besides=OBJECTIVES)
    records = OmegaConf.to_container(config.recorder, resolve=True)
    recorder = build_key("recorder", records)
    folder = Path(config.hydra.sweep.dir).absolute()
    hold(folder, "hydra.sweep.dir")
    searched = OmegaConf.select(config, "hydra.sweeper.params") or {}
    fixed, varies = planned([*(f"{key}={value}" for key, value in searched.items()), *config.hydra.overrides.task])
    facts = environment(config.seed, typed())
    about = {"name": redacted(config.name), "objective": config.objective, "fixed": hidden(fixed)}
    about |= {"varies": hidden(varies), "recorder": recordable(config.recorder)}
    about["paths"] = OmegaConf.to_container(config.paths, resolve=True)
    whole_file(folder / "config.yaml", yaml.safe_dump(about, sort_keys=False, allow_unicode=True))
    whole_file(folder / "environment.json", json.dumps(facts, indent=1) + "\n")
    tags = {
        **origin(facts, folder),
        "mlflow.loggedArtifacts": json.dumps([{"path": "summary.json", "type": "table"}]),  # MLflow's page shows it
        "ortpipe.objective": config.objective,
    }
    state = RunState(folder, redacted(f"{config.name} sweep"), tags)
    parent = recorder.sweep(state)
    run = None if parent is None else parent.run_id
    ground = Ground(state.id, os.getcwd(), [*fixed], config.objective, run, this_process())
    _begun.append(Sweep(state, ground, parent))
    state.write()
    write(ground, folder)
    return state.id


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
