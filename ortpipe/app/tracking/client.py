"""A client of MLflow's database or server, checked before any work; it closes the runs of dead processes."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import io
import logging
import os
import sqlite3
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ortpipe.app.local_path import is_local
from ortpipe.app.run.process import HOST, gone, this_process
from ortpipe.app.run.record import died, last_sign, now
from ortpipe.app.tracking.sqlite import database_of, uri_of
from ortpipe.app.tracking.target import Target
from ortpipe.errors import TrackingError
from ortpipe.files import atomic_file
from ortpipe.pipeline.locks import lock

if TYPE_CHECKING:
    from mlflow import MlflowClient

ERROR = "ortpipe.error"
NOTE = "mlflow.note.content"  # the tag that MLflow shows as a description
KIND = "mlflow.experimentKind"  # the tag of an experiment that makes MLflow open it on its runs, not on LLM traces
DRIVERS = ("psycopg", "psycopg2")
PACKAGES = {  # by scheme: modules of which one is required, and the fix
    "postgresql": (DRIVERS, "pip install 'ortpipe[postgresql]', and write postgresql+psycopg://…."),
    "s3": (("boto3",), "pip install boto3"),
    "gs": (("google.cloud.storage",), "pip install google-cloud-storage"),
    "wasbs": (("azure.storage.blob",), "pip install azure-storage-blob azure-identity"),
    "abfss": (("azure.storage.filedatalake",), "pip install azure-storage-file-datalake azure-identity"),
}
UNKNOWN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # MLflow's codes for unknown names
Found = TypeVar("Found")
PARENT = "mlflow.parentRunId"  # the tag that makes a run another one's child

_databases = set[Any]()  # the URLs of clients' databases
_engines = weakref.WeakSet[Any]()  # SQLAlchemy's engines that have connected to them


def open_store(target: Target, parent: str | None = None) -> tuple[MlflowClient, str]:
    """Return a client and the id of the experiment, which is created once even if many jobs start together.

    `parent` is the run of a sweep, whose jobs use its experiment. Without a parent, close runs whose process has ended.
    """
    _import()  # takes seconds, so do it before taking the lock
    with reached(target.tracking_uri):
        if parent is not None:
            return client_at(target.tracking_uri), _experiment_of(target.tracking_uri, parent)
        with _first_opened(target.tracking_uri):
            client = client_at(target.tracking_uri)
            experiment = client.get_experiment_by_name(target.experiment)
            if experiment is None:
                by_server = target.tracking_uri.startswith("http")  # a server chooses the location of artifacts
                place = None if by_server else target.artifacts
                if place and is_local(place):
                    place = Path(place).absolute().as_uri()
                check_packages(place or "")
                with made_once():
                    client.create_experiment(target.experiment, artifact_location=place)
                experiment = client.get_experiment_by_name(target.experiment)
            check_packages(experiment.artifact_location)
            if KIND not in experiment.tags:
                client.set_experiment_tag(experiment.experiment_id, KIND, "custom_model_development")
        close_dead(client, experiment.experiment_id)
        return client, experiment.experiment_id


@functools.cache  # called for every job of a sweep
def _experiment_of(uri: str, run: str) -> str:
    return str(client_at(uri).get_run(run).info.experiment_id)


def close_dead(client: MlflowClient, experiment: str) -> list[str]:
    """Close the experiment's running runs whose process on this host has ended, as killed; return their ids."""
    running = f"attributes.status = 'RUNNING' and tags.`{HOST}` = '{this_process()[HOST]}'"
    dead = [run for run in client.search_runs([experiment], running) if gone(run.data.tags)]
    for run in dead:
        folder = run.data.tags.get("ortpipe.run_folder")
        last = None if folder is None else last_sign(Path(folder))
        client.set_tag(run.info.run_id, ERROR, died(run.data.tags))
        terminate(client, run.info.run_id, "KILLED", last or now())
    return [run.info.run_id for run in dead]


def terminate(client: MlflowClient, run: str, status: str, ended: int | None) -> None:
    """Close a run's record without printing its address, as MLflow would: the screen already shows it."""
    with contextlib.redirect_stdout(io.StringIO()):
        client.set_terminated(run, status, ended)


@contextlib.contextmanager
def reached(uri: str) -> Iterator[None]:
    """Convert any error of MLflow to one with a fix."""
    check_packages(uri)
    try:
        yield
    except TrackingError:
        raise  # it has its own fix
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise TrackingError(
            "The tracking server or database must be reachable.",
            got=f"{uri}: {reason[0][:300]}",
            fix="Start it, correct recorder.tracking_uri, or run with recorder=none and record the run's folder later: "
            "ortpipe sync FOLDER.",
        ) from error


def check_packages(uri: str) -> None:
    """Raise if the package for a URI is missing: MLflow would report it late, or retry for minutes."""
    scheme = uri.partition("://")[0]
    modules, fix = PACKAGES.get(scheme.partition("+")[0], ((), ""))
    if modules and not any(map(_is_installed, modules)):
        shown = uri if modules != DRIVERS else f"{scheme}://…"  # the URI may contain a password
        rule = f"MLflow needs an additional package for {scheme}://."
        raise TrackingError(rule, got=f"{shown}, and no {modules[0]}", fix=fix)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def client_at(uri: str) -> MlflowClient:
    """Return a client that sends no telemetry, and fails within seconds if a server is unreachable."""
    client = _import()(tracking_uri=uri)
    if "://" in uri and not uri.startswith("http"):
        _watch(uri)
    return client


def _watch(uri: str) -> None:
    """Remember the engines that connect to a database from now on."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine, make_url

    _databases.add(make_url(uri))
    if not event.contains(Engine, "engine_connect", _remember):
        event.listen(Engine, "engine_connect", _remember)


def _remember(connection: Any, *_: object) -> None:
    if connection.engine.url in _databases:
        _engines.add(connection.engine)


@functools.cache
def _import() -> type[MlflowClient]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    for module in ("db.utils", "model_registry.abstract_store"):
        logging.getLogger(f"mlflow.store.{module}").setLevel(logging.WARNING)
    from mlflow import MlflowClient

    atexit.register(close_databases)  # Python does not collect the connections at exit
    return MlflowClient


def close_databases() -> None:
    """Close MLflow's connections, which forked processes must not share.

    SQLite keeps written pages in a WAL file until the last connection is closed; a copy of the database alone would
    miss them.
    """
    for engine in [*_engines]:
        engine.dispose()


def or_none(read: Callable[[], Found]) -> Found | None:
    """Return the entity that MLflow has, None if it has no such run, model, version or alias."""
    try:
        return read()
    except Exception as error:
        if getattr(error, "error_code", None) not in UNKNOWN:  # MLflow's; importing its class takes seconds
            raise
        return None


@contextlib.contextmanager
def made_once() -> Iterator[None]:
    """Ignore the error if another process has created the same thing first, and use that one."""
    from mlflow import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


@contextlib.contextmanager
def _first_opened(uri: str) -> Iterator[None]:
    """Hold a lock next to a SQLite database, which only one process may create; create it if it does not exist."""
    database = database_of(uri)
    if database is None:
        yield
        return
    if not database.exists() and {"'", '"'} <= set(os.getcwd()):  # MLflow quotes the path in SQL with one of them
        rule = "MLflow cannot create a database in a working folder whose path has both kinds of quotes."
        raise TrackingError(rule, got=os.getcwd(), fix="Start in another folder, or run with recorder=none.")
    from sqlalchemy.engine import make_url

    if make_url(uri).database != str(database):
        rule = "SQLAlchemy reads %25 and %3F in a database's path from version 2.1 on."
        raise TrackingError(rule, got=uri, fix="Upgrade it (pip install 'sqlalchemy>=2.1'), or choose another path.")

    def warn(why: str) -> None:
        print(f"warning: no lock on {database}: {why}", file=sys.stderr)

    with lock(database.with_name(f"{database.name}.lock"), busy=lambda holder: None, missing=warn):
        if not database.exists() or not database.stat().st_size:
            _create(database.resolve())
        yield


def _create(database: Path) -> None:
    """Create MLflow's tables in a temporary file and rename it: MLflow cannot complete a partial set of tables."""
    with atomic_file(database) as partial:
        try:
            partial.touch()  # SQLite would create a file that group members cannot access, regardless of the umask
            client_at(uri_of(partial)).search_experiments(max_results=1)
            close_databases()
            with contextlib.closing(sqlite3.connect(partial)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
        finally:
            close_databases()
            for suffix in ("-journal", "-wal", "-shm"):
                partial.with_name(f"{partial.name}{suffix}").unlink(missing_ok=True)
