"""The overrides of a sweep: its jobs, the keys that vary between them, and their short names."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from ortpipe.app.compose import parsed
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
    for key, override in parsed(arguments, loader).items():
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


def _by_key(overrides: Iterable[str]) -> dict[str, Override]:
    return {key.lstrip("+~"): override for key, override in parsed(overrides).items()}


def planned(overrides: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the keys that a sweep's overrides fix and those that they vary; the last override of a key counts.

    >>> planned(["seed=1,2", "train.epochs=5", "train.optimizer.lr=interval(0.1, 1)"])
    ({'train.epochs': '5'}, {'seed': '1,2', 'train.optimizer.lr': 'interval(0.1, 1)'})
    """
    last = _by_key(overrides)
    values = {key: str(override.input_line).partition("=")[2] for key, override in last.items()}
    varies = {key: value for key, value in values.items() if last[key].is_sweep_override()}
    return {key: value for key, value in values.items() if key not in varies}, varies


def varying(overrides: Sequence[str], fixed: Collection[str]) -> dict[str, str]:
    """Return the keys and values of a job that are not fixed in its sweep.

    >>> varying(["seed=1", "train.epochs=5", "+penalty.terms.coefficient.l2=0.1"], ["train.epochs"])
    {'seed': '1', 'penalty.terms.coefficient.l2': '0.1'}
    """
    job_overrides = {key: override for key, override in _by_key(overrides).items() if key not in fixed}
    return {key: override.get_value_element_as_str() for key, override in job_overrides.items()}


def short(value: str) -> str:
    """Return a number with at most four significant digits, and other text unchanged.

    >>> short("0.012345678"), short("64"), short("adam")
    ('0.01235', '64', 'adam')
    """
    try:
        return value if len(value) <= 6 else f"{float(value):.4g}"
    except ValueError:
        return value


def names(keys: Sequence[str]) -> dict[str, str]:
    """Return for each key its last part, or the whole key if that part is ambiguous.

    >>> names(["train.optimizer.lr", "train/optimizer", "seed"])
    {'train.optimizer.lr': 'lr', 'train/optimizer': 'optimizer', 'seed': 'seed'}
    >>> names(["data.seed", "train.seed"])
    {'data.seed': 'data.seed', 'train.seed': 'train.seed'}
    """
    last = {key: key.replace("/", ".").rpartition(".")[2] for key in keys}
    return {key: end if list(last.values()).count(end) == 1 else key for key, end in last.items()}


def title(values: Mapping[str, str]) -> str:
    """Return a job's name: its keys and values that vary.

    >>> title({"train.optimizer.lr": "0.1", "seed": "3"})
    'lr=0.1 seed=3'
    """
    short_names = names(list(values))
    return " ".join(f"{short_names[key]}={short(value)}" for key, value in values.items())
