"""What a config says about the runtime."""

from __future__ import annotations

from dataclasses import dataclass

from ortpipe.errors import ConfigError


@dataclass(frozen=True)
class RuntimeConfig:
    """How graphs are run; one thread is the fastest choice for small models."""

    threads: int = 1

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError("runtime.threads must be at least 1.", got=self.threads, fix="Set runtime.threads=1.")
