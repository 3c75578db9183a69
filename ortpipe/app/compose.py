"""Where configs come from, and the config of a run without the run: for commands, from the same arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from ortpipe.app.key_origin import KeyOrigins
from ortpipe.app.redact import recordable
from ortpipe.app.tracking.sqlite import uri_of
from ortpipe.errors import ConfigError, quoted

if TYPE_CHECKING:
    from ortpipe.app.schema import RunConfig


def packaged_conf() -> Path:
    """Return the folder of the packaged configs: beside the code in a checkout, inside the package in a wheel."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


OmegaConf.register_new_resolver("packaged", lambda name: str(packaged_conf() / name), replace=True)
OmegaConf.register_new_resolver(
    "experiment", lambda: HydraConfig.get().runtime.choices.get("experiment", "run"), replace=True
)
# Hydra's own is not set yet where a sweep begins. The jobs of a sweep find the sweep's own in their config's cache.
OmegaConf.register_new_resolver("cwd", os.getcwd, replace=True, use_cache=True)


def _direction(objective: str) -> str:
    from ortpipe.metrics import greater_is_better

    return "maximize" if greater_is_better(objective) else "minimize"


OmegaConf.register_new_resolver("direction", _direction, replace=True)
OmegaConf.register_new_resolver("sqlite", uri_of, replace=True)


def check_working_folder() -> None:
    """Refuse a working folder whose path Hydra would read as a reference to a key."""
    if "${" in os.getcwd():
        rule = "Hydra reads ${…} in the path of the working folder as a reference to a key."
        raise ConfigError(rule, got=os.getcwd(), fix="Rename that folder, or start in another one.")


class Parser(argparse.ArgumentParser):
    """A command's arguments: its own options and, but for those without `overrides`, a run's pairs and --config-dir."""

    def __init__(self, name: str, about: str, *, overrides: bool = True) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(f"ortpipe {name}", description=about, allow_abbrev=False, formatter_class=form)
        self.name, self.overrides = name, overrides

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return what was given, in any order."""
        if self.overrides:
            about = "as of a run: see ortpipe --help"
            self.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=about)
            self.add_argument(
                "--config-dir", "-cd", metavar="FOLDER", help="your own configs, beside the packaged ones"
            )
        given, unknown = self.parse_known_intermixed_args(list(arguments))
        if unknown:
            raise ConfigError(f"ortpipe {self.name} has no such argument.", got=" ".join(unknown), fix=self._help())
        return given

    def error(self, message: str) -> NoReturn:
        """Refuse arguments that do not fit."""
        raise ConfigError(f"ortpipe {self.name} takes its arguments as its help says.", got=message, fix=self._help())

    def _help(self) -> str:
        return f"See ortpipe {self.name} --help."


@dataclass(frozen=True)
class Composition:
    """A composed config: its resolved values, those that are recorded (see `recordable`), and where each was set."""

    values: dict[str, Any]
    record: dict[str, Any]
    where: KeyOrigins | None


def composition(overrides: Sequence[str], config_dir: str | None = None) -> Composition:
    """Return the config that a run with these arguments has, as plain values."""
    config, where = unresolved(overrides, config_dir)
    values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return Composition(values, recordable(config), where)


def unresolved(overrides: Sequence[str], config_dir: str | None = None) -> tuple[DictConfig, KeyOrigins | None]:
    """Return the composed config without Hydra's own part, and where each key was set; raises as `composition`."""
    overrides = list(overrides)
    if config_dir is not None:
        folder = Path(config_dir).absolute()
        if not folder.is_dir():
            raise ConfigError("--config-dir is a folder.", got=config_dir, fix="Check its path.")
        overrides.append(f"hydra.searchpath=[{quoted(f'file://{folder}')}]")
    with initialize_config_dir(str(packaged_conf()), job_name="ortpipe", version_base="1.3"):
        config = compose("config", overrides, return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        where = KeyOrigins.now()
    with open_dict(config):
        del config["hydra"]
    return config, where


def composed(name: str, about: str, arguments: Sequence[str]) -> RunConfig:
    """Return the typed config of a command without options of its own; `--help` prints what the command is about."""
    from ortpipe.app.schema import build

    given = Parser(name, about).read(arguments)
    found = composition(given.overrides, given.config_dir)
    return build(found.values, found.where)
