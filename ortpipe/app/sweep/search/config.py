"""The settings of a search, its rungs and brackets, and the checks before its first job."""

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge
from omegaconf import DictConfig, OmegaConf

from ortpipe.app.sweep.summary import EPOCHS
from ortpipe.errors import ConfigError, under
from ortpipe.settings import Config, Count, Seed

SWEEPER = "search"  # Hydra's choice for the group hydra/sweeper
SEED = "seed"  # the key that a search sets in each job, besides EPOCHS


@dataclass(frozen=True)
class SearchConfig(Config):
    """The settings of a search; conf/hydra/sweeper/search.yaml explains each.

    Attributes:
        sampler: how trials are chosen: every combination (grid), at random, or from earlier results (tpe).
        hyperband: whether to run Hyperband's brackets, which set the number of trials, instead of one bracket.
        n_trials: the number of trials; None for grid and hyperband.
        batch: the number of trials to choose at a time; None: all of a bracket.
        max_epochs: the epochs of the last rung.
        min_epochs: the least epochs of the first rung.
        reduction: each rung has this many times the epochs of the one before, and one of this many trials goes on.
        seeds: the number of seeds to train each trial with.
        seed: the first of these seeds, and the sampler's.
    """

    sampler: Literal["grid", "random", "tpe"]
    hyperband: bool
    n_trials: Count | None
    batch: Count | None
    max_epochs: Count
    min_epochs: Count
    reduction: Annotated[int, Ge(2)]
    seeds: Count
    seed: Seed

    def __post_init__(self) -> None:
        if self.min_epochs > self.max_epochs:
            rule, fix = f"{{key}} must be at most {self.max_epochs}, the epochs of the last rung.", "Lower {key}."
            raise ConfigError(rule, key="min_epochs", got=self.min_epochs, fix=fix)
        counted = "hyperband=true" if self.hyperband else "sampler=grid" if self.sampler == "grid" else None
        if self.hyperband and self.sampler == "grid":
            rule, fix = "Hyperband draws its trials.", "Set {key}=random or {key}=tpe."
            raise ConfigError(rule, key="sampler", got="grid", fix=fix)
        if counted is not None and self.n_trials is not None:
            rule, fix = f"{counted} sets the number of trials.", "Set {key}=null."
            raise ConfigError(rule, key="n_trials", got=self.n_trials, fix=fix)
        if counted is None and self.n_trials is None:
            rule, fix = f"With sampler={self.sampler}, a search needs a number of trials.", "Set {key}=32."
            raise ConfigError(rule, key="n_trials", got=None, fix=fix)

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs of the rungs, from the first."""
        rungs = [self.max_epochs]
        while (epochs := rungs[0] // self.reduction) >= self.min_epochs:
            rungs.insert(0, epochs)
        return tuple(rungs)

    def brackets(self, combinations: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the number of trials and the rungs of each bracket; a grid has this many combinations.

        Hyperband's brackets are those of Li et al. (2018): from many trials with few epochs to a few with all epochs.
        """
        rungs = self.rungs
        if not self.hyperband:
            yield self.n_trials or combinations, rungs
        for start in range(len(rungs)) if self.hyperband else ():
            promotions = len(rungs) - 1 - start
            yield math.ceil(len(rungs) / (promotions + 1) * self.reduction**promotions), rungs[start:]

    @property
    def overrides(self) -> list[str]:
        """The values that the search gives to keys of its own in its jobs, as a sweep's override."""
        seeds = range(self.seed, self.seed + self.seeds)
        return [f"{key}={','.join(map(str, values))}" for key, values in ((EPOCHS, self.rungs), (SEED, seeds))]


def search_settings(config: DictConfig, varies: Mapping[str, str]) -> SearchConfig | None:
    """Return the checked settings of a sweep's search; None if its sweeper is another one.

    Args:
        config: the config of the sweep.
        varies: the keys that it varies.
    """
    if config.hydra.runtime.choices.get("hydra/sweeper") != SWEEPER:
        return None
    if importlib.util.find_spec("optuna") is None:
        rule = "A search needs the package optuna, which is not installed."
        raise ConfigError(rule, key="hparams_search", fix="pip install 'ortpipe[optuna]'")
    settings = settings_of(config)
    for key, instead in ((EPOCHS, "max_epochs"), (SEED, "seeds")):
        if key in varies:
            rule, fix = "A search sets {key} itself.", f"Give it one value, and set hydra.sweeper.{instead}."
            raise ConfigError(rule, key=key, got=varies[key], fix=fix)
    split = ("data.split.validation", "data.split.column")
    if not any(key in varies or OmegaConf.select(config, key) for key in split):
        rule = "A search compares its trials on validation rows; test rows must not influence choices."
        raise ConfigError(rule, key=split[0], got="no validation rows", fix="Set {key}=0.15.")
    return settings


def settings_of(config: DictConfig) -> SearchConfig:
    """Return the settings of the search that a sweep's config describes."""
    node: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
    with under("hydra.sweeper"):
        return SearchConfig(**{key: value for key, value in node.items() if key not in ("_target_", "params")})
