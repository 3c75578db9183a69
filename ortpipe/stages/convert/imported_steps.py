"""The steps of convert for a model that others made: choose its weights, compare it, and read off its meaning."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError, under
from ortpipe.graph.choice.choice import Choice, some
from ortpipe.graph.choice.parameters import choose, copies, untie
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import sealed
from ortpipe.graph.core.check import finish_apart
from ortpipe.graph.core.origins import marked
from ortpipe.graph.forms.modes import is_statistic
from ortpipe.stages.convert import sources
from ortpipe.stages.convert.compare import compared
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.forward import Converted, Forward, facts_of
from ortpipe.stages.convert.imported import Imported


def imported(forward: Forward, config: ConvertConfig, data: Data | None) -> Converted:
    """Return a model with its weights to train, compared with its source on real rows, and its meaning."""
    assert isinstance(forward, Imported)  # the source does not know the meaning
    converted, predictions = _chosen(forward, config), dict[str, np.ndarray]()
    if data is not None:
        converted, predictions = compared(converted, forward, config, data)
    return _described(converted, forward, predictions) if config.head is None else converted


def _chosen(forward: Imported, config: ConvertConfig) -> Converted:
    """Choose the weights to train, and check the model."""
    graph = forward.model.graph
    outputs = [query.value(graph, name) for name in (forward.prediction, *forward.heads)]
    if config.untie:
        untie(forward.model, *outputs)
    choice = choose(graph, *outputs, declared=forward.untrained_reasons)
    statistics = {name for name in choice.untrained if is_statistic(graph.initializers[name])}
    source_weights = {
        f"source/{name}": sealed(query.tensor(value).numpy())  # type: ignore[union-attr]
        for name, value in graph.initializers.items()
        if name in choice.trained or name in statistics
    }
    finished = finish_apart(forward.model, shaped=True)
    record: dict[str, Any] = {"source": Path(forward.origin).name}
    record |= {"origins": origins} if (origins := marked(graph)) else {}
    record |= {} if forward.fitted is None else sources.record_of(forward.fitted)
    if forward.heads and config.head is not None:
        raise ConvertError(
            "A new head takes the place of the network's end, with all of its outputs.",
            key="head",
            got=f"further outputs {', '.join(forward.heads)}",
            fix="Leave out {key}, or the further outputs.",
        )
    return Converted(
        forward,
        choice,
        facts_of(graph, forward.prediction, choice),
        record,
        forward.notes,
        [name.removeprefix("source/") for name in source_weights],
        finished,
        source_weights=source_weights,
        objective=forward.objective,
    )


def _described(converted: Converted, forward: Imported, predictions: Mapping[str, np.ndarray]) -> Converted:
    """Read the meaning of the outputs off the graph and the predictions of real rows."""
    with under("source"):
        meaning = forward.meaning_of(predictions.get(forward.prediction))
    heads = {}
    for name, meaning_of in forward.heads.items():
        with under("source", "heads", name):
            heads[name] = meaning_of(predictions.get(name))
    return converted.next(meaning=meaning, heads=heads)


def notes_of_copies(forward: Forward, choice: Choice, config: ConvertConfig) -> list[str]:
    """Return notes on weights that several nodes read, and on equal ones that training moves apart."""
    notes = list[str]()
    if choice.shared:
        shared = [f"{name} (by {count} nodes)" for name, count in choice.shared.items()]
        notes.append(
            f"several nodes read {some(shared)}, and training moves them together; where an exporter merged equal "
            "values, each node can have its own (convert.untie=true)"
        )
    if not config.untie and (copied := copies(forward.model.graph, choice.trained)):
        notes.append(
            f"trains {some(copied)} apart; to train tied weights together, let all nodes read one weight of the file"
        )
    return notes
