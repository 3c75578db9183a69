"""What a config says about the runtime."""

from dataclasses import dataclass
from typing import Literal

from ortpipe.settings import Config, Count


@dataclass(frozen=True)
class RuntimeConfig(Config):
    """How graphs are run.

    Attributes:
        threads: of the CPU's operators; one is the fastest choice for small models.
        provider: `cuda` runs the same graphs on a GPU; what it has no kernels for stays on the CPU.
    """

    threads: Count = 1
    provider: Literal["cpu", "cuda"] = "cpu"
