"""What a config says about add_loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from ortpipe.errors import ConfigError
from ortpipe.settings import Config, NotNegative
from ortpipe.stages.add_loss.losses import LOSSES, Loss


@dataclass(frozen=True)
class HeadLoss(Config):
    """The loss of a further output.

    Attributes:
        loss: a member of the catalogue of losses.
        weight: what the sum of all losses multiplies it by.
        elements: as of the prediction's loss; so is `padding`.
        padding: the label of its own that marks an element which counts nothing.
    """

    loss: Annotated[Loss, LOSSES]
    weight: NotNegative = field(default=1.0, kw_only=True)
    elements: Literal["mean", "sum"] = field(default="mean", kw_only=True)
    padding: int | float | str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.padding, float) and not math.isfinite(self.padding):
            rule, fix = "{key} must be a label that data may hold.", "Write -100 in the data, and set {key}=-100."
            raise ConfigError(rule, key="padding", got=self.padding, fix=fix)


@dataclass(frozen=True)
class AddLossConfig(HeadLoss):
    """Which loss, and how it joins elements and rows.

    Attributes:
        loss: a member of the catalogue of losses.
        weight: what the loss is multiplied by, where further outputs have losses too.
        heads: further output (of convert.source.heads) → its loss; one that is not here has the prediction's own loss,
            elements and padding, and weight 1.
        reduction: `sum` is Σᵢ wᵢ·lᵢ; `mean` divides that by the number of rows N (not by Σ wᵢ).
        sample_weight: whether the loss has a per-row weight input w [N, 1]; without it every wᵢ is 1.
        loss_name: the loss output, or `<loss_name>_1` … where the model has a value of that name; so do the next two.
        label_name: the label input.
        weight_name: the weight input.
        elements: a row's loss is the `mean` over its elements that count (steps, pixels), or their `sum`.
        padding: the label that marks an element which counts nothing, in the loss as in metrics (of several values,
            one that is marked is enough); a row without any other has loss 0; null: all count.
    """

    reduction: Literal["sum", "mean"] = "mean"
    sample_weight: bool = False
    loss_name: str = "loss"
    label_name: str = "label"
    weight_name: str = "sample_weight"
    heads: Mapping[str, HeadLoss] = field(default_factory=dict)

    def of(self, head: str) -> HeadLoss:
        """Return the loss of a head, that of the prediction for ""."""
        if not head:
            return self
        return self.heads.get(head) or HeadLoss(self.loss, elements=self.elements, padding=self.padding)
