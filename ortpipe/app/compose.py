"""Where configs come from, and the config of a run without the run: for commands, from the same arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from ortpipe.errors import ConfigError

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
OmegaConf.register_new_resolver("cwd", os.getcwd, replace=True)  # Hydra's own is not set yet where a sweep begins


def composed(name: str, about: str, arguments: Sequence[str]) -> RunConfig:
    """Return the typed config that a run with these arguments has; `--help` prints what the command is about.

    Raises:
        ConfigError: as for a run; or an argument is an option that commands do not have.
    """
    parser = argparse.ArgumentParser(f"ortpipe {name}", description=about, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as of a run: see ortpipe --help")
    parser.add_argument("--config-dir", "-cd", metavar="FOLDER", help="your own configs, beside the packaged ones")
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        fix = f"Give key=value pairs; see ortpipe {name} --help."
        raise ConfigError(f"ortpipe {name} takes overrides and --config-dir.", got=" ".join(unknown), fix=fix)
    overrides = list(given.overrides)
    if given.config_dir is not None:
        folder = Path(given.config_dir).absolute()
        if not folder.is_dir():
            raise ConfigError("--config-dir is a folder.", got=given.config_dir, fix="Check its path.")
        overrides.append(f"hydra.searchpath=['file://{folder}']")
    with initialize_config_dir(str(packaged_conf()), job_name="ortpipe", version_base="1.3"):
        config = compose("config", overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    from ortpipe.app.schema import build

    container: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return build(container)
