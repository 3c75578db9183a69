"""What runs left behind, wherever that is: in their folders, in MLflow, in the store."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.errors import ConfigError, TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Settings:
    """Where runs are recorded and results stored, as a run's own arguments say; asked only for names that are no path.

    Attributes:
        overrides: as of a run.
        config_dir: your own configs.
    """

    overrides: Sequence[str] = ()
    config_dir: str | None = None

    @cached_property
    def _values(self) -> dict[str, Any]:
        from ortpipe.app.compose import composition

        return composition(self.overrides, self.config_dir).values

    def cache(self) -> Path | None:
        """Return the folder of the store, if there is one."""
        folder = self._values["paths"]["cache"]
        return None if folder is None else Path(folder)

    def tracking_uri(self) -> str:
        """Return the recorder's address.

        Raises:
            ConfigError: the recorder has none.
        """
        recorder = self._values["recorder"]
        if "tracking_uri" not in recorder:
            fix = "Leave recorder as it is, or set recorder.tracking_uri."
            raise ConfigError("The id of a run is looked up in MLflow.", got=f"recorder={recorder['name']}", fix=fix)
        return str(recorder["tracking_uri"])


@contextlib.contextmanager
def tracked(run_id: str, uri: str) -> Iterator[MlflowClient]:
    """Give a client that reads an MLflow run.

    Raises:
        TrackingError: what is asked of it cannot be read.
    """
    from ortpipe.app.tracking.sqlite import database_of
    from ortpipe.app.tracking.store import client_at

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
            with tracked(name, settings.tracking_uri()) as client:
                folder = Path(client.download_artifacts(name, "", temporary))
            if not (folder / "lock.json").is_file():
                fix = "Choose a run, not a sweep, whose first stage finished."
                raise TrackingError("The record of a run holds its lock file.", got=f"{name}: none", fix=fix)
            yield folder
    else:
        fix = "Take either from the run's last lines; a run has a lock file once its first stage has finished."
        raise ConfigError("A run is named by its folder, or by its MLflow id.", got=name, fix=fix)


def read_json(file: Path) -> Any:
    """Return what a file of a run's folder holds.

    Raises:
        ConfigError: it is missing or damaged.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            "A run's folder is as it was written.", got=f"{file}: {error}", fix="Choose another."
        ) from error
