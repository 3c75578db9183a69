"""The settings of the runtime."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le

from ortpipe.settings import Config


@dataclass(frozen=True)
class RuntimeConfig(Config):
    """The engine, device and threads that run graphs.

    Attributes:
        threads: threads of CPU operators; one is the fastest choice for small models.
        provider: the device. With engine `onnxruntime`, `cuda` runs every graph on the GPU, except operators without a
            GPU kernel; with `xla`, only training steps run there.
        engine: what trains mini-batches: `onnxruntime`, `xla` (JAX, extra `xla`), `c` (a C compiler, extra `native`)
            or `auto`, one of these by operators, sizes and steps. All else runs in onnxruntime on the CPU.
    """

    threads: Annotated[int, Ge(1), Le(1024)] = 1
    provider: Literal["cpu", "cuda"] = "cpu"
    engine: Literal["onnxruntime", "xla", "c", "auto"] = field(default="onnxruntime", metadata={"identity": False})

    def packages(self) -> tuple[str, ...]:
        """Return further packages whose versions can change a result; the key of the default engine has none."""
        engines = {"onnxruntime": (), "xla": ("jax", "jaxlib"), "c": ("scipy-openblas32",)}
        return engines.get(self.engine, ("onnxruntime-training", "onnxruntime", *engines["xla"], *engines["c"]))
