"""What a config says about add_loss."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from ortpipe.errors import ConfigError
from ortpipe.settings import Config
from ortpipe.stages.add_loss.losses import LOSSES, Loss


@dataclass(frozen=True)
class AddLossConfig(Config):
    """Which loss, and how it joins elements and rows.

    Attributes:
        loss: a member of the catalogue of losses.
        reduction: `sum` is Σᵢ wᵢ·lᵢ; `mean` divides that by the number of rows N (not by Σ wᵢ).
        sample_weight: whether the loss has a per-row weight input w [N, 1]; without it every wᵢ is 1.
        loss_name: the loss output, or `<loss_name>_1` … where the model has a value of that name; so do the next two.
        label_name: the label input.
        weight_name: the weight input.
        elements: a row's loss is the `mean` over its elements that count (steps, pixels), or their `sum`.
        padding: the label that marks an element which counts nothing, in the loss as in metrics (of several values,
            one that is marked is enough); a row without any other has loss 0; null: all count.
    """

    loss: Annotated[Loss, LOSSES]
    reduction: Literal["sum", "mean"] = "mean"
    sample_weight: bool = False
    loss_name: str = "loss"
    label_name: str = "label"
    weight_name: str = "sample_weight"
    elements: Literal["mean", "sum"] = "mean"
    padding: int | float | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.padding, float) and not math.isfinite(self.padding):
            rule, fix = "{key} must be a label that data may hold.", "Write -100 in the data, and set {key}=-100."
            raise ConfigError(rule, key="padding", got=self.padding, fix=fix)
