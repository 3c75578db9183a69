"""What a config says about the runtime."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le

from ortpipe.settings import Config


@dataclass(frozen=True)
class RuntimeConfig(Config):
    """How graphs are run.

    Attributes:
        threads: of the CPU's operators; one is the fastest choice for small models.
        provider: where the engine runs. `cuda` is a GPU: of `onnxruntime` for every graph, and what it has no kernels
            for stays on the CPU; of `xla` for the steps of training.
        engine: what trains mini-batches: `onnxruntime`, or `xla`, for which JAX compiles the same graphs (extra `xla`);
            all else runs in onnxruntime on the CPU then.
    """

    threads: Annotated[int, Ge(1), Le(1024)] = 1
    provider: Literal["cpu", "cuda"] = "cpu"
    engine: Literal["onnxruntime", "xla"] = field(default="onnxruntime", metadata={"identity": False})

    def packages(self) -> tuple[str, ...]:
        """Return the packages beside the stage's own whose versions can change a result: that there are some is the
        engine's part of a key, so that those of the default engine are what they were without another.
        """
        return ("jax", "jaxlib") if self.engine == "xla" else ()
