"""A run's config is composed once, and is the one that Hydra composes by itself."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hydra._internal import hydra as application
from hydra._internal import utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import OmegaConf

from ortpipe.app.compose import packaged_conf
from ortpipe.app.one_composition import OneComposition, compose_once


def begun(
    loader: type[ConfigLoaderImpl], overrides: Sequence[str], multirun: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, int]:
    """Return the mode and the config with which Hydra's application begins, or its error, and its compositions."""
    monkeypatch.setattr(application, "ConfigLoaderImpl", loader)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    compositions, begins = [], []
    defaults = ConfigLoaderImpl._compose_config_from_defaults_list

    def composed(self: Any, *arguments: Any, **options: Any) -> Any:
        compositions.append(1)
        return defaults(self, *arguments, **options)

    monkeypatch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", composed)
    path = utils.create_config_search_path(str(packaged_conf()))
    hydra = application.Hydra.create_main_hydra2("ortpipe", path)

    def begin(mode: RunMode) -> Any:
        return lambda config_name, overrides, task_function: begins.append(
            f"{mode} {OmegaConf.to_yaml(hydra.compose_config(config_name, overrides, mode))}"
        )

    hydra.run, hydra.multirun = begin(RunMode.RUN), begin(RunMode.MULTIRUN)  # type: ignore[method-assign]
    given = [*overrides]
    try:
        mode = hydra.get_mode("config", given)
        utils._run_app(not multirun, multirun, mode, hydra, "config", lambda config: None, given)
    except Exception as error:  # noqa: BLE001 - the same is to come of both
        begins.append(repr(error))
    finally:
        GlobalHydra.instance().clear()
        monkeypatch.undo()
    return begins[0], len(compositions)


@pytest.mark.parametrize(
    ("overrides", "multirun", "times"),
    [
        (["seed=3", "hydra.verbose=true"], False, 1),
        (["hydra.mode=RUN"], False, 1),
        (["~experiment", "data=iris", "add_loss=cross_entropy"], False, 1),
        (["seed=1,2"], True, 2),
        (["seed=3"], True, 2),
        (["hparams_search=grid"], False, 2),
        (["hydra.mode=MULTIRUN", "seed=1,2"], False, 2),
        (["seed=1,2"], False, 1),
        (["nonsense=1"], False, 2),
        (["train.epochs=[", "seed=1"], False, 0),
        (["data=no_such"], False, 0),
    ],
)
def test_what_begins_is_what_hydra_begins(
    overrides: Sequence[str], multirun: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, count = begun(OneComposition, overrides, multirun, monkeypatch)
    theirs, _ = begun(ConfigLoaderImpl, overrides, multirun, monkeypatch)
    assert ours == theirs
    assert count == times


def jobs(loader: type[ConfigLoaderImpl], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the configs of a sweep's jobs, or their errors; every second one is composed as in a worker."""
    monkeypatch.setattr(application, "ConfigLoaderImpl", loader)
    hydra = application.Hydra.create_main_hydra2("ortpipe", utils.create_config_search_path(str(packaged_conf())))
    told = []
    try:
        master = hydra.compose_config("config", ["seed=1,2"], RunMode.MULTIRUN)
        for i, overrides in enumerate(JOBS):
            worker = pickle.loads(pickle.dumps(hydra.config_loader)) if i % 2 else hydra.config_loader
            try:
                config = worker.load_sweep_config(master, [*overrides])
            except Exception as error:  # noqa: BLE001 - the same is to come of both
                told.append(repr(error))
                continue
            told.append(OmegaConf.to_yaml(config))
            config.train.optimizer = {"name": "another"}  # of this job alone
    finally:
        GlobalHydra.instance().clear()
        monkeypatch.undo()
    return told


JOBS = (
    ["seed=1"],
    ["seed=2", "train.optimizer.lr=0.5"],
    ["seed=3", "train/optimizer=adam"],
    ["seed=4", "~train.optimizer.lr"],
    ["seed=5"],
    ["nonsense=1"],
    ["data=no_such"],
    ["seed=6", "train/optimizer=adam", "+train.optimizer.other={a: 1}"],
    ["seed=7", "train/optimizer=adam"],
)


def test_jobs_of_a_sweep_have_the_configs_that_hydra_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobs(OneComposition, monkeypatch) == jobs(ConfigLoaderImpl, monkeypatch)


def test_a_job_takes_the_config_that_was_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "ConfigLoaderImpl", OneComposition)
    compositions = []
    load = ConfigLoaderImpl.load_sweep_config

    def counted(self: Any, *arguments: Any) -> Any:
        compositions.append(arguments[1])
        return load(self, *arguments)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counted)
    hydra = application.Hydra.create_main_hydra2("ortpipe", utils.create_config_search_path(str(packaged_conf())))
    try:
        master, loader = hydra.compose_config("config", ["seed=1,2"], RunMode.MULTIRUN), hydra.config_loader
        batch = [["seed=1"], ["seed=2"], ["seed=1"]]  # one of them twice: each job has a config of its own
        loader.validate(master, batch)
        assert compositions == batch
        configs = [loader.load_sweep_config(master, [*overrides]) for overrides in batch]
        assert compositions == [*batch, ["seed=1"]]
        assert [config.seed for config in configs] == [1, 2, 1]
        assert configs[0] is not configs[2]
        assert OmegaConf.to_yaml(configs[0]) == OmegaConf.to_yaml(configs[2])
        loader.validate(master, [["seed=3"]])
        loader.validate(master, [["seed=4"]])
        assert len(compositions) == 6
        assert loader.load_sweep_config(master, ["seed=3"]).seed == 3  # of an earlier batch: composed again
        assert len(compositions) == 7
    finally:
        GlobalHydra.instance().clear()


def test_the_command_line_composes_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "ConfigLoaderImpl", ConfigLoaderImpl)
    monkeypatch.setattr(Sweeper, "validate_batch_is_legal", Sweeper.validate_batch_is_legal)
    compose_once()
    assert application.ConfigLoaderImpl is OneComposition
