"""convert: a source → a forward model with the same predictions."""

import dataclasses
from typing import TYPE_CHECKING, Any

from ortpipe.artifact import Artifact
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data, check_data
from ortpipe.doors import later
from ortpipe.errors import under
from ortpipe.graph.core import query
from ortpipe.graph.core.check import finish_apart
from ortpipe.graph.core.selection import Choice, sentence
from ortpipe.stages.convert.config import VERSION, ConvertConfig
from ortpipe.stages.convert.forward import Converted, Forward, Meaning, facts_of

if TYPE_CHECKING:  # for sources other than networks by config, and settings beyond the source
    from ortpipe.stages.convert.changes.changed import changed
    from ortpipe.stages.convert.imported_steps import imported, with_source_facts
    from ortpipe.stages.convert.passed import read_passed
    from ortpipe.stages.convert.rows.compared_rows import table_record
else:
    later(__name__)


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
    if source is None and config is not None:
        with under("source"):
            forward = config.source(data, config.dtype)
    else:
        forward, config = read_passed(source, config, data)
    converted = imported(forward, config, data) if forward.meaning is None else _built(forward, forward.meaning)
    if data is not None:
        converted = _with_rows(converted, data)
    if config.head is not None or config.init is not None or config.quantize is not None:
        converted = changed(converted, config, data)
    return _artifact(converted, config, data)


def _built(forward: Forward, meaning: Meaning) -> Converted:
    """Check a network, whose weights and meaning its source knows."""
    graph, reasons = forward.model.graph, forward.untrained_reasons
    names = query.float_initializers(graph, query.value(graph, forward.prediction))
    untrained = {name: reason for name in names if (reason := reasons[name]) is not None}
    choice = Choice(tuple(name for name in names if name not in untrained), untrained, {})
    finished, facts = finish_apart(forward.model), facts_of(graph, forward.prediction, choice)
    return Converted(forward, choice, facts, {"source": forward.origin}, forward.notes, names, finished, meaning)


def _with_rows(converted: Converted, data: Data) -> Converted:
    """Add the digest of the data, the shape of a row, and the names of columns."""
    facts, rows = converted.facts, data.train.head(1)
    assert converted.finished is not None
    inputs = feed_inputs(converted.finished[0], facts, rows)
    record: dict[str, Any] = {"data": data.digest(), **(table_record(data, facts) if rows.kept else {})}
    record["rows"] = {name: list(array.shape[1:]) for name, array in inputs.items()}
    single_input = len(facts.inputs) == len(rows.inputs) == 1  # the array fits the input under any name
    columns = dict(zip(facts.inputs, rows.columns.values(), strict=False)) if single_input else rows.columns
    return converted.next(record=record, facts=dataclasses.replace(facts, columns=columns, prepared=rows.prepared))


def _artifact(converted: Converted, config: ConvertConfig, data: Data | None) -> Artifact:
    """Return the artifact with all facts and notes."""
    forward, choice, meaning = converted.forward, converted.choice, converted.meaning
    assert meaning is not None
    model, weights = converted.finished or finish_apart(forward.model)
    objective = {} if forward.loss is None else {"loss": forward.loss}
    facts = dataclasses.replace(converted.facts, **meaning.facts, objective=objective)
    notes = [*converted.notes, sentence(choice.trained, choice.untrained, by_default=True)]
    if forward.meaning is None or (data is not None and (data.class_weight or data.train.head(1).heads)):
        facts, more_notes = with_source_facts(converted, facts, config, data)
        notes += more_notes
    record = {"stage": "convert", "version": VERSION, **converted.record}
    record |= {"scaled": True} if forward.scaled and config.head is None else {}
    facts = dataclasses.replace(facts, lineage=({**record, "notes": [*notes, *meaning.notes]},))
    return Artifact(model, facts, converted.source_weights, weights=weights)
