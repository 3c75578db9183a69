"""The run folder: everything needed to understand and repeat a run, with or without tracking."""

import dataclasses
import io
import json
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe import Artifact, OrtpipeError, load_artifact, save_artifact
from ortpipe.app.drift import PROFILE, drift_figures
from ortpipe.app.model_uri import NAMES, is_uri
from ortpipe.app.run.checkpoint import FILE as CHECKPOINT
from ortpipe.app.run.checkpoint import write_checkpoint
from ortpipe.app.run.environment import continuing
from ortpipe.app.run.record import COMMAND, FAILED, FINISHED, KILLED, RUNNING, RunRecord, StageRecord, read_config
from ortpipe.app.run.report import log_of, write_report
from ortpipe.app.run.screen import source_of
from ortpipe.artifact import in_folder
from ortpipe.bounded import check_size, file_below, files_below, has_file
from ortpipe.data import npz_arrays
from ortpipe.doors import later
from ortpipe.errors import TrackingError
from ortpipe.files import atomic_folder, atomic_write, delete
from ortpipe.graph import is_quantized, to_svg, to_text, write_atomically
from ortpipe.pipeline import events
from ortpipe.pipeline.plan import Plan, ReadsFiles
from ortpipe.stages import Checkpoint, Epoch, Remark, figures
from ortpipe.stages.convert.sources import DESCRIPTION

if TYPE_CHECKING:  # for fake-quantized models
    from ortpipe.graph import to_int8
else:
    later(__name__)

INPUTS = "inputs"  # copies of the model files that were read: the originals may change before a run is repeated
SOURCE = "convert.source"
EXAMPLE = "example.npz"  # example rows of training, which the logged MLflow model is tested on
LARGEST_EXAMPLE = 2**20  # bytes
SLICES = "slices.json"
MODELS = ("model.onnx", "model.onnx.data", "model.int8.onnx")
OF_ONE_RUN = (INPUTS, "stages", "figures", *MODELS, EXAMPLE, SLICES, PROFILE, "losses.parquet")


class RunFolder:
    """Writes a run's files during the run.

    - `config.yaml`, `environment.json`, `inputs/`: at the start;
    - `run.json`: at the start, before and after every stage that computes, and at the end (see `RunRecord`);
    - `checkpoint.safetensors`: the state from which training can continue, at the intervals of train.checkpoint;
    - `stages/<number>_<name>/`: each artifact, with its graph as `model.txt` and `model.svg`; files of artifacts in the
      store are links to it;
    - `model.onnx`, `model.int8.onnx` of a fake-quantized model, `example.npz` (some input rows), `losses.parquet`,
      `figures/*.png` (for a sweep's jobs see `illustrate`), `report.md`, `report.html`: at the end.

    `StageLogs` adds the logs. If an error ends the run, this class adds notes to it: the running stage, the paths of
    its log and of the report, and the command that continues the run.
    """

    def __init__(
        self,
        record: RunRecord,  # its folder is created if it does not exist
        config: str,  # resolved, as YAML
        environment: Mapping[str, str],
        values: Callable[[Artifact], Mapping[str, float]] = lambda artifact: {},  # possible objectives
        example: Callable[[Artifact], Mapping[str, np.ndarray]] = lambda artifact: {},  # some input rows
        draws: bool = True,  # whether to draw figures
    ) -> None:
        self.record, self.folder, self._values, self._draws = record, record.folder, values, draws
        self._example, self._config, self._environment = example, config, environment
        self._stored: list[str] = []  # the stages whose results are in the store
        self._checkpoint = 0  # the epochs of the last checkpoint
        self._unwritten = False  # whether the record has a stage that is not yet in its file

    def __call__(self, event: events.Event) -> None:
        """Handle an event."""
        match event:
            case events.RunStarted():
                self._start(event.plan)
            case events.StageProgressed(report=events.Began()) if self._unwritten:
                self.record.write()
                self._unwritten = False
            case events.StageProgressed(report=Checkpoint() as checkpoint):
                write_checkpoint(checkpoint, self.folder)
                self._checkpoint = checkpoint.epochs
            case events.StageProgressed(report=Epoch() as epoch):
                self.record.tick(epoch.number)
            case events.StageProgressed(report=Remark(values=values)):
                self.record.measured |= values
            case events.StageFinished():
                self._save(event)
            case events.RunFinished():
                self._finish(event.artifact)
            case events.RunFailed():
                self._fail(event)

    def _start(self, plan: Plan) -> None:
        self.record.write()  # first: a record with status FINISHED must not outlive the files that it lists
        for name in OF_ONE_RUN:  # left by an older run in the same folder
            delete(self.folder / name)
        atomic_write(self.folder / "config.yaml", self._config)
        keep_inputs(plan, self.folder)
        atomic_write(self.folder / "environment.json", json.dumps(self._environment, indent=1) + "\n")

    def _save(self, event: events.StageFinished) -> None:
        if event.stored is not None:
            self._stored.append(event.name)
        place = self.folder / "stages" / f"{event.number}_{event.name}"
        graph = event.artifact.apart()[0]
        pictures = {"model.txt": to_text(graph), "model.svg": to_svg(graph, event.artifact.facts.parameters)}
        save_artifact(event.artifact, place, like=event.stored, beside=pictures)
        self.record.stages.append(StageRecord.of(event))
        facts, tensors = event.artifact.facts, event.artifact.initializers
        self.record.model = {
            "from": source_of(facts),
            "task": facts.task,
            "discrepancy": facts.lineage[0].get("discrepancy") if facts.lineage else None,
            "parameters": {name: list(tensors[name].shape) for name in facts.parameters},
        }
        if notes := facts.lineage[-1].get("notes"):
            self.record.notes[event.name] = tuple(notes)
        self._unwritten = event.hit is not None  # hits take milliseconds: write them with the next computed stage
        if not self._unwritten:
            self.record.write()

    def _finish(self, artifact: Artifact) -> None:
        model, weights = artifact.apart()
        write_atomically(model, self.folder, weights=weights)
        if is_quantized(model):
            write_atomically(in_integers(artifact).model, self.folder, "model.int8.onnx")
        write_example(self._example(artifact), self.folder)
        atomic_write(self.folder / "losses.parquet", losses_parquet(artifact))
        if self._draws:
            save_figures({**figures(artifact), **drift_figures(self.record.drift)}, self.folder)
        self.record.metrics = artifact.facts.as_json(lineage=False).get("metrics", {})
        last = artifact.facts.lineage[-1] if artifact.facts.lineage else {}
        for fact in ("intervals", "slices", "importance", "sensitivity"):
            setattr(self.record, fact, last.get(fact, {}))
        if self.record.slices:
            atomic_write(self.folder / SLICES, json.dumps(as_table(self.record.slices)) + "\n")
        self.record.values = dict(self._values(artifact))
        self.record.end(FINISHED)
        try:
            write_report(self.folder)
        except (OSError, TrackingError) as error:  # a missing report does not fail the finished run
            reason = str(error).splitlines()[0]
            print(f"warning: no report of {self.folder}: {reason}; the run has finished.", file=sys.stderr)

    def _fail(self, event: events.RunFailed) -> None:
        record = self.record
        try:
            if record.status == RUNNING:
                record.stage, record.again = event.stage, self._again(event.error)
                record.end(KILLED if event.killed else FAILED, str(event.error) or type(event.error).__name__)
            write_report(self.folder)
        finally:  # also if the disk is full
            if record.status != FINISHED:
                self._add_notes(event)

    def _again(self, error: BaseException) -> str | None:
        """Return the command that continues; None if the config, the data or the model must change first."""
        if isinstance(error, OrtpipeError) and not isinstance(error, TrackingError):
            return None
        has_checkpoint = has_file(self.folder, CHECKPOINT)
        return continuing(self.record.tags[COMMAND], self.folder if has_checkpoint else None)

    def _add_notes(self, event: events.RunFailed) -> None:
        if (log := log_of(self.record, event.stage)) is not None:
            event.error.add_note(f"{'stage':<14} {event.stage}")
            event.error.add_note(f"{'its log':<14} {self.folder / log}")
        if (report := self.folder / "report.html").is_file():
            event.error.add_note(f"{'report':<14} {report}")
        if self._stored:
            event.error.add_note(f"{'cached':<14} {', '.join(self._stored)}")
        if self._checkpoint:
            event.error.add_note(f"{'checkpoint':<14} after epoch {self._checkpoint}")
        if self.record.again is not None:
            event.error.add_note(f"{'continue with:':<14} {self.record.again}")


def write_example(rows: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write rows of numbers, only the first if they are large; text is not written: a table's model makes up a row."""
    rows = {name: np.asarray(array) for name, array in rows.items()}
    if sum(array.nbytes for array in rows.values()) > LARGEST_EXAMPLE:
        rows = {name: array[:1] for name, array in rows.items()}
    fits = sum(array.nbytes for array in rows.values()) <= LARGEST_EXAMPLE
    if not rows or not fits or any(array.dtype.kind not in "biuf" for array in rows.values()):
        return
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **rows)
    atomic_write(folder / EXAMPLE, buffer.getvalue())


def read_example(folder: Path) -> dict[str, np.ndarray]:
    """Return the example rows of a folder, or no rows if the file is missing or damaged."""
    try:
        file = file_below(folder, EXAMPLE)
        check_size(file.stat().st_size, 2 * LARGEST_EXAMPLE)
        return {name: array[:] for name, array in npz_arrays(file).items()}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, IndexError):
        return {}


def save_figures(pictures: Mapping[str, bytes], run: Path) -> None:
    """Write figures, if there are any, into a run's folder."""
    if not pictures:
        return
    with atomic_folder(run / "figures") as folder:
        for name, png in pictures.items():
            (folder / f"{name}.png").write_bytes(png)


def illustrate(run: RunRecord) -> None:
    """Draw the figures of a finished run, and write its report again."""
    read_config(run.folder)  # raises if the folder has none
    if run.status == FINISHED and run.stages:
        artifact = stage_artifact(run.folder, run.stage_folders[-1])
        save_figures({**figures(artifact), **drift_figures(run.drift)}, run.folder)
    write_report(run.folder)


def stage_artifact(run: Path, name: str) -> Artifact:
    """Return the artifact in a folder of a run's `stages`."""
    if not any(files_below(run, f"stages/{name}")):
        rule, fix = "A run's folder must hold its stages.", "Name the run's own folder, or a whole copy of it."
        raise TrackingError(rule, got=f"{run}: no stages/{name}, or a link", fix=fix)
    return load_artifact(run / "stages" / name)


def as_table(slices: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Return metrics by column and value as a table for MLflow's page."""
    parts = [(column, value, metrics) for column, values in slices.items() for value, metrics in values.items()]
    names = list(dict.fromkeys(name for *_, metrics in parts for name in metrics))
    data = [[column, value, *(metrics.get(name) for name in names)] for column, value, metrics in parts]
    return {"columns": ["column", "value", *names], "data": data}


def in_integers(artifact: Artifact) -> Artifact:
    """Return a fake-quantized model converted to integers, which has no parameters any more."""
    facts = dataclasses.replace(artifact.facts, parameters=(), constants=())
    return Artifact(to_int8(artifact.model), facts)


def keep_inputs(plan: Plan, run: Path) -> None:
    """Copy the model files that the plan's configs read, with external data, into `inputs/` of a run's folder.

    The source's files are directly in `inputs/`, those of other keys in a subfolder named after the key.
    """
    groups = [(key, files) for step in plan for key, files in _read(step.config, step.stage.name) if files]
    if not groups:
        return
    with atomic_folder(run / INPUTS) as folder:
        for key, (first, *data_files) in groups:
            root = first.parent.resolve()
            for file in (first, *data_files):
                below = file is not first and file.resolve().is_relative_to(root)
                beside = file.resolve().relative_to(root) if below else file.name
                place = folder / ("" if key == SOURCE else key) / beside
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)


def _read(config: Any, key: str) -> Iterator[tuple[str, tuple[Path, ...]]]:
    if isinstance(config, ReadsFiles):
        yield key, config.files()
    if not dataclasses.is_dataclass(config):
        return
    for field in dataclasses.fields(config):
        yield from _read(getattr(config, field.name), f"{key}.{field.name}")


def kept_input(key: str, path: str, run: Path) -> str | None:
    """Return the run folder's copy of the model file of a key, if there is one."""
    below = INPUTS if key == SOURCE else f"{INPUTS}/{key}"
    names = NAMES if is_uri(path) else (Path(path).name, "model.onnx") if key != SOURCE else (Path(path).name,)
    described = key == SOURCE and not is_uri(path) and not Path(path).suffix and has_file(run, f"{below}/{DESCRIPTION}")
    if described:  # the files of a folder are directly in `inputs/`
        return str(run / below)
    return next((str(run / below / name) for name in names if has_file(run, f"{below}/{name}")), None)


def losses_parquet(artifact: Artifact) -> bytes:
    """Return the losses and monitored metrics as a Parquet file: a row per step, then per epoch.

    Columns: `kind` (string: step, train, validation, or the name of a monitored metric), `number` (int64, the step or
    epoch, from 1), `value` (float64, null if not evaluated), `rate` (float64, of a step; null elsewhere).
    """
    import pyarrow.parquet

    tensors = artifact.tensors
    epochs = {kind: tensors[f"losses/{kind}"] for kind in ("train", "validation") if f"losses/{kind}" in tensors}
    kinds = {"step": tensors["losses/step"], **epochs, **in_folder("monitor", tensors)}
    lengths = [len(values) for values in kinds.values()]
    rates = np.full(sum(lengths), np.nan)
    rates[: len(tensors.get("losses/rate", ()))] = tensors.get("losses/rate", ())
    values = np.concatenate([*kinds.values()]).astype(np.float64)  # nan becomes null, as in rates
    columns = {
        "kind": pyarrow.array(np.repeat(list(kinds), lengths)),
        "number": pyarrow.array(np.concatenate([np.arange(1, n + 1) for n in lengths])),
        "value": pyarrow.array(values, from_pandas=True),
        "rate": pyarrow.array(rates, from_pandas=True),
    }
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()
