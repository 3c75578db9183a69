"""The jobs of a sweep over lists of values, and the few that are composed before the first one starts."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from ortpipe.app.compose import packaged_conf
from ortpipe.app.sweep.fork import Workers
from ortpipe.app.sweep.overrides import choices, sample
from ortpipe.errors import ConfigError


@pytest.fixture
def loader() -> Iterator[Any]:
    with initialize_config_dir(str(packaged_conf()), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def test_every_value_and_every_combination_of_files_is_composed_before_the_first_job(loader: Any) -> None:
    listed = choices(["add_loss=l1,l2", "train/optimizer=sgd,adam", "seed=0,1,2,3,4", "train.epochs=5"], loader)
    jobs = sample(listed, loader)
    assert len(jobs) == 5
    assert {tuple(job[:2]) for job in jobs} == {
        (f"add_loss={loss}", f"train/optimizer={optimizer}") for loss in ("l1", "l2") for optimizer in ("sgd", "adam")
    }
    assert {job[2] for job in jobs} == {f"seed={seed}" for seed in range(5)}
    assert {job[3] for job in jobs} == {"train.epochs=5"}


def test_a_job_that_does_not_compose_fails_with_the_error_of_its_own(loader: Any) -> None:
    config = loader.load_configuration("config", ["seed=0,1"], run_mode=RunMode.MULTIRUN)
    workers = Workers(1, SimpleNamespace(config_loader=loader), None, config)
    workers._jobs, workers._first = [["train.optimizer={bta1: 0.5}"]], 0
    with pytest.raises(ConfigError, match=r"train\.optimizer\.bta1 is not a key of the config"):
        _ = workers._run(0).return_value
