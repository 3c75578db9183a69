"""Find where a key of a composed config was set: on the command line, or in a line of a YAML file."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # a reference to another key


@dataclass(frozen=True)
class KeyOrigins:
    """The origins of the keys of one composition; files are read only when a key is looked up."""

    loader: ConfigLoader  # Hydra's, which knows the defaults list
    overrides: tuple[str, ...]  # of the command line
    folders: tuple[Path, ...]  # of YAML files, in the order of the search path

    @classmethod
    def now(cls) -> KeyOrigins | None:
        """Return the origins of the config that Hydra has just composed, or None outside Hydra."""
        if not (GlobalHydra.instance().is_initialized() and HydraConfig.initialized()):
            return None
        config = HydraConfig.get()
        folders = [Path(source.path) for source in config.runtime.config_sources if source.schema == "file"]
        overrides: Any = OmegaConf.to_container(config.overrides, resolve=False)  # ${…} in them may not resolve
        words = (*overrides["hydra"], *overrides["task"])
        return cls(GlobalHydra.instance().config_loader(), words, tuple(folders))

    def __call__(self, key: str) -> str | None:
        """Describe the place where a key, or the nearest group around it, was set.

        If the value refers to another key, that key's place follows.
        """
        parts = key.split(".")
        around = [parts[:length] for length in range(len(parts), 0, -1)]
        below = (f"{word} on the command line" for word in self.overrides if word.lstrip("+").startswith(f"{key}."))
        places = (place for group in around for place in self._places(group))
        return next(itertools.chain(self._overrides(parts), below, places), None)

    def _places(self, parts: Sequence[str]) -> Iterator[str]:
        """Yield the places where a key is set, the one that takes effect first."""
        yield from self._overrides(parts)
        for default in reversed(self._defaults):  # the last one takes effect
            if (place := self._in_file(default, parts)) is not None:
                yield place

    def _overrides(self, parts: Sequence[str]) -> Iterator[str]:
        for override in reversed(self.overrides):
            name, is_set, value = override.lstrip("+").partition("=")
            group = name.replace("/", ".").split(".")
            if is_set and (group == parts or (value.startswith("{") and group == parts[: len(group)])):
                yield f"{override} on the command line"

    def _in_file(self, default: ResultDefault, parts: Sequence[str]) -> str | None:
        package = default.package.split(".") if default.package else []
        if list(parts[: len(package)]) != package:
            return None
        files = (folder / f"{default.config_path}.yaml" for folder in self.folders)
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            return None
        key, inner = ".".join(parts), parts[len(package) :]
        if not inner:
            return f"{key} by {_near(file)}"
        location = line_of(file.read_text(encoding="utf-8"), inner)
        if location is None:
            return None
        line, value = location
        if value == "???":  # the file leaves it to the user
            return None
        reference = REFERENCE.fullmatch(value)
        further = self(reference[1]) if reference is not None and reference[1] != key else None
        place = f"{key} in {_near(file)}, line {line}"
        return f"{place}, from {further}" if further else place

    @cached_property
    def _defaults(self) -> list[ResultDefault]:
        """The files of the composition, in the order in which they are merged."""
        return self.loader.compute_defaults_list("config", list(self.overrides), RunMode.RUN).defaults


def line_of(text: str, key: Sequence[str]) -> tuple[int, str] | None:
    """Return the line (from 1) of a nested key in YAML, and its value if it is a scalar (else "").

    >>> line_of("train:\\n  epochs: 5\\n", ["train", "epochs"])
    (2, '5')
    """
    node = yaml.compose(text, yaml.SafeLoader)
    line = None
    for part in key:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        pair = next(((name, value) for name, value in pairs if str(name.value) == part), None)
        if pair is None:
            return None
        line, node = pair[0].start_mark.line + 1, pair[1]
    return None if line is None else (line, node.value if isinstance(node, yaml.ScalarNode) else "")


def _near(file: Path) -> str:
    relative = os.path.relpath(file)
    return str(file) if relative.startswith("..") else relative
