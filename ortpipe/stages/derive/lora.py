"""The settings of low-rank adapters."""

from dataclasses import dataclass

from ortpipe.settings import Config, Count, Positive, Seed


@dataclass(frozen=True)
class Lora(Config):
    """W + alpha / rank · L·R (Hu et al., 2021) in the place of weights W of MatMul, Gemm and Conv, which stay.

    Attributes:
        rank: of L·R: L is [p, rank] and R [rank, q] beside a weight [p, q].
        alpha: how much the adapters count; by default the rank, so that L·R is added as it is.
        targets: exact names or globs of the weights; by default all parameters that are larger than their adapters.
        seed: of the one of L and R that reads the data; the other one starts at 0.
    """

    rank: Count = 8
    alpha: Positive | None = None
    targets: tuple[str, ...] | None = None
    seed: Seed = 0
