"""What runs left behind, wherever that is: in their folders, in MLflow, in the store."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ortpipe.app.compose import Composition
from ortpipe.app.run.record import FILE, RunRecord
from ortpipe.app.tracking.client import client_at
from ortpipe.app.tracking.sqlite import database_of
from ortpipe.errors import ConfigError, TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

NEEDED = ("config.yaml", "environment.json", FILE, "inputs", "stages")  # of a run that is made again
FILE_NAME = re.compile(r"(?!\.+$)[^/\\\x00:]+")
RUN_ID = re.compile(r"[0-9a-f]{32}")


@contextlib.contextmanager
def tracked(run_id: str, uri: str) -> Iterator[MlflowClient]:
    """Give a client that reads an MLflow run."""
    fix = "Set recorder.tracking_uri or paths.outputs as they were for the run."
    if (database := database_of(uri)) is not None and not database.is_file():
        raise TrackingError("The id of a run is looked up where runs are recorded.", got=f"no database {uri}", fix=fix)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow.exceptions import MlflowException

    try:
        yield client_at(uri)
    except MlflowException as error:
        rule = "The id of a run is one that MLflow knows, with the artifacts that were recorded."
        raise TrackingError(rule, got=f"{run_id} in {uri}: {str(error).splitlines()[0]}", fix=fix) from error


@contextlib.contextmanager
def recorded(name: str, composed: Composition) -> Iterator[Path]:
    """Give the folder of a run, by its path or its MLflow id."""
    folder = Path(name)
    if (folder / FILE).is_file():
        yield _with_stages(folder.absolute(), name)
    elif RUN_ID.fullmatch(name):
        with tempfile.TemporaryDirectory(prefix="ortpipe-") as temporary:
            with tracked(name, composed.tracking_uri) as client:
                folder = Path(temporary)
                for needed in NEEDED:
                    download(client, name, needed, folder)
            if not (folder / FILE).is_file():
                fix = "Choose a run that has ended, or give its folder."
                raise TrackingError(f"The record of a run holds its {FILE}.", got=f"{name}: none", fix=fix)
            yield _with_stages(folder, name)
    else:
        fix = f"Take either from the run's last lines; a run's folder holds {FILE}."
        raise ConfigError("A run is named by its folder, or by its MLflow id.", got=name, fix=fix)


def _with_stages(folder: Path, name: str) -> Path:
    if not RunRecord.read(folder).stages:
        fix = "Choose a run, not a sweep, whose first stage finished."
        raise ConfigError("A run is made again from its stages.", got=f"{name}: none finished", fix=fix)
    return folder


def download(client: MlflowClient, run_id: str, name: str, folder: Path) -> None:
    """Copy an artifact of an MLflow run, a file or a folder, under its name into a folder, if there is one."""
    above, files = PurePosixPath(name).parent, []
    waiting = [entry for entry in client.list_artifacts(run_id, _within(above)) if entry.path == name]
    while waiting:
        entry = waiting.pop()
        if entry.is_dir:
            inner = client.list_artifacts(run_id, entry.path)
            for one in inner:
                if str(PurePosixPath(one.path).parent) != entry.path or not FILE_NAME.fullmatch(Path(one.path).name):
                    rule, fix = "An artifact lies in its run.", "Do not use this server."
                    raise TrackingError(rule, got=f"{one.path!r} in {entry.path!r} of {run_id}", fix=fix)
            waiting += inner
        else:
            files.append(entry)
    if sum(file.file_size or 0 for file in files) > shutil.disk_usage(folder).free:
        raise TrackingError("There must be room for what a run recorded.", got=f"{name} of {run_id}", fix="Free some.")
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        for file in files:
            place = folder / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(client.download_artifacts(run_id, file.path, fresh), place)  # folder or server: laid out apart


def _within(above: PurePosixPath) -> str | None:
    return None if str(above) == "." else str(above)
