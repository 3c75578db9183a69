"""A PyTorch module, named in the config, or a program that torch.export saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ortpipe import own, own_code
from ortpipe.data.rows import Data
from ortpipe.errors import ConfigError, ConvertError
from ortpipe.settings import Seed
from ortpipe.stages.convert.forward import Forward
from ortpipe.stages.convert.reading.graph_settings import GraphSettings
from ortpipe.stages.convert.sources import torch_export as export
from ortpipe.stages.convert.sources.torch_modes import check_installed, torch

Kind = Literal["float16", "float32", "float64", "int32", "int64", "bool"]


@dataclass(frozen=True)
class Torch(GraphSettings):
    """A module by import path, with its own initial weights or those of a file; or a program on disk.

    Attributes:
        module: import path `module:name` of a class or a function that returns an nn.Module, or of an instance.
        params: keyword arguments for the class or function.
        path: instead of `module`, a program that torch.export.save wrote (`.pt2`), with `trust: true`.
        trust: a program runs code when it is opened; say true only for files you made.
        weights: a state_dict on disk, `.safetensors` or `.pt`; only its tensors are read.
        types: of inputs; by default floats have the weights' type, and integers are int64.
        seed: of the module's random initial weights; by default convert's.
    """

    module: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = field(default=None, metadata={"identity": False})  # `files` are compared by content
    trust: bool = False
    weights: str | None = field(default=None, metadata={"identity": False})
    types: Mapping[str, Kind] = field(default_factory=dict)
    seed: Seed | None = None

    def __post_init__(self) -> None:
        if (self.module is None) == (self.path is None):
            raise ConfigError(
                "A PyTorch source is either an import path (module) or a file (path).",
                key="module" if self.path is None else "path",
                got=f"module={self.module}, path={self.path}",
                fix="Set exactly one of {at}module and {at}path.",
            )
        check_installed()
        if self.module is None:
            return
        if not own.is_path(self.module):
            rule, fix = "{key} must be the import path of a module.", "Write package.file:Name."
            raise ConfigError(rule, key="module", got=repr(self.module), fix=fix)
        with export.seeded(self.seed or 0):  # an instance samples its weights on import
            own_code.load(self.module, "module")  # load now, so that its code counts in the identity

    @property
    def origin(self) -> str:
        """The import path, or the file."""
        return str(self.module or self.path)

    def files(self) -> tuple[Path, ...]:
        """Return the existing files that are read: the program and the weights."""
        return tuple(path for name in (self.path, self.weights) if name is not None and (path := Path(name)).is_file())

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Make the module, or read the program, and export it."""
        if self.lift is not True:
            raise ConvertError(
                "{key} is for files, whose weights may be constants; a PyTorch model's parameters are trained.",
                key="lift",
                got=self.lift,
                fix="Leave {key} out; make each tensor that shall be trained an nn.Parameter.",
            )
        if self.pair:
            rule, fix = "{key} is for files.", "Return both embeddings as one tensor: torch.cat([a, b], dim=1)."
            raise ConvertError(rule, key="pair", got=self.pair, fix=fix)
        if self.path is not None:
            program = export.read_program(Path(self.path), self.trust)
            if self.weights is not None:
                export.load_weights(program, Path(self.weights))
            return export.from_program(program, self, data)
        module = export.make(own_code.load(str(self.module), "module", ConvertError), self.params, self.seed or 0)
        if self.weights is not None:
            export.load_weights(module, Path(self.weights))
        if dtype != "float32":
            module = module.to(getattr(torch(), dtype))
        return export.from_module(module, self, data, self.types)
