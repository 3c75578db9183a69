"""Runs and sweeps from Python: start a run and read its results."""

import contextlib
import html
import io
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from hydra.core.hydra_config import HydraConfig
from omegaconf import read_write

from ortpipe import Artifact
from ortpipe.app.claim import claimed, output_folder
from ortpipe.app.compose import Composition, check_working_folder, parsed
from ortpipe.app.execute import execute
from ortpipe.app.hydra_errors import REFUSALS, explained
from ortpipe.app.lookup import find, recorded
from ortpipe.app.prediction import predictions
from ortpipe.app.redact import know_command
from ortpipe.app.run.environment import command_line
from ortpipe.app.run.folder import illustrate, losses_parquet, stage_artifact
from ortpipe.app.run.record import RunRecord, read_config
from ortpipe.app.schema import build
from ortpipe.app.sweep import Summary, read_jobs, read_sweep
from ortpipe.app.sweep import panels as sweep_panels
from ortpipe.app.tracking import forget_aliases
from ortpipe.errors import ConfigError, TrackingError, nearest, words
from ortpipe.graph import write_atomically
from ortpipe.picture import figure
from ortpipe.stages import panels as figure_panels


class Run:
    """The results of a run: its record, losses, models and artifacts.

    Args:
        run: its folder, or the id of its MLflow run.
        overrides: key=value pairs of where to look up an id, such as recorder.tracking_uri.

    Raises:
        TrackingError: there is no such run, or no stage of it finished.
    """

    def __init__(self, run: str | Path, *overrides: str) -> None:
        stack = contextlib.ExitStack()  # deletes the download of an MLflow run
        self.folder = stack.enter_context(recorded(str(run), Composition(overrides)))
        weakref.finalize(self, stack.close)
        self.record = RunRecord.read_closed(self.folder)

    @property
    def status(self) -> str:
        """RUNNING, FINISHED, FAILED or KILLED."""
        return self.record.status

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Each metric on the test rows by state, such as before and trained."""
        return self.record.metrics

    @property
    def folds(self) -> Any:
        """A DataFrame of the metrics on the test rows of each fold of cross-validation (evaluate.folds)."""
        return _pandas().DataFrame({name: list(values) for name, values in self.record.folds.items()})

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config, without its secrets."""
        self._check_same()
        return read_config(self.folder)

    @cached_property
    def losses(self) -> Any:
        """A DataFrame of the columns kind, number, value and rate; see `losses.parquet` of a run's folder."""
        return _pandas().read_parquet(io.BytesIO(losses_parquet(self.artifact("train"))))

    @property
    def model(self) -> onnx.ModelProto:
        """The model of the last stage that finished: of a complete run, the trained one."""
        return self.artifact().model

    def artifact(self, stage: str | None = None) -> Artifact:
        """Return the artifact of a stage, by default of the last one that finished."""
        self._check_same()
        folders = {folder.partition("_")[2]: folder for folder in self.record.stage_folders}
        if stage is not None and stage not in folders:
            suffix = "" if self.record.stage is None else f"; it {self.status.lower()} in {self.record.stage}"
            raise ConfigError(
                "stage must be one that the run finished.", got=f"{stage}{suffix}", fix=nearest(stage, folders)
            )
        return stage_artifact(self.folder, folders[stage] if stage else self.record.stage_folders[-1])

    def _check_same(self) -> None:
        """Raise if another run has been written into the folder since it was read."""
        if RunRecord.read(self.folder).id != self.record.id:
            rule, fix = "The run's folder must still hold the same run.", "Read it again: ortpipe.Run(folder)."
            raise TrackingError(rule, got=f"another run in {self.folder}", fix=fix)

    def predict(self, rows: Any, keep: Sequence[str] = (), *, trust: bool = False) -> Any:
        """Return a DataFrame of predictions for rows: the columns that `ortpipe predict` writes.

        Args:
            rows: the path of a file, a DataFrame, an array, or a dict of arrays by input.
            keep: columns of the rows to copy in front.
            trust: run the code of the run's own data source.
        """
        self._check_same()
        settings, pandas = read_config(self.folder)["data"]["source"], _pandas()
        rows = Path(rows) if isinstance(rows, str) else rows
        with words({"data.source.": ""}):
            pieces = predictions(find(str(self.folder), Composition()), rows, settings, keep, trust=trust)
            return pandas.concat([pandas.DataFrame(columns) for columns, _ in pieces], ignore_index=True)

    def report(self) -> Path:
        """Return the path of the run's report.html, with its figures; draw them if they are missing."""
        if not (self.folder / "figures").is_dir():
            illustrate(self.record)
        return self.folder / "report.html"

    def save(self, path: str | Path) -> Path:
        """Write the model of the last stage that finished to an .onnx file, and return its path."""
        path = Path(path)
        if path.suffix != ".onnx":
            raise ConfigError("path must be that of an .onnx file.", got=path, fix="Name a file such as model.onnx.")
        model, weights = self.artifact().apart()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(model, path.parent, path.name, weights)
        return path

    def plot(self, name: str) -> Any:
        """Return one of the run's figures as a matplotlib Figure, such as losses, confusion, curves or residuals."""
        figures = figure_panels(self.artifact())
        if name not in figures:
            raise ConfigError("name must be one of the run's figures.", got=name, fix=nearest(name, figures))
        return figure(*figures[name])

    def __repr__(self) -> str:
        """Return the run's folder, name and status."""
        return f"Run({str(self.folder)!r}): {self.record.name}, {self.status.lower()}"

    def _repr_html_(self) -> str:
        """Return the metrics as a table, for notebooks."""
        table = _pandas().DataFrame(self.metrics).T.to_html(float_format="{:.4g}".format, na_rep="")
        return f"<div>{html.escape(repr(self))}</div>{table}"


class Sweep:
    """The results of a sweep: its jobs, the best one, and the table of all.

    Args:
        folder: the sweep's folder, which its last lines print.

    Raises:
        TrackingError: the folder is not that of a sweep.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        if RunRecord.read(self.folder).sweep is None:
            fix = "Read it with ortpipe.Run(folder)."
            raise TrackingError("Sweep needs the folder of a sweep.", got=f"{self.folder}, a run's", fix=fix)
        self.record, manifest = read_sweep(self.folder)
        self._summary = Summary(manifest.objective, read_jobs(self.record))

    @property
    def jobs(self) -> list[Run]:
        """The jobs that finished at least one stage, in order."""
        return [Run(row.run.folder) for row in self._summary.rows if row.run.stages]

    @property
    def best(self) -> Run | None:
        """The finished job with the best objective, if there is one."""
        best = self._summary.best
        return None if best is None else Run(best.run.folder)

    def table(self) -> Any:
        """Return a DataFrame with a row for each started job: the keys that vary, its results and its status."""
        pandas = _pandas()
        frame = pandas.DataFrame(self._summary.cells()).set_index("job")
        for key in self._summary.varying:
            with contextlib.suppress(ValueError):  # text stays text
                frame[key] = pandas.to_numeric(frame[key])
        return frame

    def plot(self) -> Any:
        """Return a matplotlib Figure of the objective against each key that varies."""
        if not (panels := sweep_panels(self._summary)):
            raise TrackingError(
                "A sweep's figure needs jobs with results, and a key that varies.",
                got=f"{len(self._summary.ranked)} jobs with results, {len(self._summary.varying)} keys",
                fix="Look at table().",
            )
        return figure(*panels)

    def __repr__(self) -> str:
        """Return the sweep's folder, name and number of jobs."""
        return f"Sweep({str(self.folder)!r}): {self.record.name}, {len(self._summary.rows)} jobs"

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        table: str = self.table()._repr_html_()
        return f"<div>{html.escape(repr(self))}</div>{table}"


def run(*overrides: str, config_dir: str | None = None) -> Run:
    """Run in this process, as `ortpipe key=value …` does, and return the results.

    Args:
        overrides: key=value pairs, such as "experiment=linear_regression".
        config_dir: the folder of the user's own configs.

    Raises:
        OrtpipeError: the config, the data or the model is rejected, or a stage fails, which the record names.
    """
    for override in overrides:
        _check_override(override)
    know_command(overrides)
    check_working_folder()
    forget_aliases()
    composition = Composition(overrides, config_dir)
    try:
        values, record, where = composition.values, composition.record, composition.where
        hydra = HydraConfig.get()
        folder = output_folder(values["paths"], hydra.run.dir, "hydra.run.dir")
    except REFUSALS as error:
        raise explained(error) from None  # Hydra's own frames do not help
    with read_write(hydra):  # type: ignore[arg-type]
        hydra.runtime.output_dir = str(folder)
    options = [] if config_dir is None else ["--config-dir", config_dir]
    with claimed(folder, "hydra.run.dir"):
        execute(build(values, where), record, hydra, command=command_line([*options, *overrides]))
    return Run(folder)


def _check_override(override: object) -> None:
    """Reject arguments that are not overrides, and overrides that start several runs."""
    if not isinstance(override, str):
        raise ConfigError(
            "run takes the arguments of the command line: key=value strings.",
            got=f"{type(override).__name__}",
            fix="Pass rows by a function that returns them: data=function data.source.function=package.file:name, "
            "in a notebook __main__:name.",
        )
    several = override in ("-m", "--multirun")
    with contextlib.suppress(*REFUSALS):  # composing the config explains these
        several = several or any(o.is_sweep_override() for o in parsed([override]).values())
    if several:
        raise ConfigError(
            "run starts a single run; start a sweep from the command line.",
            got=override,
            fix="subprocess.run(['ortpipe', '-m', …, 'hydra.sweep.dir=FOLDER'], check=True), then "
            "ortpipe.Sweep(FOLDER). A list is written in brackets.",
        )


def _pandas() -> Any:
    import pandas

    return pandas
