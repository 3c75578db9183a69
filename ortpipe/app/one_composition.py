"""Hydra's loader of configs, which composes a run's config once, and what is the same in a sweep's jobs once for all.

Hydra composes a run's config before, too, to read hydra.mode, and a job's to look whether it can be.
"""

import copy
import dataclasses
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from hydra._internal import config_loader_impl as loading
from hydra._internal import hydra as application
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

MOST = 200  # jobs whose configs are kept from the look whether they can be composed: each takes some 200 kB
MODE = "hydra.mode=RUN"  # what Hydra adds to a run's overrides where no config has a mode


class Composed:
    """What was read and merged for the jobs of one sweep: they differ in few choices, and mostly in values."""

    def __init__(self) -> None:
        self.files: dict[Any, CachingConfigRepository] = {}  # by the folders of configs that overrides name
        self.choices: dict[Any, DefaultsList] = {}  # which files there are, by what is chosen of each group
        self.merged: dict[Any, DictConfig] = {}  # by the files; each job changes a copy
        self.jobs: dict[tuple[str, ...], DictConfig] = {}  # by their overrides, until the job takes it


_latest: dict[str, Composed] = {}  # of this process's latest sweep; workers unpickle its loader anew for each job


class OneComposition(ConfigLoaderImpl):
    """Keeps what it composed when Hydra asked for the mode, for the run that asks for the same.

    Of a sweep's jobs it keeps the files and what they give together, so that each job sets but its values; and the
    configs of the latest batch, which this process and those that it forks take.
    """

    _kept: tuple[str | None, list[str], DictConfig | Exception] | None = None
    _sweep: str | None = None  # the key of what is kept of its jobs
    _shared: Composed | None = None  # while a job's config is composed

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Return the composed config; Hydra reads the mode, and only that, of one whose sweeps are not validated."""
        cached, self._kept = self._kept, None
        if not validate_sweep_overrides:
            try:
                config = super().load_configuration(config_name, overrides, RunMode.RUN, from_shell)
            except Exception as error:  # noqa: BLE001 - as Hydra does; a run raises it, a sweep may not meet it
                self._kept = config_name, [*overrides, MODE], error
            else:
                self._kept = config_name, [*overrides] + [MODE] * (config.hydra.mode is None), config
                return config
        elif cached is not None and run_mode == RunMode.RUN and cached[:2] == (config_name, overrides):
            if isinstance(cached[2], Exception):
                raise cached[2]
            if cached[2].hydra.mode is None:
                cached[2].hydra.mode = RunMode.RUN
                cached[2].hydra.overrides.hydra.append(MODE)
            return cached[2]
        return super().load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Return the config of a sweep's job."""
        self._sweep = self._sweep or uuid.uuid4().hex
        if self._sweep not in _latest:
            _latest.clear()
            _latest[self._sweep] = Composed()
        self._shared = _latest[self._sweep]
        try:
            config = self._shared.jobs.pop((*_given(master_config), *sweep_overrides), None)
            if config is None:
                return super().load_sweep_config(master_config, sweep_overrides)
            OmegaConf.copy_cache(from_config=master_config, to_config=config)  # as Hydra does
            return config
        finally:
            self._shared = None

    def validate(self, master_config: DictConfig, batch: Sequence[Sequence[str]]) -> None:
        """Compose the configs of jobs, which take them later."""
        jobs: dict[tuple[str, ...], DictConfig] = {}
        if self._sweep in _latest:
            _latest[self._sweep].jobs = {}
        for overrides in batch:
            config = self.load_sweep_config(master_config, list(overrides))
            if len(jobs) < MOST:
                jobs[*_given(master_config), *overrides] = config
        if jobs and self._sweep is not None:
            _latest[self._sweep].jobs = jobs

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        if self._shared is None:
            return super()._parse_overrides_and_create_caching_repo(config_name, overrides)
        key = config_name, *(line for line in overrides if "hydra.searchpath" in line)
        if key not in self._shared.files:
            parsed, files = super()._parse_overrides_and_create_caching_repo(config_name, overrides)
            self._shared.files[key] = files
            return parsed, files
        return OverridesParser.create().parse_overrides(overrides=overrides), self._shared.files[key]

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        if self._shared is None:
            return super()._compose_config_from_defaults_list(defaults, repo)
        key = id(repo), repr(defaults)
        if key not in self._shared.merged:
            # A copy of the files: merging takes nodes over, which then belong to the result
            config = super()._compose_config_from_defaults_list(defaults, copy.deepcopy(repo))
            self._shared.merged[key] = config
        # `pickle` is faster, but in a worker Hydra has imported its plugins, whose classes a config holds, twice
        return copy.deepcopy(self._shared.merged[key])

    def _load_configuration_impl(self, *args: Any, **kwargs: Any) -> DictConfig:
        _use(create_defaults_list if self._shared is None else self._choices)
        try:
            return super()._load_configuration_impl(*args, **kwargs)
        finally:
            _use(create_defaults_list)

    def _choices(
        self,
        repo: IConfigRepository,
        config_name: str | None,
        overrides_list: list[Override],
        prepend_hydra: bool,
        skip_missing: bool,
    ) -> DefaultsList:
        """Return which files a job's config is made of; overrides of values have no part in that."""
        assert self._shared is not None
        groups, values = list[str | None](), list[Override]()
        for override in overrides_list:
            if repo.group_exists(override.key_or_group) and not isinstance(override.value(), dict):
                groups.append(override.input_line)
            else:
                values.append(override)
        key = id(repo), config_name, prepend_hydra, skip_missing, *groups
        if key not in self._shared.choices:
            defaults = create_defaults_list(repo, config_name, overrides_list, prepend_hydra, skip_missing)
            self._shared.choices[key] = defaults
        return dataclasses.replace(self._shared.choices[key], config_overrides=values)


def _use(defaults_list: Callable[..., DefaultsList]) -> None:
    loading.create_defaults_list = defaults_list  # type: ignore[attr-defined]


def _given(master_config: DictConfig) -> list[str]:
    return [str(master_config.hydra.job.config_name), *master_config.hydra.overrides.hydra]


def _validate(sweeper: Sweeper, batch: Sequence[Sequence[str]]) -> None:
    loader = None if sweeper.hydra_context is None else sweeper.hydra_context.config_loader
    if isinstance(loader, OneComposition) and sweeper.config is not None:
        loader.validate(sweeper.config, batch)
    else:
        _by_hydra(sweeper, batch)


_by_hydra = Sweeper.validate_batch_is_legal


def compose_once() -> None:
    """Let Hydra's application load configs so."""
    application.ConfigLoaderImpl = OneComposition  # type: ignore[attr-defined]
    Sweeper.validate_batch_is_legal = _validate  # type: ignore[method-assign, assignment]
