"""A PyTorch module, named in the config, or a program that torch.export saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ortpipe import own
from ortpipe.data.rows import Data
from ortpipe.errors import ConfigError, ConvertError
from ortpipe.settings import Seed
from ortpipe.stages.convert.sources import Forward
from ortpipe.stages.convert.sources import torch_export as export
from ortpipe.stages.convert.sources.graph_settings import GraphSettings
from ortpipe.stages.convert.sources.torch_modes import check_installed, torch

Kind = Literal["float16", "float32", "float64", "int32", "int64", "bool"]


@dataclass(frozen=True)
class Torch(GraphSettings):
    """A module by import path, with the weights that it draws or those of a file; or a program on disk.

    Attributes:
        module: import path `module:name` of a class or a function that makes an nn.Module, or of an instance.
        params: the keywords that it is called with.
        path: instead of `module`, a program that torch.export.save wrote (`.pt2`), with `trust: true`.
        trust: a program runs code when it is opened; say true only for files you made.
        weights: a state_dict on disk, `.safetensors` or `.pt`, of which nothing but tensors is read.
        types: of inputs that are not what the rows are: floats as the weights are, whole numbers int64.
        seed: of the weights that a module draws when it is made; by default convert's.
    """

    module: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = field(default=None, metadata={"identity": False})  # `files` are told apart by content
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
        with export.drawn(self.seed or 0):  # an instance draws as it is imported
            own.load(self.module, "module")  # here, so that its code is known wherever its name is

    @property
    def origin(self) -> str:
        """The import path, or the file."""
        return str(self.module or self.path)

    def files(self) -> tuple[Path, ...]:
        """Return what is read, of that what is there: the program and the weights."""
        return tuple(path for name in (self.path, self.weights) if name is not None and (path := Path(name)).is_file())

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Make the module, or read the program, and export it."""
        if self.lift is not True:
            raise ConvertError(
                "{key} is of files, whose weights may be constants; of a PyTorch model its parameters are trained.",
                key="lift",
                got=self.lift,
                fix="Leave it out; make what training shall move an nn.Parameter.",
            )
        if self.path is not None:
            program = export.read_program(Path(self.path), self.trust)
            if self.weights is not None:
                export.load_weights(program, Path(self.weights))
            return export.from_program(program, self, data)
        module = export.make(own.load(str(self.module), "module", ConvertError), self.params, self.seed or 0)
        if self.weights is not None:
            export.load_weights(module, Path(self.weights))
        if dtype != "float32":
            module = module.to(getattr(torch(), dtype))
        return export.from_module(module, self, data, self.types)
