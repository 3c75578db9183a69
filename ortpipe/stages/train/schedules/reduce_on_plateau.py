"""Reduce on plateau: the rate falls by a factor when the monitored loss has not improved for a while."""

from collections.abc import Sequence
from dataclasses import dataclass

from ortpipe.settings import NotNegative, Share, Times
from ortpipe.stages.train.schedules import Schedule


@dataclass(frozen=True)
class ReduceOnPlateau(Schedule):
    """`torch.optim.lr_scheduler.ReduceLROnPlateau` of what train.early_stop.monitor says, every time it is evaluated.

    Attributes:
        by: the factor.
        patience: evaluations without an improvement that are borne.
        threshold: the part of the best value by which a value must be better to be an improvement.
        lowest: the smallest part of the base rate.
    """

    by: Share = 0.1
    patience: Times = 10
    threshold: NotNegative = 0.0001
    lowest: Share = 0.0

    def factor(self, monitored: Sequence[float]) -> float:
        """Return by^(number of falls so far)."""
        best, waited, factor = float("inf"), 0, 1.0
        for loss in monitored:
            improved = loss < best - self.threshold * abs(best) if best < float("inf") else True
            best, waited = (loss, 0) if improved else (best, waited + 1)
            if waited > self.patience:
                factor, waited = max(factor * self.by, self.lowest), 0
        return factor
