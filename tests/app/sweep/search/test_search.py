"""A search: its space, rungs and brackets, the trials that go on, and what it rejects before its first job."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from app.sweep.sweeps import TINY, folder_of, rows_of
from command import ortpipe
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from ortpipe import TrainConfig
from ortpipe.app.compose import packaged_conf
from ortpipe.app.sweep.fork import Workers
from ortpipe.app.sweep.search.config import SearchConfig, search_settings, settings_of
from ortpipe.app.sweep.search.space import Space
from ortpipe.app.sweep.search.trials import STUDY, Progress, _restarts, _values
from ortpipe.errors import ConfigError
from ortpipe.stages import restarts

optuna.logging.set_verbosity(optuna.logging.WARNING)

SIXTEEN = ("sampler", "random"), ("hyperband", False), ("n_trials", 16), ("batch", None), ("max_epochs", 16)
DEFAULTS = {**dict(SIXTEEN), "min_epochs": 1, "reduction": 4, "seeds": 1, "seed": 0}
WORDS = ["train.optimizer.lr=tag(log, interval(0.001, 1))", "train/optimizer=choice(sgd, adam)", "train.batch_size=8"]

Jobs = list[list[dict[str, str]]]  # by launch


def _value(job: dict[str, str]) -> float | None:
    """Return a loss: the best rate is 0.1, more epochs are better, and high rates diverge."""
    rate = float(job["train.optimizer.lr"])
    return None if rate > 0.5 else abs(math.log10(rate) + 1) + 1 / int(job["train.epochs"])


def _run(
    words: Sequence[str] = WORDS, value: Callable[[dict[str, str]], float | None] = _value, stop: int = 99, **own: Any
) -> tuple[Jobs, list[Any]]:
    """Run a search whose jobs have these values; return its jobs and trials. It is stopped in launch `stop`."""
    launches: Jobs = []

    def launch(jobs: Sequence[Sequence[str]], first: int) -> list[float | None]:
        assert first == sum(map(len, launches))
        launches.append([dict(word.split("=", 1) for word in job) for job in jobs])
        if len(launches) == stop:
            raise KeyboardInterrupt
        return [value(job) for job in launches[-1]]

    settings, space = SearchConfig(**{**DEFAULTS, **own}), Space.of(words, None)
    grid = space.combinations() if settings.sampler == "grid" else []
    search = Progress(settings, space, grid, optuna.create_study(), launch)
    if stop < 99:
        with pytest.raises(KeyboardInterrupt):
            search.run()
    else:
        search.run()
    return launches, search.study.trials


def test_the_best_quarter_of_a_rung_goes_on_and_failed_trials_do_not() -> None:
    launches, trials = _run()
    assert [len(jobs) for jobs in launches] == [16, 4, 1]
    assert [{job["train.epochs"] for job in jobs} for jobs in launches] == [{"1"}, {"4"}, {"16"}]
    for jobs, following in itertools.pairwise(launches):
        values = {job["train.optimizer.lr"]: _value(job) for job in jobs}
        best = sorted(rate for rate in values if values[rate] is not None)
        best.sort(key=lambda rate: values[rate] or 0)
        assert {job["train.optimizer.lr"] for job in following} == set(best[: len(jobs) // 4])
    states = [trial.state.name for trial in trials]
    failed = sum(_value(job) is None for job in launches[0])
    assert failed > 0
    assert (states.count("FAIL"), states.count("PRUNED"), states.count("COMPLETE")) == (failed, 15 - failed, 1)
    assert all(job["train.batch_size"] == "8" for jobs in launches for job in jobs)


@pytest.mark.parametrize(
    "own", [{"n_trials": 8}, {"sampler": "tpe", "batch": 4}, {"hyperband": True, "n_trials": None}], ids=str
)
def test_a_search_that_was_stopped_runs_the_same_jobs_again(own: dict[str, Any]) -> None:
    whole, _ = _run(**own)
    assert _run(stop=3, **own)[0] == whole[:3]
    assert _run(**own)[0] == whole
    assert _run(seed=1, **own)[0] != whole


def test_the_estimator_learns_from_stopped_trials() -> None:
    def far(jobs: Jobs) -> float:
        return sum(abs(math.log10(float(job["train.optimizer.lr"])) + 1) for job in jobs[0])

    launches, _ = _run(sampler="tpe", batch=8, n_trials=40)
    first = [jobs for jobs in launches if jobs[0]["train.epochs"] == "1"]
    assert [len(jobs) for jobs in first] == [8] * 5
    assert far(first[-1:]) < far(first[:1])


def test_trials_are_compared_by_their_mean_over_seeds() -> None:
    launches, trials = _run(value=lambda job: float(job["seed"]), n_trials=4, seeds=3, seed=5)
    assert [job["seed"] for job in launches[0]] == ["5", "6", "7"] * 4
    assert trials[0].intermediate_values == {1: 6.0, 4: 6.0, 16: 6.0}
    assert trials[0].user_attrs["deviation after 4 epochs"] == 1.0
    assert trials[0].user_attrs["jobs after 4 epochs"] == [12, 13, 14]


def test_a_grid_has_each_combination_once() -> None:
    words = ["train.optimizer.lr=0.1,0.2", "train.batch_size=range(8, 40, 8)"]
    launches, _ = _run(words, sampler="grid", n_trials=None)
    found = {(job["train.optimizer.lr"], job["train.batch_size"]) for job in launches[0]}
    assert found == {(rate, size) for rate in ("0.1", "0.2") for size in ("8", "16", "24", "32")}


def test_hyperbands_brackets_are_those_of_its_paper() -> None:
    settings = SearchConfig(**{**DEFAULTS, "hyperband": True, "n_trials": None, "max_epochs": 81, "reduction": 3})
    brackets = list(settings.brackets(0))  # Li et al. (2018), algorithm 1, for R = 81 and η = 3
    assert [(count, rungs[0]) for count, rungs in brackets] == [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)]
    assert all(rungs[-1] == 81 for _, rungs in brackets)


def test_overrides_become_distributions() -> None:
    words = [
        "a=int(interval(1, 9))",
        "b=tag(log, range(1, 9))",
        "c=interval(0, 1)",
        "d=[1,2],[3]",
        "e=range(0.1, 0.5, 0.2)",
    ]
    kinds = optuna.distributions
    assert Space.of(words, None).distributions == {
        "a": kinds.IntDistribution(1, 9),
        "b": kinds.IntDistribution(1, 8, log=True),
        "c": kinds.FloatDistribution(0.0, 1.0),
        "d": kinds.CategoricalDistribution(["[1,2]", "[3]"]),
        "e": kinds.FloatDistribution(0.1, 0.1 + 0.2, step=0.2),
    }
    for word in ("a=interval(2, 1)", "a=tag(log, interval(0, 1))", "a=shuffle(1, 2)", "a=tag(x, choice(1, 2))", "a=1"):
        with pytest.raises(ConfigError):
            Space.of([word], None)


@functools.cache
def _config() -> DictConfig:
    with initialize_config_dir(str(packaged_conf()), version_base="1.3"):
        return compose("config", ["hparams_search=asha"], return_hydra_config=True)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("data.split.validation", 0.0, "data.split.validation=0.15"),
        ("train.epochs", 3, "hydra.sweeper.min_epochs must be at most 3"),
        ("hydra.sweeper.n_trials", None, "needs a number of trials"),
        ("hydra.sweeper.hyperband", True, "hydra.sweeper.n_trials=null"),
        ("hydra.sweeper.sampler", "grid", "hydra.sweeper.n_trials=null"),
        ("hydra.sweeper.sampler", "tpa", "hydra.sweeper.sampler"),
    ],
)
def test_settings_that_fit_no_search_are_rejected(key: str, value: object, message: str) -> None:
    config = _config().copy()
    OmegaConf.update(config, key, value)
    with pytest.raises(ConfigError, match=message):
        search_settings(config, {})


@pytest.mark.parametrize("key", ["train.epochs", "seed"])
def test_a_search_sets_its_own_keys(key: str) -> None:
    with pytest.raises(ConfigError, match=f"sets {key} itself"):
        search_settings(_config(), {key: "1,2"})


def test_a_missing_optuna_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'ortpipe\[optuna\]'"):
        search_settings(_config(), {})


def test_a_schedule_over_the_whole_training_starts_each_rung_anew() -> None:
    from ortpipe import OPTIMIZERS, SCHEDULES

    assert restarts(TrainConfig(epochs=64), 4, 16) is None
    assert restarts(TrainConfig(schedule=SCHEDULES["cosine"](period=8)), 4, 16) is None
    assert "total number of epochs" in str(restarts(TrainConfig(schedule=SCHEDULES["one_cycle"]()), 4, 16))
    assert "validation" in str(restarts(TrainConfig(validate_every=3), 4, 16))
    config = _config().copy()
    OmegaConf.update(config, "train.schedule", {"name": "one_cycle"}, merge=False)
    [note] = _restarts(config, settings_of(config))
    assert "total number of epochs" in note
    assert "lbfgs" in str(restarts(TrainConfig(optimizer=OPTIMIZERS["lbfgs"]()), 4, 16))


def test_a_search_continues_from_the_store_and_records_its_rungs(tmp_path: Path) -> None:
    few = ("hydra.sweeper.n_trials=2", "hydra.sweeper.min_epochs=1", "hydra.sweeper.reduction=2")
    rates = "train.optimizer.lr=tag(log, interval(0.01, 0.1))"
    own = ("objective=r2", "figures=false", "recorder=none")
    done = ortpipe("-m", "hparams_search=asha", *TINY, *few, rates, *own, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = folder_of(tmp_path)
    rows = rows_of(folder)
    assert [row["train.epochs"] for row in rows] == ["1", "1", "2"]
    assert done.stderr.count("continues after epoch 1") == 1
    note = (folder / "summary.md").read_text()  # MLflow shows it
    assert "| 1 | 2 | 2 |" in note
    assert "| 2 | 1 | 1 |" in note
    journal = optuna.storages.journal.JournalFileBackend(str(folder / STUDY))
    study = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(journal))
    assert sorted(trial.state.name for trial in study.trials) == ["COMPLETE", "PRUNED"]
    assert study.best_value == float(rows[2]["validation/r2"])


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Take back the handlers that Hydra sets, which write to the output that pytest captures of one test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("own_logging")
def test_a_killed_job_is_a_failed_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(workers: Workers, job: int) -> JobReturn:
        if job == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        result = JobReturn(status=JobStatus.COMPLETED)
        result.return_value = float(job)
        return result

    monkeypatch.setattr(Workers, "_run", run)
    with initialize_config_dir(str(packaged_conf()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        config = loader.load_configuration("config", [f"paths.outputs={tmp_path}"], run_mode=RunMode.MULTIRUN)
    workers = Workers(1, HydraContext(loader, None), None, config)
    launcher = SimpleNamespace(launch=lambda jobs, initial_job_idx: workers.run(jobs, initial_job_idx))
    assert _values(launcher, [["seed=0"], ["seed=1"], ["seed=2"]], 4) == [0.0, None, 2.0]
    assert "jobs 5 were killed" in capsys.readouterr().err
