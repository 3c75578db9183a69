"""What a run left behind, wherever that is: its folder, or the folder's copy in MLflow."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortpipe.app.subject import RUN_ID, Settings
from ortpipe.app.tracking.store import SQLITE
from ortpipe.errors import ConfigError, TrackingError


@contextlib.contextmanager
def recorded(name: str, settings: Settings) -> Iterator[Path]:
    """Give the folder of a run, by its path or its MLflow id.

    Raises:
        ConfigError: the name stands for no run.
        TrackingError: the MLflow run cannot be read.
    """
    folder = Path(name)
    if (folder / "lock.json").is_file():
        yield folder.absolute()
    elif RUN_ID.fullmatch(name):
        with tempfile.TemporaryDirectory(prefix="ortpipe-") as temporary:
            yield _downloaded(name, settings.tracking_uri(), Path(temporary))
    else:
        fix = "Take either from the run's last lines; a run has a lock file once its first stage has finished."
        raise ConfigError("A run is named by its folder, or by its MLflow id.", got=name, fix=fix)


def _downloaded(run_id: str, uri: str, folder: Path) -> Path:
    fix = "Set recorder.tracking_uri or paths.outputs as they were for the run."
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).is_file():
        raise TrackingError("The id of a run is looked up where runs are recorded.", got=f"no database {uri}", fix=fix)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        found = Path(MlflowClient(tracking_uri=uri).download_artifacts(run_id, "", str(folder)))
    except (MlflowException, OSError) as error:
        rule = "The id of a run is one that MLflow knows, with the artifacts that were recorded."
        raise TrackingError(rule, got=f"{run_id} in {uri}: {str(error).splitlines()[0]}", fix=fix) from error
    if not (found / "lock.json").is_file():
        rule = "The record of a run holds its lock file."
        raise TrackingError(rule, got=f"{run_id} in {uri}: none", fix="Choose a run whose first stage finished.")
    return found


def read_json(file: Path) -> Any:
    """Return what a file of a run's folder holds.

    Raises:
        ConfigError: it is missing or damaged.
    """
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            "A run's folder is as it was written.", got=f"{file}: {error}", fix="Choose another."
        ) from error
