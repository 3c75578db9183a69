"""convert: a source → a forward model with the same predictions."""

import dataclasses
from pathlib import Path
from typing import Any

from ortpipe.artifact import Artifact, HeadFacts
from ortpipe.data.rows import Data, check_data
from ortpipe.errors import ConvertError, under
from ortpipe.graph.choice.choice import sentence, some
from ortpipe.graph.choice.parameters import choose, copies, untie
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import sealed
from ortpipe.graph.core.check import finish_apart
from ortpipe.graph.core.origins import marked
from ortpipe.graph.forms.modes import is_statistic
from ortpipe.settings import later
from ortpipe.stages.convert.compare import compared
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.converted import Converted, facts_of
from ortpipe.stages.convert.own_objective import class_weight, objective_facts, objective_notes
from ortpipe.stages.convert.passed import read_passed
from ortpipe.stages.convert.reading.graph_settings import Given
from ortpipe.stages.convert.sources import Forward

VERSION = 19

# for settings beyond the source
[with_new_head] = later("ortpipe.stages.convert.changes.replace_head", "with_new_head")
[with_weights_of_file] = later("ortpipe.stages.convert.changes.initialize", "with_weights_of_file")
[quantized] = later("ortpipe.stages.convert.changes.quantize", "quantized")
[record_of] = later("ortpipe.stages.convert.sources.stored_estimator", "record_of")


def convert(source: Any, config: ConvertConfig | None = None, *, data: Data | None = None) -> Artifact:
    """Return the forward model of a source.

    Args:
        source: a scikit-learn estimator or Pipeline (an unfitted one is fitted on a clone), a torch.nn.Module, a
            ModelProto, the path of an .onnx file, or None for the source that the config names.
        config: dtype, tolerance, and the source if `source` is None. For a module or an ONNX model, `config.source`
            describes the graph, such as its task: ConvertConfig(Given(task="multiclass")).
        data: real rows, to fit on and to compare predictions on.

    Returns:
        An artifact whose trainable tensors are named float initializers in standard ONNX operators; values that must
        not be trained (scaler constants) are in Constant nodes. If there is data, the lineage holds the largest
        discrepancy max|onnx − source| / max(1, max|source|), measured before a new head or other weights are set. A
        model with a new head has no `source/…` tensors.

    Raises:
        ConvertError: the source is not supported, or its graph predicts something else.
        ModelError: the .onnx file is missing, damaged, or of a form the runtime cannot load.

    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> artifact = convert(LinearRegression().fit(np.eye(3), [1.0, 2.0, 3.0]))
    >>> artifact.facts.parameters, artifact.facts.task
    (('coefficient', 'intercept'), 'regression')
    """
    if data is not None:
        check_data(data)
    if config is None and source is None:
        rule = "convert needs a source."
        raise ConvertError(rule, got="None and no config", fix="Give an estimator, a model or a path.")
    config = config or ConvertConfig(Given())
    if source is None:
        with under("source"):
            forward = config.source(data, config.dtype)
    else:
        forward = read_passed(source, config, data)
    converted = _chosen(forward, config)
    if data is not None:
        converted = compared(converted, config, data)
    if config.head is not None:
        converted = with_new_head(converted, config.head, config.source)
    else:
        converted = _described(converted)
    if config.init is not None:
        converted = with_weights_of_file(converted, config.init)
    if config.quantize is not None:
        converted = quantized(converted, config.quantize, config.source, data)
    return _artifact(converted, config, data)


def _chosen(forward: Forward, config: ConvertConfig) -> Converted:
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
    record: dict[str, Any] = {"stage": "convert", "version": VERSION, "source": Path(forward.origin).name}
    record |= {"origins": origins} if (origins := marked(graph)) else {}
    record |= {} if forward.fitted is None else record_of(forward.fitted)
    if forward.heads and config.head is not None:
        raise ConvertError(
            "A new head takes the place of the network's end, with all of its outputs.",
            key="head",
            got=f"further outputs {', '.join(forward.heads)}",
            fix="Leave out {key}, or the further outputs.",
        )
    facts = facts_of(graph, forward.prediction, choice)
    unset = [name.removeprefix("source/") for name in source_weights]
    return Converted(forward, choice, facts, record, forward.notes, source_weights, unset, finished, forward.objective)


def _described(converted: Converted) -> Converted:
    """Read the meaning of the outputs off the graph and the predictions of real rows."""
    forward, predictions = converted.forward, converted.predictions
    with under("source"):
        meaning = forward.meaning(predictions.get(forward.prediction))
    heads = {}
    for name, meaning_of in forward.heads.items():
        with under("source", "heads", name):
            heads[name] = meaning_of(predictions.get(name))
    return converted.next(record={"scaled": True} if forward.scaled else {}, meaning=meaning, heads=heads)


def _artifact(converted: Converted, config: ConvertConfig, data: Data | None) -> Artifact:
    """Return the artifact with all facts and notes."""
    forward, choice, meaning = converted.forward, converted.choice, converted.meaning
    assert meaning is not None
    model, weights = converted.finished or finish_apart(forward.model)
    facts = dataclasses.replace(converted.facts, classes=meaning.classes)
    of_classes = class_weight(meaning.task, meaning.classes, data)
    objective = objective_facts(converted.objective, facts, data)
    notes = [
        *converted.notes,
        sentence(choice.trained, choice.untrained, by_default=True),
        *objective_notes(objective),
        *_notes_of_copies(converted, config),
        *(note for of_output in (meaning, *converted.heads.values()) for note in of_output.notes),
    ]
    facts = dataclasses.replace(
        facts,
        **meaning.facts,
        class_weight=of_classes,
        objective=objective,
        heads={
            name: HeadFacts(**{key: value for key, value in of_head.facts.items() if key != "members"})
            for name, of_head in converted.heads.items()
        },
        lineage=({**converted.record, "notes": notes},),
    )
    return Artifact(model, facts, converted.source_weights if forward.expected is not None else {}, weights=weights)


def _notes_of_copies(converted: Converted, config: ConvertConfig) -> list[str]:
    """Return notes on weights that several nodes read, and on equal ones that training moves apart."""
    notes, choice = list[str](), converted.choice
    if choice.shared:
        shared = [f"{name} (by {count} nodes)" for name, count in choice.shared.items()]
        notes.append(
            f"several nodes read {some(shared)}, and training moves them together; where an exporter merged equal "
            "values, each node can have its own (convert.untie=true)"
        )
    if not config.untie and (copied := copies(converted.forward.model.graph, choice.trained)):
        notes.append(
            f"trains {some(copied)} apart; to train tied weights together, let all nodes read one weight of the file"
        )
    return notes
