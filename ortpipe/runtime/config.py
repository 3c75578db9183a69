"""What a config says about the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ortpipe.errors import ConfigError
from ortpipe.settings import Config


@dataclass(frozen=True)
class RuntimeConfig(Config):
    """How graphs are run.

    Attributes:
        threads: of the CPU's operators; one is the fastest choice for small models.
        provider: `cuda` runs the same graphs on a GPU; what it has no kernels for stays on the CPU.
    """

    threads: int = 1
    provider: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError("runtime.threads must be at least 1.", got=self.threads, fix="Set runtime.threads=1.")
