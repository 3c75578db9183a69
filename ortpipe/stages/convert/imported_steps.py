"""The steps of convert for a model that others made: choose weights, compare predictions, read off the meaning."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import SHARES, Data
from ortpipe.errors import ConvertError, ModelError, under
from ortpipe.facts import Facts, HeadFacts
from ortpipe.graph.choice.parameters import choose, untie
from ortpipe.graph.choice.tied import copies, tie
from ortpipe.graph.core import query
from ortpipe.graph.core.check import finish_apart
from ortpipe.graph.core.origins import marked
from ortpipe.graph.core.protos import sealed
from ortpipe.graph.core.selection import Choice, some
from ortpipe.graph.forms.modes import is_statistic, to_inference
from ortpipe.runtime.session import Session
from ortpipe.stages.convert import sources
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.forward import Converted, Forward, facts_of
from ortpipe.stages.convert.imported import Imported
from ortpipe.stages.convert.objective import factors_of_classes, objective_facts, objective_notes
from ortpipe.stages.convert.rows.compared_rows import check_missing, compared_rows

MIXING = 1e-2  # of the largest prediction: a row predicted alone may differ by this, or by the rounding to integers
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


def imported(forward: Forward, config: ConvertConfig, data: Data | None) -> Converted:
    """Return a model with its weights to train, compared with its source on real rows, and its meaning."""
    assert isinstance(forward, Imported)  # the source does not know the meaning
    converted, predictions = _chosen(forward, config), dict[str, np.ndarray]()
    if data is not None:
        converted, predictions = _compared(converted, forward, config, data)
    return _described(converted, forward, predictions) if config.head is None else converted


def _chosen(forward: Imported, config: ConvertConfig) -> Converted:
    """Choose the weights to train, and check the model."""
    graph, choice = forward.model.graph, _choice(forward, config.tie)
    statistics = {name for name in choice.untrained if is_statistic(graph.initializers[name])}
    source_weights = {
        f"source/{name}": sealed(query.tensor(value).numpy())  # type: ignore[union-attr]
        for name, value in graph.initializers.items()
        if name in choice.trained or name in statistics
    }
    finished = finish_apart(forward.model)
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


def _choice(forward: Imported, tied: bool | None) -> Choice:
    """Return the weights to train, after equal ones were joined, or each node got its own copy."""
    graph = forward.model.graph
    outputs = [query.value(graph, name) for name in (forward.prediction, *forward.heads)]
    if tied is False:
        untie(forward.model, *outputs)
    choice = choose(graph, *outputs, declared=forward.untrained_reasons)
    if tied and tie(graph, choice.trained):
        choice = choose(graph, *outputs, declared=forward.untrained_reasons)
    return choice


def _described(converted: Converted, forward: Imported, predictions: Mapping[str, np.ndarray]) -> Converted:
    """Read the meaning of the outputs off the graph and the predictions of real rows."""
    with under("source"):
        meaning = forward.meaning_of(predictions.get(forward.prediction))
    heads = {}
    for name, meaning_of in forward.heads.items():
        with under("source", "heads", name):
            heads[name] = meaning_of(predictions.get(name))
    return converted.next(meaning=meaning, heads=heads)


def with_source_facts(
    converted: Converted, facts: Facts, config: ConvertConfig, data: Data | None
) -> tuple[Facts, list[str]]:
    """Return the facts and notes with those of the source's objective and heads, and of classes in the data."""
    forward, notes = converted.forward, list[str]()
    objective = dict(facts.objective)
    if converted.objective is not None:
        objective |= objective_facts(converted.objective, facts, data)
        notes += objective_notes(objective)
    elif config.head is None and getattr(config.source, "pair", None):
        objective["loss"] = {"name": "info_nce"}  # for the automatic loss: the task of a pair, regression, means l2
    notes += _notes_of_copies(forward, converted.choice, config) if forward.meaning is None else []
    notes += [note for head in converted.heads.values() for note in head.notes]
    of_heads = {name: {k: v for k, v in head.facts.items() if k != "members"} for name, head in converted.heads.items()}
    facts = dataclasses.replace(
        facts,
        soft=(data is not None and bool(facts.classes) and SHARES in data.train.head(1).heads) or None,
        class_weight=factors_of_classes(facts.task, facts.classes, data) if data and data.class_weight else (),
        objective=objective,
        heads={name: HeadFacts(**head) for name, head in of_heads.items()},
    )
    return facts, notes


def _notes_of_copies(forward: Forward, choice: Choice, config: ConvertConfig) -> list[str]:
    """Return notes on weights that several nodes read, and on equal ones that are trained apart."""
    notes = list[str]()
    if choice.shared:
        shared = [f"{name} (by {count} nodes)" for name, count in choice.shared.items()]
        notes.append(
            f"several nodes read {some(shared)}, and training moves them together; where an exporter merged equal "
            "values, each node can have its own (convert.tie=false)"
        )
    if config.tie is None and (copied := copies(forward.model.graph, choice.trained)):
        notes.append(f"trains {some([str(copy) for copy in copied])} apart; convert.tie=true trains them together")
    return notes


def _compared(
    converted: Converted, forward: Imported, config: ConvertConfig, data: Data
) -> tuple[Converted, dict[str, np.ndarray]]:
    """Compare the outputs of real rows with the source's, and return them; raise ConvertError where they differ."""
    facts, rows = converted.facts, compared_rows(data)
    assert converted.finished is not None
    model, names = converted.finished[0], [facts.prediction, *forward.heads]
    inputs = feed_inputs(model, facts, rows)
    inference = forward.model.clone()
    loaded = finish_apart(inference, deep=True) if to_inference(inference) else converted.finished
    session = (forward.session and forward.session(*loaded)) or Session(loaded[0], weights=loaded[1])
    if rows.kept:
        check_missing(session, inputs, names, rows)
    predictions = dict(zip(names, session.run(inputs, names), strict=True))
    mixing = max(MIXING, forward.rounding)
    notes = _mixing_notes(session, inputs, facts.prediction, predictions[facts.prediction], mixing)
    del session, inference, loaded  # frees their weights before a session of the source loads the same ones again
    source_inputs = rows.inputs if forward.as_given else inputs
    worst = max(_difference(converted, forward, name, y, source_inputs, config) for name, y in predictions.items())
    unread = [name for name in rows.kept if name not in facts.inputs and len(rows.kept) > 1]
    notes = [*notes, *([f"does not read {some(unread)} of the data"] if unread else [])]
    return converted.next(*notes, record={"discrepancy": worst}), predictions


def _difference(
    converted: Converted,
    forward: Imported,
    output: str,
    predicted: np.ndarray,
    inputs: Mapping[str, np.ndarray],
    config: ConvertConfig,
) -> float:
    """Return max|output − source| / max(1, max|source|) of an output."""
    count = len(next(iter(inputs.values())))
    if predicted.ndim and len(predicted) != count:
        raise ConvertError(
            "A prediction must have one entry per row.",
            got=f"{output!r} of shape {list(predicted.shape)} for {count} rows",
            fix="Choose another output with {at}source.prediction, or, where its rows lie on another axis, say which: "
            f"{{at}}source.batch_axis={{{output}: 1}}.",
        )
    expected = np.asarray(forward.expected(inputs, output), np.float64).reshape(predicted.shape)
    if not np.isfinite(expected).all():
        raise _not_finite(converted, output, expected)
    difference = float(np.abs(predicted - expected).max() / max(1.0, np.abs(expected).max()))
    weights = [forward.model.graph.initializers[name].dtype for name in converted.facts.parameters]
    floats = {predicted.dtype.name, *(dtype.numpy().name for dtype in weights if dtype)}
    allowed = config.tolerance or max(*(TOLERANCE.get(name, 1e-2) for name in floats), forward.rounding)
    if not difference <= allowed:
        by_estimator = ", or use {at}dtype=float64 for an estimator."
        reason = f": {forward.rounding_reason}" if forward.rounding_reason else by_estimator
        raise ConvertError(
            "The converted model must predict what its source predicts.",
            key="tolerance",
            got=f"{forward.origin}: largest difference {difference:.3g} on {count} rows, tolerance {allowed:g}",
            fix=f"Raise {{key}} if the difference is acceptable{reason}",
        )
    return difference


def _not_finite(converted: Converted, output: str, expected: np.ndarray) -> ConvertError:
    graph, bad_rows = converted.forward.model.graph, ~np.isfinite(expected).reshape(len(expected), -1).all(axis=1)
    weights = {name: query.array(graph.initializers[name]) for name in converted.facts.parameters}
    wrong = [name for name, array in weights.items() if not np.isfinite(array).all()]
    return ConvertError(
        "A model must predict finite values.",
        got=f"nan or infinite values of {output!r} in {bad_rows.sum()} of {len(expected)} rows"
        + (f"; weights that are not finite: {some(wrong)}" if wrong else ""),
        fix="Take a file whose weights are finite, or end the graph in front of them with {at}source.prediction."
        if wrong
        else "Check the model, and the scale of its inputs.",
    )


def _mixing_notes(
    session: Session, inputs: Mapping[str, np.ndarray], prediction: str, batch: np.ndarray, tolerance: float
) -> list[str]:
    """Return a note if the prediction of a row depends on the other rows of its batch."""
    if batch.ndim == 0 or len(batch) < 2:
        return []
    try:
        [alone] = session.run({name: array[-1:] for name, array in inputs.items()}, [prediction])
    except ModelError:
        return ["runs on several rows at a time, and not on one"]
    allowed = tolerance * max(1e-6, np.abs(batch).max())
    if alone.shape == batch[-1:].shape and np.abs(alone - batch[-1:]).max() <= allowed:
        return []
    return [
        f"the prediction of a row ({prediction!r}) depends on the rows beside it, as if a batch were one sequence: "
        "batches are cut and shuffled without regard to that"
    ]
