"""InfoNCE: lᵢ = log(1 + Σⱼ exp(sᵢⱼ − sᵢᵢ)), with sᵢⱼ = cos(aᵢ, bⱼ)/τ, over the rows j of the batch with yⱼ ≠ yᵢ."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpipe.errors import LossError
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Positive
from ortpipe.stages.add_loss.domains import NUMBER
from ortpipe.stages.add_loss.losses.cosine import norm
from ortpipe.stages.add_loss.scores import LossConfig, Scores

EPS = 1e-12  # the smallest norm, as in torch.nn.functional.normalize


@dataclass(frozen=True)
class InfoNCE(LossConfig):
    """The loss of pairs of embeddings whose negative examples are the other rows of the batch (van den Oord, 2018).

    A prediction is a pair (a, b), one embedding after the other, [N, 2·K]; `convert.source.pair` makes it. A label
    is a number: rows with equal labels belong together, and are no negative examples of each other. Number the rows
    0, 1, 2, … if each has its own match only.

    With distinct labels, it is CLIP's loss (Radford et al., 2021), and without `symmetric` that of
    sentence-transformers' MultipleNegativesRankingLoss, whose scale is 1/τ. A batch of B rows has B − 1 negative
    examples for each, and needs memory for B² numbers.

    Row weights are not supported.

    Attributes:
        temperature: τ, by which cosines are divided.
        symmetric: the mean of the losses from a to every b and from b to every a; else only the first one.
    """

    temperature: Positive = 0.05
    symmetric: bool = True
    labels = NUMBER
    link = "pairs"
    label_columns = 1
    reads_batch = True

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return the terms [N, 1]."""
        a, b = op.Split(scores.prediction, axis=_axis(scores), num_outputs=2, outputs=2)
        a, b = (op.Div(half, norm(op, half, EPS)) for half in (a, b))
        s = op.Div(op.MatMul(a, op.Transpose(b, perm=[1, 0])), self.temperature)
        match = op.Div(op.ReduceSum(op.Mul(a, b), [-1], keepdims=1), self.temperature)
        same = op.Equal(label, op.Transpose(label, perm=[1, 0]))
        least = op.like(np.finfo(scores.dtype.numpy()).min, match)

        def term(s: Any) -> Any:
            return op.Softplus(op.ReduceLogSumExp(op.Where(same, least, op.Sub(s, match)), [-1], keepdims=1))

        return op.Div(op.Add(term(s), term(op.Transpose(s, perm=[1, 0]))), 2) if self.symmetric else term(s)


def _axis(scores: Scores) -> int:
    """Return the axis of the pair's numbers; raise for a prediction that is no pair."""
    sizes = scores.sizes[1:]
    if len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] % 2 == 0:
        return 1
    raise LossError(
        "The loss info_nce needs pairs of embeddings, a prediction [N, 2·K] with a known K, and no padding.",
        got=f"a prediction [N, {', '.join(map(str, sizes))}]",
        fix="Name the embeddings of an .onnx file: {@convert.source.pair}=[a,b]; or one that the model computes for "
        "both inputs of a row: {@convert.source.pair}=[a].",
    )
