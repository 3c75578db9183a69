"""Adaptive: ηₜ = η / 5ᵏ, where k counts how often the monitored loss stopped falling."""

from collections.abc import Sequence
from dataclasses import dataclass

from ortpipe.settings import Count, NotNegative
from ortpipe.stages.train.schedules import Schedule


@dataclass(frozen=True)
class Adaptive(Schedule):
    """scikit-learn's `learning_rate='adaptive'`: divide the rate by five after `patience` epochs without progress.

    Attributes:
        tolerance: the least improvement of the loss per row over the best so far that counts.
        patience: consecutive epochs (or validations, see train.early_stop.monitor) without progress before the rate
            falls: `n_iter_no_change` of scikit-learn's SGD estimators, one more than that of its MLPs.
    """

    tolerance: NotNegative = 0.001
    patience: Count = 5

    def factor(self, monitored: Sequence[float]) -> float:
        """Return 5^(−number of reductions so far)."""
        best, missed, falls = float("inf"), 0, 0
        for loss in monitored:
            missed = missed + 1 if loss > best - self.tolerance else 0
            best = min(best, loss)
            if missed >= self.patience:
                falls, missed = falls + 1, 0
        return 0.2**falls
