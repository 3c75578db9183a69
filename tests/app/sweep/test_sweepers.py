"""Optuna proposes jobs: in the right direction, past failing ones, and again the same."""

from __future__ import annotations

import contextlib
import importlib.util
import sqlite3
from pathlib import Path

import pytest
from app.sweep.sweeps import TINY, folder_of, rows_of
from command import ortpipe

DIVERGE = 'hydra.sweeper.params={train.optimizer.lr: "tag(log, interval(0.001, 100))"}'  # most of them
CONVERGE = 'hydra.sweeper.params={train.optimizer.lr: "tag(log, interval(0.001, 0.1))"}'
STUDY = ("-m", "hparams_search=optuna", *TINY, "recorder=none", "objective=r2")


@pytest.fixture(autouse=True)
def optuna() -> None:
    if importlib.util.find_spec("hydra_plugins.hydra_optuna_sweeper") is None:
        pytest.skip("the extra [optuna] is not installed")


def test_a_study_maximizes_its_metric_survives_failures_and_starts_again_where_it_was(tmp_path: Path) -> None:
    done = ortpipe(*STUDY, DIVERGE, "hydra.sweeper.n_trials=3", cwd=tmp_path)
    first = rows_of(folder_of(tmp_path))
    assert {row["status"] for row in first} == {"finished", "failed"}
    assert done.returncode == 1
    assert "Directions: ['maximize']" in done.stdout
    best = max(float(row["validation/r2"]) for row in first if row["validation/r2"])
    assert f"Best value: {best}" in done.stdout
    ortpipe(*STUDY, DIVERGE, "hydra.sweeper.n_trials=5", cwd=tmp_path)
    second = rows_of(folder_of(tmp_path))
    assert len(second) == 5
    assert [row["train.optimizer.lr"] for row in second[:3]] == [row["train.optimizer.lr"] for row in first]
    assert {row["hits"] for row in second[:3] if row["status"] == "finished"} == {"6/6"}


def test_a_study_in_a_database_goes_on_where_it_was(tmp_path: Path) -> None:
    import sqlalchemy

    newer = int(sqlalchemy.__version__.split(".")[0]) >= 2
    storage = (
        f"hydra.sweeper.storage=sqlite:///{tmp_path}/study.db",
        "hydra.sweeper.study_name=mine",
        "hydra.sweeper.sampler.seed=null",
    )
    if newer:  # the extra [optuna] brings an SQLAlchemy that Optuna's database knows; another one is installed
        done = ortpipe(*STUDY, CONVERGE, *storage, cwd=tmp_path)
        assert done.returncode == 1
        assert "A study in a database needs SQLAlchemy below version 2." in done.stderr
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []
        pytest.skip(f"the installed SQLAlchemy is {sqlalchemy.__version__}")
    rates = []
    for _ in range(2):
        done = ortpipe(*STUDY, CONVERGE, *storage, "hydra.sweeper.n_trials=3", cwd=tmp_path)
        rates += [row["train.optimizer.lr"] for row in rows_of(folder_of(tmp_path))]
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database:
        trials = database.execute("SELECT number, state FROM trials ORDER BY number").fetchall()
        [best] = database.execute("SELECT MAX(value) FROM trial_values").fetchone()
    assert [number for number, _ in trials] == [*range(6)]
    assert {state for _, state in trials} <= {"COMPLETE", "FAIL"}
    assert len(set(rates)) == 6
    assert f"Best value: {best}" in done.stdout


def test_a_random_search_draws_what_it_was_told_to_draw(tmp_path: Path) -> None:
    done = ortpipe("-m", "hparams_search=random", *TINY, "recorder=none", "hydra.sweeper.n_trials=2", cwd=tmp_path)
    assert "Sampler: RandomSampler" in done.stdout
    rates = {float(row["train.optimizer.lr"]) for row in rows_of(folder_of(tmp_path))}
    assert len(rates) == 2
    assert all(0.01 <= rate <= 1 for rate in rates)
