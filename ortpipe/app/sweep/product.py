"""The jobs of a sweep over lists of values: one per combination."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from ortpipe.app.redact import redacted
from ortpipe.errors import ConfigError
from ortpipe.files import atomic_write

BASIC = "basic"  # Hydra's choice for the group hydra/sweeper
SWEEPER = "hydra_plugins.ortpipe_plugins.ProductSweeper"


def choose(config: DictConfig) -> None:
    """Use ortpipe's sweeper for configs that choose Hydra's `basic`, which writes secrets into `multirun.yaml`."""
    if config.hydra.runtime.choices.get("hydra/sweeper") == BASIC:
        with open_dict(config):
            config.hydra.sweeper["_target_"] = SWEEPER


def write_config(config: DictConfig) -> None:
    """Write the sweep's `multirun.yaml`, with secrets masked."""
    atomic_write(Path(str(config.hydra.sweep.dir)) / "multirun.yaml", redacted(OmegaConf.to_yaml(config)))


def choices(arguments: Sequence[str], loader: ConfigLoader) -> dict[str, list[str]]:
    """Return the overrides to choose from by key; if a key occurs twice, the last one counts."""
    choices = dict[str, list[str]]()
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(arguments)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            rule, fix = "A sweep without a search must list its values.", "List them: {key}=0.1,0.2."
            raise ConfigError(rule, key=override.key_or_group, got=redacted(str(override.input_line)), fix=fix)
    return choices


def sample(choices: Mapping[str, Sequence[str]], loader: ConfigLoader) -> list[list[str]]:
    """Return a few jobs with every override, and with every combination of groups' files.

    Which keys a config has depends on its files. Composing every job of a large sweep would take most of its time.
    """
    groups = [key for key in choices if loader.get_group_options(key.lstrip("+").partition("@")[0])]
    files = [dict(zip(groups, job, strict=True)) for job in itertools.product(*(choices[key] for key in groups))]
    count = max(len(files), *map(len, choices.values()))
    return [
        [files[i % len(files)].get(key, values[i % len(values)]) for key, values in choices.items()]
        for i in range(count)
    ]
