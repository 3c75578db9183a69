"""Records of runs and sweeps, on the screen and in MLflow.

Names: `RECORDERS` is the catalogue; a `Recorder` is a config, such as `Mlflow`, that opens a `Recording`. `client_at`
opens a tracking server or database, `reached` checks that it is reachable, `uri_of` and `database_of` are about SQLite
files; `PARENT` is the tag of a sweep's jobs. `run_folders` and `record_run` record runs later, `name_best` a sweep's
best model. `champion_of` and `roll_back` are about the version of a registered model
with the alias. `with_start`, `with_versions` and `with_files` read models of runs and of the registry, at the versions
that they had at the run's start (`forget_aliases`); `origin_of` returns the `Origin` of such a model.

Read first: `recorders/__init__.py` (the protocol), `recorders/console.py` (a short recorder) and `mlflow_run.py` (a run
in MLflow).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.app.tracking.client import PARENT, client_at, reached
    from ortpipe.app.tracking.mlflow_run import record_run, run_folders
    from ortpipe.app.tracking.model import name_best
    from ortpipe.app.tracking.models import champion_of, forget_aliases, roll_back, with_files, with_versions
    from ortpipe.app.tracking.recorders import RECORDERS, Recorder, Recording
    from ortpipe.app.tracking.recorders.mlflow import Mlflow
    from ortpipe.app.tracking.sqlite import database_of, uri_of
    from ortpipe.app.tracking.start import Origin, origin_of, with_start
else:
    __getattr__, __dir__, __all__ = door(__name__)
