"""Checks of add_loss's settings by facts alone, before any stage runs."""

import dataclasses
from typing import TYPE_CHECKING

from ortpipe.artifact import Facts
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.stages.add_loss.config import AddLossConfig

if TYPE_CHECKING:
    from ortpipe.stages.add_loss.checks import check_all
    from ortpipe.stages.add_loss.losses.auto import chosen_by_model
else:
    later(__name__)


def check(facts: Facts, config: AddLossConfig, *, data: Data | None = None) -> Facts:
    """Reject a loss that does not fit its task or the labels, and padding that is a class.

    Return the facts with those about labels, for the checks of later stages.
    """
    config = chosen_losses(facts, config)
    of_data = data is not None and (data.class_weight or data.train.head(1).heads)
    bounded = any(getattr(config.loss, trait, None) for trait in ("labels", "link", "of_sequences"))
    unfit = facts.task not in getattr(config.loss, "tasks", (facts.task,))  # a user's own loss need not declare them
    if of_data or facts.heads or facts.class_weight or config.heads or bounded or config.padding is not None or unfit:
        return check_all(facts, config, data)
    return dataclasses.replace(facts, padding=None, blank=None, link=None, levels=())


def chosen_losses(facts: Facts, config: AddLossConfig) -> AddLossConfig:
    """Return the settings with `auto` replaced by the losses for the model and its heads."""
    auto = any(is_auto(config.of(head).loss) for head in ("", *facts.heads))
    return chosen_by_model(facts, config) if auto else config


def is_auto(loss: object) -> bool:
    """Return whether a loss follows from the model."""
    return getattr(loss, "depends_on_model", False)
