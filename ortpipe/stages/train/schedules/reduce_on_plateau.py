"""Reduce on plateau: multiply the rate by a factor when the monitored value has not improved for a while."""

from collections.abc import Sequence
from dataclasses import dataclass

from ortpipe.settings import NotNegative, Share, Times
from ortpipe.stages.train.schedules import Schedule


@dataclass(frozen=True)
class ReduceOnPlateau(Schedule):
    """`torch.optim.lr_scheduler.ReduceLROnPlateau` on the value of train.early_stop.monitor, at each evaluation.

    Attributes:
        by: the factor.
        patience: evaluations without an improvement that are tolerated.
        threshold: the least improvement that counts, as a fraction of the best value.
        lowest: the lowest rate, as a fraction of the base rate.
    """

    by: Share = 0.1
    patience: Times = 10
    threshold: NotNegative = 0.0001
    lowest: Share = 0.0

    def factor(self, monitored: Sequence[float]) -> float:
        """Return by^(number of reductions so far)."""
        best, waited, factor = float("inf"), 0, 1.0
        for loss in monitored:
            improved = loss < best - self.threshold * abs(best) if best < float("inf") else True
            best, waited = (loss, 0) if improved else (best, waited + 1)
            if waited > self.patience:
                factor, waited = max(factor * self.by, self.lowest), 0
        return factor
