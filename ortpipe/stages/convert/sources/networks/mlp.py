"""A multilayer perceptron: x ← dropout(f(norm(W·x + b))), layer by layer; or residual blocks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.doors import later
from ortpipe.errors import ConfigError
from ortpipe.settings import Count, Share
from ortpipe.stages.convert.sources.networks.layers import Activation, Layers, Norm
from ortpipe.stages.convert.sources.networks.network import LabelKind, TableNetwork

if TYPE_CHECKING:
    from ortpipe.stages.convert.sources.networks.more_layers import norm, residual_blocks
else:
    later(__name__)


@dataclass(frozen=True)
class MLP(TableNetwork):
    """Layers of x ← dropout(f(norm(W·x + b))), then a linear one.

    With `residual` it is the ResNet of Gorishniy et al. (2021, arXiv 2106.11959): a linear layer of the first size,
    then for each further size a block x ← x + dropout(W₂·dropout(f(W₁·norm(x)))) of that inner width, f(norm(x)),
    and a linear layer.

    Attributes:
        hidden: the layers' sizes.
        activation: f.
        dropout: share of entries that are 0 in training.
        norm: none, `batch` over the rows of a batch, or `layer` over the entries of a row.
        residual: use residual blocks.
    """

    hidden: tuple[Count, ...] = (256, 256)
    activation: Activation = "relu"
    dropout: Share = 0.1
    norm: Norm = "none"
    residual: bool = False

    def __post_init__(self) -> None:
        if self.residual and len(self.hidden) < 2:
            raise ConfigError(
                "With residual blocks {key} must be their common width, then the inner width of each block.",
                key="hidden",
                got=list(self.hidden),
                fix="Set {key}=[128,256,256] for two blocks, or leave out {at}residual.",
            )

    def body(self, layers: Layers, rows: Rows, labels: LabelKind) -> ir.Value:
        """Return raw outputs [N, K]."""
        x = self.inputs(layers, rows)
        if self.residual:
            x = residual_blocks(layers, x, self)
        for i, size in enumerate(() if self.residual else self.hidden):
            x = layers.linear(x, f"layers.{i}", size)
            x = x if self.norm == "none" else norm(layers, x, f"norms.{i}", self.norm)
            x = layers.dropout(layers.activation(x, self.activation), self.dropout)
        return layers.linear(x, "output", labels.width)
