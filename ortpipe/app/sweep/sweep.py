"""A sweep from start to end: its manifest, its record and the summary."""

import json
import os
import re
import sys

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from ortpipe import OrtpipeError
from ortpipe.app.claim import hold, output_folder
from ortpipe.app.gates import raise_failed
from ortpipe.app.redact import guard, hidden, know_config, recordable, redacted
from ortpipe.app.run.environment import environment, typed_command
from ortpipe.app.run.folder import illustrate
from ortpipe.app.run.record import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    Manifest,
    RunRecord,
    Status,
    config_text,
    last_sign,
    origin_tags,
)
from ortpipe.app.schema import build_key, check_measured
from ortpipe.app.stop import Stopped
from ortpipe.app.sweep.figure import panels
from ortpipe.app.sweep.job import read_jobs
from ortpipe.app.sweep.live import LiveTable, can_draw
from ortpipe.app.sweep.overrides import choose, planned
from ortpipe.app.sweep.search import search_settings
from ortpipe.app.sweep.summary import Summary
from ortpipe.app.terminal import forgive
from ortpipe.app.tracking import Recording
from ortpipe.files import atomic_write
from ortpipe.picture import picture

# keys that do not decide whether jobs have validation rows and which metrics they compute
APART = re.compile(r"(data[./]source|convert|add_loss|penalty|derive|train|seed|name)(?=[./]|$)")


class SweepError(OrtpipeError):
    """Jobs of a sweep failed."""


class OpenSweep:
    """A sweep in this process: lock its folder, write the manifest that its jobs share, and open its record."""

    def __init__(self, config: DictConfig) -> None:
        forgive()
        choose(config)
        HydraConfig.instance().set_config(config)
        know_config(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
        guard()
        build_key("objective", config.objective)
        self._objective, self._draws = config.objective, build_key("figures", config.figures)
        recorder = build_key("recorder", OmegaConf.to_container(config.recorder, resolve=True))
        search_space = OmegaConf.select(config, "hydra.sweeper.params") or {}
        overrides = [*(f"{key}={value}" for key, value in search_space.items()), *config.hydra.overrides.task]
        fixed, varies = planned(overrides)
        if (search := search_settings(config, varies)) is not None:
            fixed, varies = planned([*overrides, *search.overrides])
        self._rungs = () if search is None else search.rungs
        if all(APART.match(key) for key in varies):
            measured = ("data.split.column", "data.split.validation", "evaluate.metrics")
            check_measured(self._objective, *(OmegaConf.select(config, key) for key in measured))
        folder = output_folder(config.paths, config.hydra.sweep.dir, "hydra.sweep.dir")
        hold(folder, "hydra.sweep.dir")
        facts = environment(config.seed, typed_command())
        config_record = {"name": redacted(config.name), "objective": config.objective, "fixed": hidden(fixed)}
        config_record |= {"varies": hidden(varies), "recorder": recordable(config.recorder)}
        config_record["paths"] = OmegaConf.to_container(config.paths, resolve=True)
        atomic_write(folder / "config.yaml", config_text(config_record))
        atomic_write(folder / "environment.json", json.dumps(facts, indent=1) + "\n")
        tags = {
            **origin_tags(facts, folder),
            "mlflow.loggedArtifacts": json.dumps([{"path": "summary.json", "type": "table"}]),  # MLflow's page shows it
            "ortpipe.objective": config.objective,
        }
        live = can_draw()
        manifest = Manifest(os.getcwd(), tuple(fixed), config.objective, live)
        self.record = RunRecord(folder, redacted(f"{config.name} sweep"), tags, sweep=manifest)
        self._recording: Recording = recorder.open_sweep(self.record)
        self.record.mlflow = self._recording.run_id
        self.record.write()
        self._table = LiveTable(self.record, config.objective) if live else None

    def end(self, error: BaseException | None) -> None:
        """Write the summary into the sweep's folder, print it, and close the sweep's record."""
        record, folder = self.record, self.record.folder
        if self._table is not None:
            self._table.close()
        summary = Summary(self._objective, read_jobs(record), self._rungs)
        for _, job in summary.rows:
            if job.status == RUNNING:  # a killed job: the sweep has ended
                job.end(KILLED, at=last_sign(job.folder))
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        if not summary.rows and not stopped:  # no job began, for example because of an unknown choice
            self._recording.withdraw()
            return
        best = None if summary.best is None else summary.best.run
        atomic_write(folder / "summary.csv", summary.as_csv())
        atomic_write(folder / "summary.json", summary.as_table())
        atomic_write(folder / "summary.md", summary.as_markdown())
        if drawings := panels(summary):
            atomic_write(folder / "summary.png", picture(*drawings))
        print("", summary.as_text(), "", f"summary        {folder / 'summary.csv'}", sep="\n")
        count = sum(row.run.status != FINISHED for row in summary.rows)
        problem = f"{count} of {len(summary.rows)} jobs did not finish" if count else None
        status: Status = KILLED if stopped else FINISHED if error is None and problem is None else FAILED
        record.metrics = summary.metrics()
        record.end(status, problem if error is None else str(error))
        if best is not None and self._draws and not stopped:
            _illustrate(best)
        self._recording.close(best)
        for name, value in self._recording.summary.items():
            print(f"{name:<14} {value}", flush=True)
        if problem is not None and not stopped:  # a sweeper's own error only says that results are missing
            fix = "See the errors above; their tracebacks are in error.txt in the jobs' folders."
            raise SweepError(f"{problem}.", got=error, fix=fix) from error
        self._recording.check()
        if best is not None and not stopped:
            raise_failed(best)


def _illustrate(best: RunRecord) -> None:
    """Draw the best job's figures."""
    try:
        illustrate(best)
    except (OSError, OrtpipeError) as error:  # the sweep's results are complete without them
        reason = str(error).splitlines()[0]
        print(f"warning: no figures of {best.folder}: {reason}; the sweep itself is complete.", file=sys.stderr)
