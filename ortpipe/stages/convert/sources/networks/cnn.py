"""A small convolutional network: x ← pool(f(norm(conv(x)))), block by block, then a linear layer."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError
from ortpipe.settings import Count, Share
from ortpipe.stages.convert.sources.networks.layers import Activation, Layers, shape, with_type_of
from ortpipe.stages.convert.sources.networks.more_layers import (
    check_not_float64,
    convolution,
    flat,
    norm,
    only_input,
    reshape,
)
from ortpipe.stages.convert.sources.networks.network import LabelKind, Network, moments, number_input

LEAST = 2  # rows and columns of a pooling window


@dataclass(frozen=True)
class CNN(Network):
    """Blocks of x ← pool(f(norm(conv(x)))) over images, as PyTorch's Conv2d(padding="same") and MaxPool2d(2).

    Attributes:
        image: [channels, rows, columns] of images that the data hold as vectors; null: the data hold [N, C, H, W] or
            [N, H, W].
        channels: of each block.
        kernel: rows and columns of each convolution.
        norm: none, or `batch`, per channel.
        activation: f.
        join: the input of the last layer: every number of every channel (`flatten`), or the `mean` of each channel.
        dropout: share of the last layer's input that is 0 in training.
    """

    image: tuple[Count, Count, Count] | None = None
    channels: tuple[Count, ...] = (16, 32)
    kernel: Count = 3
    norm: Literal["none", "batch"] = "batch"
    activation: Activation = "relu"
    join: Literal["flatten", "mean"] = "flatten"
    dropout: Share = 0.0

    def body(self, layers: Layers, rows: Rows, labels: LabelKind) -> ir.Value:
        """Return raw outputs [N, K]."""
        check_not_float64(layers, "name", "cnn")
        name, array = only_input(rows, "images")
        sizes = list(self.image or array.shape[1:])
        sizes = [1, *sizes] if len(sizes) == LEAST else sizes
        if len(sizes) != 3 or math.prod(sizes) != array[0].size:
            raise ConvertError(
                "An image must have channels, rows and columns.",
                key="image",
                got=f"{list(array.shape[1:])} per row" + (f" for {list(self.image)}" if self.image else ""),
                fix="Set {key}=null if each row is an image, or {key}=[1,8,8] for vectors of 64.",
            )
        x = number_input(layers, name, rows, standardize=False)
        x = x if len(array.shape) == 4 else reshape(layers, x, ["N", *sizes])
        x = self._standard(layers, x, array.reshape(-1, *sizes), rows.sample_weight) if self.standardize else x
        for i, channels in enumerate(self.channels):
            x = norm(layers, convolution(layers, x, f"convs.{i}", channels, self.kernel), f"norms.{i}", self.norm)
            x = _pool(layers, layers.activation(x, self.activation))
        if self.join == "mean":
            x = with_type_of(layers.op.ReduceMean(x, [2, 3], keepdims=0), x, ["N", shape(x)[1]])
        return layers.linear(layers.dropout(flat(layers, x), self.dropout), "output", labels.width)

    def _standard(self, layers: Layers, x: ir.Value, images: np.ndarray, weight: np.ndarray | None) -> ir.Value:
        """Return (x − mean) / deviation of each channel."""
        channels = images.shape[1]
        pixels = np.moveaxis(images, 1, -1).reshape(-1, channels)
        weights = None if weight is None else np.repeat(weight, len(pixels) // len(images))
        mean, scale = (layers.const(v.reshape(1, channels, 1, 1)) for v in moments(pixels, weights))
        return (x - mean) / scale


def _pool(layers: Layers, x: ir.Value) -> ir.Value:
    """Return the maximum of each 2×2 window; an image of one row or column stays."""
    rows, channels, height, width = shape(x)
    if min(height, width) < LEAST:
        return x
    y = layers.op.MaxPool(x, kernel_shape=[LEAST, LEAST], strides=[LEAST, LEAST])
    return with_type_of(y, x, [rows, channels, height // LEAST, width // LEAST])
