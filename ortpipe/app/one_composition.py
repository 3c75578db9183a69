"""Hydra's loader of configs, which composes a run's config once: Hydra composes it before, too, to read hydra.mode."""

from hydra._internal import hydra as application
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.types import RunMode
from omegaconf import DictConfig

MODE = "hydra.mode=RUN"  # what Hydra adds to a run's overrides where no config has a mode


class OneComposition(ConfigLoaderImpl):
    """Keeps what it composed when Hydra asked for the mode, for the run that asks for the same."""

    _kept: tuple[str | None, list[str], DictConfig | Exception] | None = None

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Return the composed config; Hydra reads the mode, and only that, of one whose sweeps are not validated."""
        kept, self._kept = self._kept, None
        if not validate_sweep_overrides:
            try:
                config = super().load_configuration(config_name, overrides, RunMode.RUN, from_shell)
            except Exception as error:  # noqa: BLE001 - as Hydra does; a run raises it, a sweep may not meet it
                self._kept = config_name, [*overrides, MODE], error
            else:
                self._kept = config_name, [*overrides] + [MODE] * (config.hydra.mode is None), config
                return config
        elif kept is not None and run_mode == RunMode.RUN and kept[:2] == (config_name, overrides):
            if isinstance(kept[2], Exception):
                raise kept[2]
            if kept[2].hydra.mode is None:
                kept[2].hydra.mode = RunMode.RUN
                kept[2].hydra.overrides.hydra.append(MODE)
            return kept[2]
        return super().load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)


def compose_once() -> None:
    """Let Hydra's application load configs so."""
    application.ConfigLoaderImpl = OneComposition  # type: ignore[attr-defined]
