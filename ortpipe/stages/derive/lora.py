"""Low-rank adapters: what a config says of them, and which weights get one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.errors import DeriveError
from ortpipe.graph.choice.parameters import some
from ortpipe.graph.choice.readers import UseFinder
from ortpipe.graph.core import query
from ortpipe.graph.forms.adapters import ROUNDS, Adapter, insert, why_not
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

    def __call__(
        self, graph: ir.Graph, candidates: Sequence[str], parameters: Collection[str]
    ) -> tuple[dict[str, Adapter], dict[str, str]]:
        """Put adapters into a graph; return them by weight, and of the targets without one the reason.

        Args:
            graph: where the weights are initializers.
            candidates: what `targets` can name.
            parameters: those that they are by default.

        Raises:
            DeriveError: a target gets none that is named in full, or none gets one.
        """
        finder = UseFinder(graph)
        targets = (
            [name for name in candidates if name in parameters]
            if self.targets is None
            else query.select(self.targets, candidates, DeriveError, "adapters.targets")
        )
        reasons = {name: why_not(graph.initializers[name], finder, self.rank) for name in targets}
        without = {name: reason for name, reason in reasons.items() if reason is not None}
        chosen = [name for name in targets if name not in without]
        if refused := [name for name in self.targets or () if name in without] or (list(without) if not chosen else []):
            rounded = any(ROUNDS in without[name] for name in refused)
            raise DeriveError(
                "An adapter stands beside a weight of MatMul, Gemm or Conv that is larger than itself.",
                key="adapters",
                got="; ".join(f"{name}: {without[name]}" for name in refused[:3]),
                fix="Leave out {@convert.quantize} or {key}: what is rounded to integers takes no adapter."
                if rounded
                else "Name others in {key}.targets, or lower {key}.rank.",
            )
        if not chosen:
            raise DeriveError(
                "There is a weight to adapt.", key="adapters", got="none", fix="Name some in {key}.targets."
            )
        rng = np.random.default_rng(self.seed)
        return insert(graph, chosen, self.rank, (self.alpha or self.rank) / self.rank, rng), without


def sentence(
    sizes: Mapping[str, int], parameters: Sequence[str], adapters: Mapping[str, Adapter], untrained: Mapping[str, str]
) -> str:
    """Return in words what is trained in the place of what."""
    matrices = [name for adapter in adapters.values() for name in (adapter.left, adapter.right)]
    text = (
        f"trains adapters of {sum(sizes[name] for name in matrices):,} numbers in the place of weights of "
        f"{sum(sizes[name] for name in adapters):,}, which stay until they are merged: {some(list(adapters))}"
    )
    beside = [name for name in parameters if name not in matrices]
    text += f"; trains as they are {some(beside)}" if beside else ""
    reasons: dict[str, list[str]] = {}
    for name, reason in untrained.items():
        reasons.setdefault(reason, []).append(name)
    whys = ", ".join(f"{some(names)} ({reason})" for reason, names in reasons.items())
    return text + (f"; trains neither {whys}" if whys else "")
