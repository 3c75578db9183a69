"""Where a key of a composed config was set: on the command line, or in which line of which YAML file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # of one key to another


@dataclass(frozen=True)
class KeyOrigins:
    """Answers for one composition; it reads files only when it is asked."""

    loader: ConfigLoader  # Hydra's, which knows the defaults list
    overrides: tuple[str, ...]  # of the command line
    folders: tuple[Path, ...]  # of YAML files; the first that has a file wins

    @classmethod
    def now(cls) -> KeyOrigins | None:
        """Return the one for the config that Hydra has just composed, or None where Hydra is not at work."""
        if not (GlobalHydra.instance().is_initialized() and HydraConfig.initialized()):
            return None
        config = HydraConfig.get()
        folders = [Path(source.path) for source in config.runtime.config_sources if source.schema == "file"]
        overrides = (*config.overrides.hydra, *config.overrides.task)
        return cls(GlobalHydra.instance().config_loader(), tuple(overrides), tuple(folders))

    def __call__(self, key: str) -> str | None:
        """Return the place in words: that of the key, or of the nearest group around it that is written anywhere.

        Where the value refers to another key, the place of that one follows.
        """
        parts = key.split(".")
        places = (place for length in range(len(parts), 0, -1) for place in self._places(parts[:length]))
        return next(places, None)

    def _places(self, parts: Sequence[str]) -> Iterator[str]:
        """Yield where a key is set, the place that wins first."""
        key = ".".join(parts)
        for override in reversed(self.overrides):
            name, is_set, _ = override.lstrip("+").partition("=")
            if is_set and name.replace("/", ".") == key:
                yield f"{override} on the command line"
        for default in reversed(self._defaults):  # the last one wins
            if (place := self._in_file(default, parts)) is not None:
                yield place

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
        found = line_of(file.read_text(encoding="utf-8"), inner)
        if found is None:
            return None
        line, value = found
        other = REFERENCE.fullmatch(value)
        further = self(other[1]) if other is not None and other[1] != key else None
        place = f"{key} in {_near(file)}, line {line}"
        return f"{place}, from {further}" if further else place

    @cached_property
    def _defaults(self) -> list[ResultDefault]:
        """The files of the composition, in the order in which they are merged."""
        return self.loader.compute_defaults_list("config", list(self.overrides), RunMode.RUN).defaults


def line_of(text: str, key: Sequence[str]) -> tuple[int, str] | None:
    """Return the line (from 1) of a nested key in YAML, and its value where that is a scalar (else "").

    >>> line_of("train:\\n  epochs: 5\\n", ["train", "epochs"])
    (2, '5')
    """
    node = yaml.compose(text, yaml.SafeLoader)
    line = None
    for part in key:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        held = next(((name, value) for name, value in pairs if str(name.value) == part), None)
        if held is None:
            return None
        line, node = held[0].start_mark.line + 1, held[1]
    return None if line is None else (line, node.value if isinstance(node, yaml.ScalarNode) else "")


def _near(file: Path) -> str:
    relative = os.path.relpath(file)
    return str(file) if relative.startswith("..") else relative
