"""What a config says about add_loss."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ortpipe.settings import Config
from ortpipe.stages.add_loss.losses import LOSSES, Loss


@dataclass(frozen=True)
class AddLossConfig(Config):
    """Which loss, and how it joins rows.

    Attributes:
        loss: a member of the catalogue of losses.
        reduction: `sum` is Σᵢ wᵢ·lᵢ; `mean` divides that by the number of rows N (not by Σ wᵢ).
        sample_weight: whether the loss has a per-row weight input w [N, 1]; without it every wᵢ is 1.
        loss_name: the loss output, or `<loss_name>_1` … where the model has a value of that name; so do the next two.
        label_name: the label input.
        weight_name: the weight input.
    """

    loss: Annotated[Loss, LOSSES]
    reduction: Literal["sum", "mean"] = "mean"
    sample_weight: bool = False
    loss_name: str = "loss"
    label_name: str = "label"
    weight_name: str = "sample_weight"
