"""Checks of adapters, losses of whole batches, patterns and partial batches, for runs that have them."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ortpipe.artifact import Facts
from ortpipe.data.rows import Data
from ortpipe.errors import TrainError
from ortpipe.graph.core import selection
from ortpipe.stages.train.config import TrainConfig


def check_init_and_batches(config: TrainConfig, facts: Facts, data: Data) -> None:
    """Reject random weights with adapters, and batches that a loss of whole batches cannot read."""
    if facts.adapters and config.init == "random":
        rule = "Adapters need the model's own weights; they start at zero."
        raise TrainError(rule, key="init", got="random", fix="Set {key}=keep, or leave out {@derive.adapters}.")
    losses: dict[Any, str] = {"risk": "cox", "pairs": "info_nce"}
    for head, part in facts.predictions.items():
        if loss := losses.get(part.link):
            of_head = f" of head {head!r}" if head else ""
            _check_whole(config, loss, of_head)
            if config.optimizer.solver != "lbfgs":  # which reads all rows as one batch
                _check_batches(config, data.of(head), loss, of_head)


def check_patterns(config: TrainConfig, facts: Facts, fixed_names: Collection[str]) -> None:
    """Reject a pattern of no trained parameter."""
    for key, values in (("weight_decay", config.weight_decay), ("factors", config.factors)):
        if isinstance(values, Mapping):
            selection.select(list(values), facts.parameters, TrainError, key, fixed_names)


def no_batch(config: TrainConfig, rows: int) -> TrainError:
    """Return the error for a training without a full batch."""
    return TrainError(
        "{at}drop_last must leave at least one batch.",
        got=f"{rows} rows, batches of {config.batch_size}",
        fix=f"Set {{at}}batch_size={rows} or less, or {{at}}drop_last=false.",
    )


def _check_whole(config: TrainConfig, loss: str, of_head: str) -> None:
    """Reject parts of a batch."""
    if config.parallel or config.accumulate > 1:
        rule = f"The loss {loss} reads a whole batch: it can be neither split among workers nor accumulated."
        got = "parallel" if config.parallel else f"accumulate={config.accumulate}"
        fix = "Set {at}parallel=null, {at}accumulate=1 and a larger {at}batch_size."
        raise TrainError(rule, got=f"{got}, with {loss}{of_head}" if of_head else got, fix=fix)


def _check_batches(config: TrainConfig, data: Data, loss: str, of_head: str) -> None:
    """Reject batches of one row and, where rows keep their order, batches of pairs without a negative example."""
    size, rows = config.batch_size, len(data.train)
    rule, key = f"The loss {loss}{of_head} compares the rows of a batch.", "batch_size"
    if size == 1:
        raise TrainError(rule, key=key, got=1, fix="Set a larger {key}, such as 32.")
    if rows % size == 1 and not config.drop_last:
        got, fix = f"{size} for {rows} rows: the last batch has one row", "Set {at}drop_last=true, or another {key}."
        raise TrainError(rule, key=key, got=got, fix=fix)
    if loss != "info_nce" or config.shuffle:
        return
    labels = np.concatenate([label.ravel() for label, _ in data.train.read_labels()])
    for first in range(0, rows - rows % size if config.drop_last else rows, size):
        batch = labels[first : first + size]
        if (batch == batch[0]).all():
            got = f"the label {batch[0]:g} for all rows from {first} to {first + len(batch) - 1}"
            fix = "Set {at}shuffle=true, or mix rows with different labels."
            raise TrainError(f"The loss {loss}{of_head} needs different labels in a batch.", got=got, fix=fix)
