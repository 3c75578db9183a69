"""The config of add_loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from ortpipe.errors import ConfigError
from ortpipe.settings import Config, NotNegative, Text
from ortpipe.stages.add_loss.losses import LOSSES, Loss

VERSION = 5  # raised whenever the stage's results change


@dataclass(frozen=True)
class HeadLoss(Config):
    """The loss of a further output.

    Attributes:
        loss: a member of the catalogue of losses.
        weight: the factor of this loss in the sum of all losses.
        elements: how a row's elements are joined, as for the prediction's loss.
        padding: the label that marks an element to ignore, as for the prediction's loss.
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
    """The loss, and how it joins elements and rows.

    Attributes:
        loss: a member of the catalogue of losses.
        weight: the factor of the loss, for models whose further outputs have losses, too.
        heads: further output (of convert.source.heads) → its loss; an output that is not listed has the prediction's
            loss, elements and padding, and weight 1.
        reduction: `sum` is Σᵢ wᵢ·lᵢ; `mean` divides that by the number of rows N (not by Σ wᵢ).
        sample_weight: whether the loss has a per-row weight input w [N, 1]; without it every wᵢ is 1.
        loss_name: the name of the loss output, or `<loss_name>_1` … if the model has a value of that name (likewise for
            the next two).
        label_name: the name of the label input.
        weight_name: the name of the weight input.
        elements: a row's loss is the `mean` over its elements (steps, pixels) without padding, or their `sum`.
        padding: the label that marks an element to ignore, in the loss and in metrics (of an element with several
            values, one such value is enough); a row of padding only has loss 0; null: no padding.
    """

    reduction: Literal["sum", "mean"] = "mean"
    sample_weight: bool = False
    loss_name: Text = "loss"
    label_name: Text = "label"
    weight_name: Text = "sample_weight"
    heads: Mapping[str, HeadLoss] = field(default_factory=dict)

    def of(self, head: str) -> HeadLoss:
        """Return the loss of a head, or of the prediction for ""."""
        if not head:
            return self
        return self.heads.get(head) or HeadLoss(self.loss, elements=self.elements, padding=self.padding)
