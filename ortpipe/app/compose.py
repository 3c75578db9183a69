"""Find configs, and compose the config of a run from a command's arguments without running it."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ortpipe.app.key_origin import REFERENCE, KeyOrigins
from ortpipe.app.redact import recordable
from ortpipe.app.tracking import uri_of
from ortpipe.bounded import DEPTH, EVENTS, check_yaml, read
from ortpipe.errors import ConfigError
from ortpipe.pipeline.flatten import flatten
from ortpipe.quoting import quoted

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader

    from ortpipe.app.schema import RunConfig


FOLLOWED = ("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn", "--package", "-p")  # take a value


def packaged_conf() -> Path:
    """Return the folder of the packaged configs: next to the code in a checkout, inside the package in a wheel."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def group_choices(folders: Iterable[Path]) -> dict[str, set[str]]:
    """Return the groups of configs in some folders, each with its choices."""
    choices: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.glob("*/**/*.yaml"):
            choices.setdefault(file.parent.relative_to(folder).as_posix(), set()).add(file.stem)
    return choices


OmegaConf.register_new_resolver("packaged", lambda name: str(packaged_conf() / name), replace=True)
OmegaConf.register_new_resolver(
    "experiment", lambda: HydraConfig.get().runtime.choices.get("experiment", "run"), replace=True
)
# At the start of a sweep, Hydra's own resolver is not set yet. A sweep's jobs find its values in their config's cache.
OmegaConf.register_new_resolver("cwd", os.getcwd, replace=True, use_cache=True)
OmegaConf.register_new_resolver("sqlite", uri_of, replace=True)


def check_working_folder() -> None:
    """Reject a working folder whose path Hydra would read as a reference to a key."""
    if "${" in os.getcwd():
        rule = "The path of the working folder must not contain ${…}, which Hydra reads as a reference to a key."
        raise ConfigError(rule, got=os.getcwd(), fix="Rename that folder, or start in another one.")


def check_own_files(arguments: Iterable[str]) -> None:
    """Reject a missing --config-dir, pipes in it, names of packaged files, and too many values, which are slow."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("-") else [word])]
    folders = [Path(folder) for option, folder in itertools.pairwise(words) if option in ("--config-dir", "-cd")]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        rule, fix = "--config-dir must be a folder.", "Create it, or start in the folder that holds it."
        raise ConfigError(rule, got=missing[0].absolute(), fix=fix)
    files = (
        (file, folder) for folder in folders for level in ("", "*/", "*/*/") for file in folder.glob(f"{level}*.yaml")
    )
    for file, folder in files:
        try:
            content = read(file)
            check_yaml(content.decode(errors="replace"))
        except ValueError as error:
            rule = f"A config file must have at most {EVENTS:,} values, nested at most {DEPTH} deep."
            fix = "Write fewer values, or fewer aliases."
            raise ConfigError(rule, got=f"{file}: {error}", fix=fix) from error
        except (OSError, YAMLError):  # Hydra explains these if it reads the file
            continue
        packaged = packaged_conf() / file.relative_to(folder)
        if packaged.is_file() and content != packaged.read_bytes():
            rule = "Your own config file must not have the name of a packaged one, which Hydra reads instead."
            raise ConfigError(rule, got=file, fix="Rename it.")


@contextlib.contextmanager
def composing() -> Iterator[None]:
    """Raise ConfigError for unreadable files and overrides that Hydra only reports with a traceback."""
    try:
        yield
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n")
        text = error.object.splitlines()[line].decode(errors="backslashreplace")
        rule, fix = "A config file must be UTF-8.", "Save that file as UTF-8."
        raise ConfigError(rule, got=f"line {line + 1}: {text}", fix=fix) from error
    except RecursionError as error:
        rule = "A config file must not contain itself through its defaults, nor groups nested hundreds deep."
        fix = "Take the file's own name, or that of a file that names it, out of its defaults list."
        raise ConfigError(rule, got="the chosen files, which lead back to one of them", fix=fix) from error
    except ValueError as error:
        if "Exceeds the limit" not in str(error):
            raise
        raise ConfigError(
            "A number must have fewer than 4,300 digits.", got=error, fix="Write a smaller one."
        ) from error
    except TypeError as error:
        fix = "Write group=NAME, and key=value for values."
        raise ConfigError("An override must name a file of its group.", got=error, fix=fix) from error


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return a config as plain values; raise a ConfigError that names the key whose ${…} cannot be resolved."""
    try:
        values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise _unresolvable(error, config) from error
    return values


def _unresolvable(error: OmegaConfBaseException, config: DictConfig) -> ConfigError:
    values: Any = flatten(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
    texts = {key: str(value) for key, value in values.items() if "${" in str(value) and not _resolves(config, key)}
    origins = [key for key, text in texts.items() if {*REFERENCE.findall(text)}.isdisjoint(texts)]
    key, reason = next(iter([*origins, *texts]), "a value"), str(error).splitlines()[0]
    fix = "Write the full dotted name of another key."
    if match := re.search(r"Environment variable '(.*)' not found", reason):
        fix = f"Set the variable {match[1]}, or give a default: {key}=${{oc.env:{match[1]},DEFAULT}}."
    rule = f"The target of ${{…}} in {key} must exist."
    return ConfigError(rule, got=f"{texts.get(key, '')}: {reason}", fix=fix)


def _resolves(config: DictConfig, key: str) -> bool:
    try:
        value = OmegaConf.select(config, key)
        if OmegaConf.is_config(value):
            OmegaConf.to_container(value, resolve=True)
    except OmegaConfBaseException:
        return False
    return True


@dataclass(frozen=True)
class Composition:
    """The config of a run with these arguments; composed on first access."""

    overrides: Sequence[str] = ()  # key=value pairs
    config_dir: str | None = None  # the folder of the user's configs

    @cached_property
    def _parts(self) -> tuple[dict[str, Any], dict[str, Any], KeyOrigins | None]:
        config, where = unresolved(self.overrides, self.config_dir)
        values = resolved(config)
        return values, recordable(config, values), where

    @property
    def values(self) -> dict[str, Any]:
        """The resolved config."""
        return self._parts[0]

    @property
    def record(self) -> dict[str, Any]:
        """The config as recorded, with secrets masked."""
        return self._parts[1]

    @property
    def where(self) -> KeyOrigins | None:
        """The origin of each key."""
        return self._parts[2]

    @property
    def config(self) -> RunConfig:
        """The typed config."""
        from ortpipe.app.schema import build

        return build(self.values, self.where)

    @property
    def cache(self) -> Path | None:
        """The folder of the store on this machine, if there is one."""
        from ortpipe.app.local_path import cache_folder  # with annotated_types, which --help does not need

        paths = self.values["paths"]
        return None if paths["cache"] is None else cache_folder(paths["cache"], paths["outputs"])

    @property
    def tracking_uri(self) -> str:
        """The recorder's tracking URI."""
        recorder = self.values["recorder"]
        if "tracking_uri" not in recorder:
            fix = "Keep the default recorder, or set recorder.tracking_uri."
            raise ConfigError("The id of a run is looked up in MLflow.", got=f"recorder={recorder['name']}", fix=fix)
        return str(recorder["tracking_uri"])


def is_pair(word: str) -> bool:
    """Return whether a word of the command line changes the config.

    >>> [is_pair(word) for word in ("train.epochs=5", "~experiment", "--shape=X=1", "rows.csv")]
    [True, True, False, False]
    """
    return not word.startswith("-") and ("=" in word or word.startswith("~"))


def parsed(words: Iterable[str], loader: ConfigLoader | None = None) -> dict[str, Override]:
    """Return overrides by their keys as written, such as +a.b; if a key occurs twice, the last one counts."""
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(list(words))
    return {override.get_key_element(): override for override in overrides}


def with_options_first(arguments: Sequence[str]) -> list[str]:
    """Return a run's arguments in the order that Hydra requires.

    >>> with_options_first(["a=b", "--config-dir", "my", "c=d", "-m"])
    ['--config-dir', 'my', '-m', 'a=b', 'c=d']
    """
    pairs = [place for place, word in enumerate(arguments) if is_pair(word) and arguments[place - 1] not in FOLLOWED]
    return [word for i, word in enumerate(arguments) if i not in pairs] + [arguments[i] for i in pairs]


WIDTH = 100  # columns of help texts


class Parser(argparse.ArgumentParser):
    """A command's arguments: its options and, unless `overrides` is false, a run's key=value pairs and --config-dir.

    Other words are an error, except for a command with `names`, which become part of the options.
    """

    def __init__(
        self, name: str, about: str, examples: Sequence[str] = (), *, overrides: bool = True, names: bool = False
    ) -> None:
        super().__init__(
            f"ortpipe {name}",
            description=about,
            epilog="\n  ".join(["examples:", *examples]),
            allow_abbrev=False,
            formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, width=WIDTH),
        )
        self.overrides, self.names = overrides, names

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the parsed options, in any order; `composed` is the config that the overrides give."""
        if self.overrides:
            about = "as of a run: see ortpipe --help"
            self.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=about)
            self.add_argument(
                "--config-dir", "-cd", metavar="FOLDER", help="your own configs, beside the packaged ones"
            )
        options, unknown = self.parse_known_intermixed_args(list(arguments))
        if unknown:
            raise ConfigError(
                f"{self.prog} has no such argument.", got=" ".join(unknown), fix=f"See {self.prog} --help."
            )
        if self.overrides:
            options.names = [word for word in options.overrides if not is_pair(word)]
            options.composed = Composition([*filter(is_pair, options.overrides)], options.config_dir)
            if options.names and not self.names:
                self.error(f"unrecognized arguments: {' '.join(options.names)}")
        return options

    def error(self, message: str) -> NoReturn:
        """Raise for invalid arguments."""
        missing = message.removeprefix("the following arguments are required: ")
        fix = f"See {self.prog} --help."
        if missing != message:
            raise ConfigError(f"{self.prog} needs {missing}.", got="none", fix=fix)
        raise ConfigError(f"The arguments of {self.prog} must be valid.", got=message, fix=fix)


def unresolved(overrides: Sequence[str], config_dir: str | None = None) -> tuple[DictConfig, KeyOrigins | None]:
    """Return the composed config without Hydra's own part, and the origin of each key; raise Hydra's errors."""
    overrides = list(overrides)
    if config_dir is not None:
        check_own_files(["--config-dir", config_dir])
        overrides.append(f"hydra.searchpath=[{quoted(f'file://{Path(config_dir).absolute()}')}]")
    with composing(), initialize_config_dir(str(packaged_conf()), job_name="ortpipe", version_base="1.3"):
        config = compose("config", overrides, return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        where = KeyOrigins.now()
    with open_dict(config):
        del config["hydra"]
    return config, where
