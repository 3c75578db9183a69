"""Adaptive: ηₜ = η / 5ᵏ, where k counts how often the monitored loss stopped falling."""

from collections.abc import Sequence
from dataclasses import dataclass

from ortpipe.settings import Count, NotNegative
from ortpipe.stages.train.schedules import Schedule


@dataclass(frozen=True)
class Adaptive(Schedule):
    """scikit-learn's `learning_rate='adaptive'`: five times slower after `patience` epochs without progress.

    Attributes:
        tolerance: how much lower than the best so far a loss must be, per row.
        patience: epochs (or evaluations, see train.early_stop.monitor) in a row that miss it before the rate falls:
            `n_iter_no_change` of scikit-learn's SGD estimators, one more than that of its MLPs.
    """

    tolerance: NotNegative = 0.001
    patience: Count = 5

    def factor(self, monitored: Sequence[float]) -> float:
        """Return 5^(−number of falls so far)."""
        best, missed, falls = float("inf"), 0, 0
        for loss in monitored:
            missed = missed + 1 if loss > best - self.tolerance else 0
            best = min(best, loss)
            if missed >= self.patience:
                falls, missed = falls + 1, 0
        return 0.2**falls
