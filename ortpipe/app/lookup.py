"""Look up models and runs by the names that a user gives: files and folders, MLflow ids, digests in the store."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from ortpipe import Artifact, load_artifact
from ortpipe.app.compose import Composition
from ortpipe.app.redact import hidden
from ortpipe.app.run.folder import stage_artifact
from ortpipe.app.run.record import FILE, ID, RunRecord, read_config
from ortpipe.app.tracking import client_at, database_of
from ortpipe.bounded import has_file
from ortpipe.errors import ConfigError, TrackingError, nearest
from ortpipe.facts_json import read_metadata
from ortpipe.graph import Weights, read_apart
from ortpipe.pipeline.store import Store

if TYPE_CHECKING:
    from mlflow import MlflowClient

REPRO_FILES = ("config.yaml", "environment.json", FILE, "inputs", "stages")  # the files that repeating a run reads
FILE_NAME = re.compile(r"(?!\.+$)[^/\\\x00:]+")
DIGEST = re.compile(r"[0-9a-f]{6,64}")  # or its beginning
HELP = "an .onnx file, the folder of an artifact or a run, the id of an MLflow run, or a stored digest's beginning"


@dataclass(frozen=True)
class FoundModel:
    """A model with its facts; a bare file has neither tensors nor lineage."""

    name: str  # from the user, with the stage of a run
    model: onnx.ModelProto  # without the values of its large weights
    weights: Weights  # the values of the large weights
    facts: Mapping[str, Any]  # as JSON; empty for a model that ortpipe has not seen
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    digest: str | None = None  # of the artifact
    config: Mapping[str, Any] = field(default_factory=dict)  # of its run, resolved

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The model's initializers."""
        tensors = self.model.graph.initializer
        return {t.name: self.weights[t.name] if t.name in self.weights else to_array(t) for t in tensors}


def find(name: str, composed: Composition, stage: str | None = None) -> FoundModel:
    """Return the model with a name; for a run, the result of `stage`, by default the last one."""
    path = Path(name)
    if path.is_file():
        model, weights = read_apart(path)
        return FoundModel(str(path), model, weights, read_metadata(model))
    if has_file(path, "artifact.json"):
        return _artifact(load_artifact(path), name, path.parents[1] if path.parent.name == "stages" else path)
    if has_file(path, FILE):
        stage_folder = _stage(RunRecord.read(path).stage_folders, name, stage)
        return _artifact(stage_artifact(path, stage_folder), f"{name} ({stage_folder})", path)
    if path.is_dir():
        runs = [file.parent for place in ("*", "*/*", "runs/*/*") for file in path.glob(f"{place}/{FILE}")]
        example = f", such as {max(runs, key=lambda run: run.name)}" if runs else ", which its last lines print"
        raise ConfigError(
            "A folder must be that of a run or of an artifact.", got=name, fix=f"Name a run's folder{example}."
        )
    if DIGEST.fullmatch(name) and composed.cache is not None:
        place = Store(composed.cache).artifact_folder(name)
        digests = sorted(path.name for path in place.parent.glob(f"{name}*"))
        if len(digests) > 1:
            rule, matches = "The beginning of a digest must match one artifact.", ", ".join(digests)
            raise ConfigError(rule, got=f"{name}: {matches}", fix="Add more letters.")
        if digests:
            return _artifact(load_artifact(place.with_name(digests[0])), digests[0], place)
    if ID.fullmatch(name):
        with tracked(name, composed.tracking_uri) as client, tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            names = [Path(entry.path).name for entry in client.list_artifacts(name, "stages")]
            stage_folder = _stage(names, name, stage)
            for file in (f"stages/{stage_folder}", "config.yaml"):
                download(client, name, file, folder)
            return _artifact(stage_artifact(folder, stage_folder), f"{name} ({stage_folder})", folder)
    raise ConfigError(f"A model is named by {HELP}.", got=f"{name}: no such file or folder", fix="Check the name.")


def _artifact(artifact: Artifact, name: str, run: Path) -> FoundModel:
    values = read_config(run) if has_file(run, "config.yaml") else {}
    facts, digest = artifact.facts.as_json(), artifact.digest()
    return FoundModel(name, *artifact.apart(), facts, artifact.tensors, digest, hidden(values))


def _stage(folders: list[str], run: str, stage: str | None) -> str:
    """Return the folder of a run's stage, such as 5_train; by default of the last one."""
    stage_folders = sorted(folder for folder in folders if folder[:1].isdigit())  # six at most
    if not stage_folders:
        rule = "At least one stage of the run must have finished."
        raise ConfigError(rule, got=f"{run}: none", fix="Run it again.")
    if stage is None:
        return stage_folders[-1]
    names = {folder.partition("_")[2]: folder for folder in stage_folders}
    if stage not in names:
        raise ConfigError("--stage must be a stage that the run finished.", got=stage, fix=nearest(stage, names))
    return names[stage]


@contextlib.contextmanager
def tracked(run_id: str, uri: str) -> Iterator[MlflowClient]:
    """Yield a client that reads an MLflow run."""
    fix = "Set recorder.tracking_uri or paths.outputs as they were for the run."
    if (database := database_of(uri)) is not None and not database.is_file():
        raise TrackingError("The id of a run is looked up in MLflow.", got=f"no database {uri}", fix=fix)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow.exceptions import MlflowException

    try:
        yield client_at(uri)
    except MlflowException as error:
        rule = "MLflow must have a run of this id, with its artifacts."
        raise TrackingError(rule, got=f"{run_id} in {uri}: {str(error).splitlines()[0]}", fix=fix) from error


@contextlib.contextmanager
def recorded(name: str, composed: Composition) -> Iterator[Path]:
    """Yield the folder of a run from its path or its MLflow id."""
    folder = Path(name)
    if has_file(folder, FILE):
        yield _with_stages(folder.absolute(), name)
    elif ID.fullmatch(name):
        with tempfile.TemporaryDirectory(prefix="ortpipe-") as temporary:
            with tracked(name, composed.tracking_uri) as client:
                folder = Path(temporary)
                for file in REPRO_FILES:
                    download(client, name, file, folder)
            if not has_file(folder, FILE):
                fix = "Choose a run that has ended, or give its folder."
                raise TrackingError(f"The MLflow run must have a {FILE}.", got=f"{name}: none", fix=fix)
            yield _with_stages(folder, name)
    else:
        fix = f"The run's last lines print both; a run's folder holds {FILE}."
        raise ConfigError("A run is named by its folder, or by its MLflow id.", got=name, fix=fix)


def _with_stages(folder: Path, name: str) -> Path:
    if not RunRecord.read(folder).stages:
        fix = "Choose a run, not a sweep."
        raise ConfigError("At least one stage of the run must have finished.", got=f"{name}: none", fix=fix)
    return folder


def download(client: MlflowClient, run_id: str, name: str, folder: Path) -> None:
    """Copy an artifact of an MLflow run, a file or a folder, into a folder under its name; skip a missing one."""
    above, files = str(PurePosixPath(name).parent), []
    entries = client.list_artifacts(run_id, None if above == "." else above)
    pending = [entry for entry in entries if entry.path == name]
    while pending:
        entry = pending.pop()
        if entry.is_dir:
            children = client.list_artifacts(run_id, entry.path)
            for child in children:
                if str(PurePosixPath(child.path).parent) != entry.path or not FILE_NAME.fullmatch(
                    Path(child.path).name
                ):
                    rule, fix = "The path of an artifact must lie in its run.", "Do not use this server."
                    raise TrackingError(rule, got=f"{child.path!r} in {entry.path!r} of {run_id}", fix=fix)
            pending += children
        else:
            files.append(entry)
    if sum(file.file_size or 0 for file in files) > shutil.disk_usage(folder).free:
        rule = "The disk must have room for the run's artifacts."
        raise TrackingError(rule, got=f"{name} of {run_id}", fix="Free some space.")
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        for file in files:
            place = folder / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            fetched = client.download_artifacts(run_id, file.path, fresh)  # in a layout that depends on the server
            os.replace(fetched, place)
