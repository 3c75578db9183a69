"""A multilayer perceptron: x ← dropout(f(norm(W·x + b))), layer by layer; or residual blocks."""

from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.errors import ConfigError
from ortpipe.settings import Count, Share
from ortpipe.stages.convert.sources.networks.layers import Activation, Layers, Norm
from ortpipe.stages.convert.sources.networks.network import LabelKind, TableNetwork, side_by_side


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
        features = self.features(layers, rows)
        numbers = [] if features.numbers is None else [features.numbers]
        x = side_by_side(layers, [*numbers, *self.vectors(layers, features)])
        x = self._residual(layers, x) if self.residual else self._plain(layers, x)
        return layers.linear(x, "output", labels.width)

    def _plain(self, layers: Layers, x: ir.Value) -> ir.Value:
        for i, size in enumerate(self.hidden):
            x = layers.norm(layers.linear(x, f"layers.{i}", size), f"norms.{i}", self.norm)
            x = layers.dropout(layers.activation(x, self.activation), self.dropout)
        return x

    def _residual(self, layers: Layers, x: ir.Value) -> ir.Value:
        width, *sizes = self.hidden
        x = layers.linear(x, "input", width)
        for i, size in enumerate(sizes):
            y = layers.linear(layers.norm(x, f"blocks.{i}.norm", self.norm), f"blocks.{i}.linear1", size)
            y = layers.dropout(layers.activation(y, self.activation), self.dropout)
            x = layers.op.Add(x, layers.dropout(layers.linear(y, f"blocks.{i}.linear2", width), self.dropout))
        return layers.activation(layers.norm(x, "norm", self.norm), self.activation)
