"""TabM: many networks for tables in one, which share all weights but scales and biases."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import finish
from ortpipe.runtime.session import Session
from ortpipe.settings import Count, Positive, Share
from ortpipe.stages.convert.forward import Meaning
from ortpipe.stages.convert.sources.networks.columns import ColumnFeatures, table_features, word_vectors
from ortpipe.stages.convert.sources.networks.layers import Activation, Layers, shape, with_type_of
from ortpipe.stages.convert.sources.networks.more_layers import flat, full, normal, side_by_side, signs, uniform
from ortpipe.stages.convert.sources.networks.network import LabelKind, TableNetwork
from ortpipe.stages.convert.sources.outputs import two_columns, write_class_outputs

Numbers = Literal["piecewise", "periodic", "plain"]
WITHIN = 3  # deviations at which initial frequencies are truncated


@dataclass(frozen=True)
class Tabular(TableNetwork):
    """TabM (Gorishniy, Kotelnikov, Babenko, ICLR 2025, arXiv 2410.24210), an ensemble of k MLPs in one network.

    Each member's layer is y = s ∘ (W·(r ∘ x)) + b with W of all and r, s, b of its own (BatchEnsemble); only the first
    r is random at first, one value per column, all others are 1. The loss is the mean of the members' losses, the
    prediction the mean of their predictions. With `mini` the members share all in front of the output layer but the
    first r. Names are those of the authors' package tabm 0.0.3.

    Attributes:
        members: k.
        blocks: layers.
        width: of each.
        dropout: share of entries that are 0 in training.
        activation: f behind each layer.
        mini: TabM-mini.
        numbers: how a number x becomes a vector (Gorishniy et al., 2022, arXiv 2203.05556): `piecewise`, w·x + b + W·e
            of its position e ∈ [0, 1] in each bin (W starts as 0); `periodic`, relu(W·[cos 2πcx,
            sin 2πcx] + b); or `plain`, x itself.
        size: of that vector.
        bins: largest number of bins; quantiles of the training rows bound them.
        frequencies: number of frequencies c per column.
        frequency_scale: the deviation of the initial frequencies.
        words: `one_hot`, as in the package, or `embedding`.
    """

    members: Count = 32
    blocks: Count = 2
    width: Count = 512
    dropout: Share = 0.1
    activation: Activation = "relu"
    mini: bool = False
    numbers: Numbers = "piecewise"
    size: Count = 16
    bins: Count = 48
    frequencies: Count = 48
    frequency_scale: Positive = 0.01
    words: Literal["embedding", "one_hot"] = field(default="one_hot", kw_only=True)

    def body(self, layers: Layers, rows: Rows, labels: LabelKind) -> ir.Value:
        """Return raw outputs [N, members, K]."""
        x, chunks = self._embed(layers, table_features(self, layers, rows), rows)
        k, width, op = self.members, shape(x)[1], layers.op
        first = signs if self.numbers == "plain" else normal  # as in the package
        name = "backbone.affine.weight" if self.mini else "backbone.blocks.0.0.r"
        r = first(layers, name, [k, len(chunks)], repeats=chunks)
        x = op.Unsqueeze(x, [1]) * r
        x.shape = ir.Shape(["N", k, width])
        for i in range(self.blocks):
            name = f"backbone.blocks.{i}.0"
            x = layers.linear(x, name, self.width) if self.mini else self._member_layer(layers, x, name, scaled=i == 0)
            x = layers.dropout(layers.activation(x, self.activation), self.dropout)
        bound = self.width**-0.5
        weight = uniform(layers, "output.weight", [k, self.width, labels.width], bound)
        bias = uniform(layers, "output.bias", [k, labels.width], bound)
        y = with_type_of(op.Einsum(x, weight, equation="nki,kio->nko"), x, ["N", k, labels.width])
        return y + bias

    def end(self, op: Builder, raw: ir.Value, labels: LabelKind) -> Meaning:
        """Write the mean of the members' values or probabilities as the prediction."""
        if labels.task == "regression":
            members = labels.in_units(op, raw)
            prediction = op.ReduceMean(members, [1], keepdims=0)
            op.graph.outputs.append(op.rename(prediction, "prediction"))
        else:
            members, p = raw, op.Softmax(raw, axis=-1) if labels.task == "multiclass" else op.Sigmoid(raw)
            p = op.ReduceMean(p, [1], keepdims=0)
            write_class_outputs(op, two_columns(op, p) if labels.task == "binary" else p, None, labels.classes)
        op.rename(members, "members")
        return Meaning(labels.task, None, labels.classes, members=str(members.name), levels=labels.levels)

    def _member_layer(self, layers: Layers, x: ir.Value, name: str, *, scaled: bool) -> ir.Value:
        """Return s ∘ (W·(r ∘ x)) + b of each member; x of the first layer includes r already."""
        k, inner = self.members, shape(x)[-1]
        if not scaled:
            x = x * full(layers, f"{name}.r", [k, inner], 1)
        x = layers.linear(x, name, self.width, bias=False)
        x = x * full(layers, f"{name}.s", [k, self.width], 1)
        return x + layers.bias(f"{name}.bias", self.width, inner, rows=k)

    def _embed(self, layers: Layers, features: ColumnFeatures, rows: Rows) -> tuple[ir.Value, list[int]]:
        """Return rows as vectors [N, D], and the number of entries from each column."""
        parts, chunks = list[ir.Value](), list[int]()
        if features.numbers is not None:
            parts.append(flat(layers, self._numbers(layers, features.numbers, rows)))
            columns = shape(features.numbers)[1]
            chunks += [shape(parts[0])[1] // columns] * columns
        words = word_vectors(self, layers, features)
        parts, chunks = [*parts, *words], [*chunks, *(shape(part)[1] for part in words)]
        return side_by_side(layers, parts), chunks

    def _numbers(self, layers: Layers, x: ir.Value, rows: Rows) -> ir.Value:
        """Return a vector [N, columns, size] of each number."""
        op, columns = layers.op, shape(x)[1]
        if self.numbers == "plain":
            return x
        wide = op.Unsqueeze(x, [2])
        wide.shape = ir.Shape(["N", columns, 1])
        if self.numbers == "periodic":
            name, sizes = "num_module.periodic.weight", [columns, self.frequencies]
            angle = wide * (normal(layers, name, sizes, self.frequency_scale, within=WITHIN) * (2 * np.pi))
            waves = op.Concat(op.Cos(angle), op.Sin(angle), axis=-1)
            with_type_of(waves, x, ["N", columns, 2 * self.frequencies])
            return op.Relu(self._columns(layers, waves, bias=True))
        bound = self.size**-0.5
        weight = uniform(layers, "num_module.linear0.weight", [columns, self.size], bound)
        line = wide * weight + uniform(layers, "num_module.linear0.bias", [columns, self.size], bound)
        slope, start, low, high = encoding([edges(column, self.bins) for column in values(layers, x, rows).T])
        inside = wide * layers.const(slope) + layers.const(start)
        inside = op.Max(op.Min(inside, layers.const(high)), layers.const(low))
        return line + self._columns(layers, inside, bias=False)

    def _columns(self, layers: Layers, x: ir.Value, *, bias: bool) -> ir.Value:
        """Apply to each column's vector a linear layer of its own: [N, columns, size]."""
        _, columns, inner = shape(x)
        sizes, name = [columns, inner, self.size], "num_module.linear"
        weight = uniform(layers, f"{name}.weight", sizes, inner**-0.5 if bias else 0.0)
        y = with_type_of(layers.op.Einsum(x, weight, equation="nfi,fio->nfo"), x, ["N", columns, self.size])
        return y + uniform(layers, f"{name}.bias", [columns, self.size], inner**-0.5) if bias else y


def values(layers: Layers, x: ir.Value, rows: Rows) -> np.ndarray:
    """Compute a value of the unfinished graph for the training rows."""
    model = ir.Model(layers.op.graph, ir_version=10).clone()
    model.graph.outputs[:] = [next(o for node in model.graph for o in node.outputs if o.name == x.name)]
    inputs = {name: a.astype(layers.dtype) if a.dtype.kind in "biuf" else a for name, a in rows.inputs.items()}
    return Session(finish(model)).run(inputs, [str(x.name)])[0]


def edges(column: np.ndarray, bins: int) -> np.ndarray:
    """Return the distinct quantiles of a column at 0, 1/bins … 1; at least two.

    >>> edges(np.array([0.0, 0, 0, 1, 2]), 4), edges(np.array([3.0, 3]), 4)
    (array([0., 1., 2.]), array([3., 4.]))
    """
    quantiles = np.unique(np.quantile(column.astype(np.float64), np.linspace(0, 1, bins + 1)))
    return quantiles if len(quantiles) > 1 else np.array([quantiles[0], quantiles[0] + 1])


def encoding(bounds: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return slope, start, smallest and largest value of each column's bins, [columns, bins] each.

    e = min(max(slope·x + start, smallest), largest), in [0, 1] except below the first bin and above the last. A
    column's last bin is the last entry; if it has fewer bins than others, the entries in front of that are 0.
    """
    count = max(map(len, bounds)) - 1
    slope, start, low, high = (np.full((len(bounds), count), value) for value in (0.0, 0.0, 0.0, 1.0))
    for i, edge in enumerate(bounds):
        places = [*range(len(edge) - 2), count - 1]
        slope[i, places], start[i, places] = 1 / np.diff(edge), -edge[:-1] / np.diff(edge)
        low[i, places[0]], high[i, places[-1]] = -np.inf, np.inf
    return slope, start, low, high
