"""A small Transformer encoder over sequences: pre-norm blocks, learned positions, the mean over steps."""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.errors import ConfigError, ConvertError
from ortpipe.settings import Count, Seed, Share
from ortpipe.stages.convert.sources.networks.layers import Activation, Layers, shape, with_type_of
from ortpipe.stages.convert.sources.networks.more_layers import full, norm, normal, only_input, reshape, uniform
from ortpipe.stages.convert.sources.networks.network import LabelKind, Network, number_input

FAR = -1e4  # added to the scores of padding; within float16's range


@dataclass(frozen=True)
class Transformer(Network):
    """PyTorch's TransformerEncoder(norm_first=True, norm=LayerNorm), and a linear layer on its mean.

    A block is x ← x + attention(norm₁(x)), x ← x + W₂·f(W₁·norm₂(x)), attention softmax(q·kᵀ/√d)·v of each head. Its
    input is a sequence of vectors [N, T, F] or numbers [N, T], through a linear layer, or of tokens, int [N, T].

    Attributes:
        sequence: [steps, numbers in each] of sequences that the data hold as vectors; null: [N, T, F] or [N, T].
        tokens: number of different tokens, from 0; null: the input is numbers.
        padding: the token that fills up sequences; attention and mean leave it out.
        width: of a step's vector.
        heads: of attention, which divide the width.
        blocks: their number.
        inner: width of W₁.
        dropout: share of entries that are 0 in training, of each part's result and inside of W₂'s input.
        activation: f.
    """

    sequence: tuple[Count, Count] | None = None
    tokens: Count | None = None
    padding: Seed | None = None
    width: Count = 64
    heads: Count = 4
    blocks: Count = 2
    inner: Count = 128
    dropout: Share = 0.1
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        if self.width % self.heads:
            actual, fix = f"width {self.width}, heads {self.heads}", "Set {key}=4 for a width of 64."
            raise ConfigError("{key} must divide the width.", key="heads", got=actual, fix=fix)
        if self.padding is not None and self.padding >= (self.tokens or 0):
            fix = "Set {at}tokens, or leave out {key}."
            raise ConfigError("{key} must be one of the tokens.", key="padding", got=self.padding, fix=fix)

    def body(self, layers: Layers, rows: Rows, labels: LabelKind) -> ir.Value:
        """Return raw outputs [N, K]."""
        x, counts = self._steps(layers, rows)
        op, steps = layers.op, shape(x)[1]
        x = x + normal(layers, "positions", [steps, self.width], 0.02)
        mask = None
        if counts is not None:
            mask = op.Unsqueeze((1 - counts) * FAR, [1, 2])  # [N, 1, 1, T]
            mask.shape = ir.Shape(["N", 1, 1, steps])
        for i in range(self.blocks):
            name = f"encoder.layers.{i}"
            y = self._attention(layers, norm(layers, x, f"{name}.norm1", "layer"), f"{name}.self_attn", mask)
            x = x + layers.dropout(y, self.dropout)
            y = layers.linear(norm(layers, x, f"{name}.norm2", "layer"), f"{name}.linear1", self.inner)
            y = layers.dropout(layers.activation(y, self.activation), self.dropout)
            x = x + layers.dropout(layers.linear(y, f"{name}.linear2", self.width), self.dropout)
        mean = self._mean(layers, norm(layers, x, "encoder.norm", "layer"), counts)
        return layers.linear(mean, "output", labels.width)

    def _steps(self, layers: Layers, rows: Rows) -> tuple[ir.Value, ir.Value | None]:
        """Return the vectors of steps [N, T, width], and 1 where a step is no padding [N, T]; None: all are none."""
        name, array = only_input(rows, "sequences")
        sizes = list(self.sequence or array.shape[1:])
        if self.sequence is not None and (self.tokens is not None or math.prod(sizes) != array[0].size):
            actual = f"{list(array.shape[1:])} per row" + (f", tokens={self.tokens}" if self.tokens is not None else "")
            fix = "Set {key}=[8,8] of 8 steps of 8 numbers that the data hold as vectors of 64."
            raise ConvertError("{key} must be [steps, numbers in each].", key="sequence", got=actual, fix=fix)
        if self.sequence is None and array.ndim - (self.tokens is None) not in (1, 2):
            raise ConvertError(
                "A sequence must have steps, and numbers in each; a sequence of tokens only steps.",
                key="tokens",
                got=f"{list(array.shape[1:])} per row",
                fix="Set {key} to the number of tokens, or give [N, T, F].",
            )
        if self.tokens is None:
            x = number_input(layers, name, rows, standardize=self.standardize)
            steps = [*sizes, 1][:2]
            x = x if list(array.shape[1:]) == steps else reshape(layers, x, ["N", *steps])
            return layers.linear(x, "input", self.width), None
        whole_numbers = array.dtype.kind in "biu" or (array.dtype.kind == "f" and (array % 1 == 0).all())
        if array.ndim != 2 or not whole_numbers or array.min() < 0 or array.max() >= self.tokens:
            actual = f"{array.dtype} {list(array.shape[1:])} per row" + (
                f", up to {array.max()}" if whole_numbers else ""
            )
            fix = "Set {key} to the greatest token + 1, or to null if the numbers are no tokens."
            raise ConvertError("Tokens must be integers from 0 to {key} − 1.", key="tokens", got=actual, fix=fix)
        ids = layers.op.input(name, ir.DataType.INT64, ["N", array.shape[1]])
        table = normal(layers, "embedding.weight", [self.tokens, self.width])
        x = with_type_of(layers.op.Gather(table, ids, axis=0), table, ["N", array.shape[1], self.width])
        if self.padding is None:
            return x, None
        return x, layers.op.cast(layers.op.Not(layers.op.Equal(ids, self.padding)), table)

    def _attention(self, layers: Layers, x: ir.Value, name: str, mask: ir.Value | None) -> ir.Value:
        """Return softmax(q·kᵀ/√d + mask)·v of each head, and a linear layer on all of them."""
        op, e, steps, d = layers.op, self.width, shape(x)[1], self.width // self.heads
        weight = uniform(layers, f"{name}.in_proj_weight", [3 * e, e], np.sqrt(6 / (4 * e)))
        projected = layers.product(x, weight, full(layers, f"{name}.in_proj_bias", [3 * e], 0))
        parts = op.Split(projected, axis=-1, num_outputs=3, outputs=3)
        q, k, v = (reshape(layers, with_type_of(p, x), ["N", steps, self.heads, d]) for p in parts)
        scores = op.Einsum(q * d**-0.5, k, equation="nqhd,nkhd->nhqk")
        with_type_of(scores, x, ["N", self.heads, steps, steps])
        share = layers.dropout(op.Softmax(scores if mask is None else scores + mask, axis=-1), self.dropout)
        heads = with_type_of(op.Einsum(share, v, equation="nhqk,nkhd->nqhd"), x, ["N", steps, self.heads, d])
        output = layers.weight(f"{name}.out_proj.weight", [e, e])
        bias = full(layers, f"{name}.out_proj.bias", [e], 0)
        return layers.product(reshape(layers, heads, ["N", steps, e]), output, bias)

    def _mean(self, layers: Layers, x: ir.Value, counts: ir.Value | None) -> ir.Value:
        """Return the mean over the steps that count, [N, width]."""
        op = layers.op
        if counts is None:
            return with_type_of(op.ReduceMean(x, [1], keepdims=0), x, ["N", self.width])
        total = op.ReduceSum(x * op.Unsqueeze(counts, [2]), [1], keepdims=0)
        return with_type_of(total / op.Max(op.ReduceSum(counts, [1], keepdims=1), 1), x, ["N", self.width])
