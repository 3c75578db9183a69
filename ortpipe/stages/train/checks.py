"""Checks of adapters, and of accumulated or parallel batches, for runs that have them."""

from ortpipe.artifact import Facts
from ortpipe.errors import TrainError
from ortpipe.stages.train.config import TrainConfig


def check_init_and_batches(config: TrainConfig, facts: Facts) -> None:
    """Reject random weights with adapters, and parts of a batch for a risk, whose loss reads a whole batch."""
    if facts.adapters and config.init == "random":
        rule = "Adapters need the model's own weights; they start at zero."
        raise TrainError(rule, key="init", got="random", fix="Set {key}=keep, or leave out {@derive.adapters}.")
    if not (config.parallel or config.accumulate > 1):
        return
    for head, part in facts.predictions.items():
        if part.link == "risk":
            rule = "The loss cox reads a whole batch: it can be neither split among workers nor accumulated."
            got = "parallel" if config.parallel else f"accumulate={config.accumulate}"
            fix = "Set {at}parallel=null, {at}accumulate=1 and a larger {at}batch_size."
            raise TrainError(rule, got=f"{got}, with cox of head {head!r}" if head else got, fix=fix)
