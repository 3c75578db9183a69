"""Checks of adapters, and of losses of whole batches, for runs that have them."""

from typing import Any

from ortpipe.artifact import Facts
from ortpipe.errors import TrainError
from ortpipe.stages.train.config import TrainConfig


def check_init_and_batches(config: TrainConfig, facts: Facts) -> None:
    """Reject random weights with adapters, and parts of a batch if the loss reads a whole one."""
    if facts.adapters and config.init == "random":
        rule = "Adapters need the model's own weights; they start at zero."
        raise TrainError(rule, key="init", got="random", fix="Set {key}=keep, or leave out {@derive.adapters}.")
    losses: dict[Any, str] = {"risk": "cox", "pairs": "info_nce"}
    in_parts = config.parallel or config.accumulate > 1
    for head, part in facts.predictions.items() if in_parts else ():
        if loss := losses.get(part.link):
            rule = f"The loss {loss} reads a whole batch: it can be neither split among workers nor accumulated."
            got = "parallel" if config.parallel else f"accumulate={config.accumulate}"
            fix = "Set {at}parallel=null, {at}accumulate=1 and a larger {at}batch_size."
            raise TrainError(rule, got=f"{got}, with {loss} of head {head!r}" if head else got, fix=fix)
    if facts.link == "pairs" and config.batch_size == 1 and config.optimizer.solver != "lbfgs":
        rule, fix = "The loss info_nce compares the rows of a batch.", "Set a larger {key}, such as 32."
        raise TrainError(rule, key="batch_size", got=1, fix=fix)
