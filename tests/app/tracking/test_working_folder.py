"""Runs started in folders of any name: MLflow's database and artifacts lie in that folder, and nothing beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from ortpipe.app.compose import Composition, check_working_folder
from ortpipe.app.schema import build
from ortpipe.app.tracking.client import open_store
from ortpipe.app.tracking.recorders.mlflow import Mlflow
from ortpipe.app.tracking.sqlite import database_of, uri_of
from ortpipe.errors import ConfigError, TrackingError

NAMES = [
    "q?x",
    "a%20b",
    "%3F",
    "h#x",
    "it's",
    'a"b',
    "both'\"",
    "s p",
    "größe",
    "new\nline",
    "back\\slash",
    "x=1&y;,[]{}",
]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database as MLflow makes it, which takes it seconds."""
    folder = tmp_path_factory.mktemp("empty")
    open_store(Mlflow(f"sqlite:///{folder}/mlflow.db", artifacts=str(folder)))
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder / "mlflow.db"


@pytest.mark.parametrize("name", NAMES)
def test_mlflow_records_in_a_folder_of_any_name(
    name: str, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name / "outputs").mkdir(parents=True)
    shutil.copy(empty, place := tmp_path / name / "outputs" / "mlflow.db")
    monkeypatch.chdir(tmp_path / name)
    target = build(Composition(["experiment=linear_regression"]).values).recorder
    assert isinstance(target, Mlflow)
    assert Mlflow(target.tracking_uri).tracking_uri == target.tracking_uri  # as a record is read back
    client, experiment = open_store(target)
    client.create_run(experiment, run_name="here")
    with contextlib.closing(sqlite3.connect(place)) as connection:
        assert connection.execute("SELECT name FROM runs").fetchall() == [("here",)]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_configs_lie_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name / "experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults: [linear_regression]\nseed: 7\n"
    (tmp_path / name / "experiment" / "own.yaml").write_text(text, encoding="utf-8")
    assert Composition(["experiment=own"], str(tmp_path / name)).values["seed"] == 7


def test_a_folder_that_hydra_or_mlflow_cannot_work_in_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a${b}", "both'\""):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a${b}")
    with pytest.raises(ConfigError, match="start in another"):
        check_working_folder()
    os.chdir(tmp_path / "both'\"")
    check_working_folder()
    with pytest.raises(TrackingError, match="both kinds of quotes"):
        open_store(Mlflow("sqlite:///mlflow.db"))
    assert not Path("mlflow.db").exists()


def test_a_path_that_is_no_uri_is_refused_with_its_uri(tmp_path: Path) -> None:
    for name in ("q?x", "a%20b"):
        (tmp_path / name).mkdir()
        with pytest.raises(ConfigError) as refused:
            Mlflow(f"sqlite:///{tmp_path / name}/mlflow.db")
        uri = uri_of(tmp_path / name / "mlflow.db")
        assert uri in str(refused.value)
        assert database_of(Mlflow(uri).tracking_uri) == tmp_path / name / "mlflow.db"
    assert Mlflow(f"sqlite:///{tmp_path}/m.db?timeout=30").tracking_uri == f"sqlite:///{tmp_path}/m.db?timeout=30"
