"""convert: a source → a forward model that predicts what the source predicts."""

import dataclasses
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Artifact, Facts, HeadFacts
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data, Rows, check_data
from ortpipe.errors import ConvertError, ModelError, NoRowsError, under
from ortpipe.graph.choice.parameters import Choice, choose, copies, sentence, some
from ortpipe.graph.choice.untie import untie
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import Weights, sealed
from ortpipe.graph.core.check import finish_apart
from ortpipe.graph.core.origins import marked
from ortpipe.graph.forms.modes import is_statistic, to_inference
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.batch import compared_rows
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.init import initialize
from ortpipe.stages.convert.meaning import Meaning
from ortpipe.stages.convert.new_head import replace_head
from ortpipe.stages.convert.own_objective import class_weight, objective_facts, objective_notes
from ortpipe.stages.convert.quantize import calibration_rows, quantize
from ortpipe.stages.convert.sources import Forward
from ortpipe.stages.convert.sources.graph_settings import Given, GraphSettings
from ortpipe.stages.convert.sources.onnx_file import OnnxFile, from_model
from ortpipe.stages.convert.sources.sklearn_estimator import from_estimator
from ortpipe.stages.convert.sources.stored_estimator import record_of
from ortpipe.stages.convert.sources.torch_export import IN_INFERENCE, from_module

VERSION = 19
MIXING = 1e-2  # of the largest prediction: a row predicted alone may differ by this; rounding is less
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


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
    forward = _forward(source, config, data)
    graph = forward.model.graph
    prediction, *heads = (query.value(graph, name) for name in (forward.prediction, *forward.heads))
    if config is not None and config.untie:
        untie(forward.model, prediction, *heads)
    choice = choose(graph, prediction, *heads, declared=forward.untrained_reasons)
    source_weights = {
        f"source/{name}": sealed(query.tensor(value).numpy())  # type: ignore[union-attr]
        for name, value in graph.initializers.items()
        if name in choice.trained or (name in choice.untrained and is_statistic(value))
    }
    model, weights = finish_apart(forward.model)
    facts = _facts(graph, forward.prediction, choice)
    record: dict[str, Any] = {"stage": "convert", "version": VERSION, "source": Path(forward.origin).name}
    record |= {"origins": origins} if (origins := marked(graph)) else {}
    record |= {} if forward.fitted is None else record_of(forward.fitted)
    if heads and config is not None and config.head is not None:
        raise ConvertError(
            "A new head takes the place of the network's end, with all of its outputs.",
            key="head",
            got=f"further outputs {', '.join(forward.heads)}",
            fix="Leave out {key}, or the further outputs.",
        )
    predictions, mixing_notes = dict[str, np.ndarray](), tuple[str, ...]()
    if data is not None:
        rows = compared_rows(data)
        discrepancy, predictions, mixing_notes = _compare(model, weights, facts, forward, rows, config)
        record |= {"data": data.digest()}
        record |= {"discrepancy": discrepancy} if forward.expected is not None else {}
        record |= {"table": table} if (table := _table(rows, facts)) else {}
        record["rows"] = {name: list(a.shape[1:]) for name, a in feed_inputs(model, facts, rows.head(1)).items()}
        single_input = len(facts.inputs) == len(rows.inputs) == 1  # the array fits the input under any name
        columns = dict(zip(facts.inputs, rows.columns.values(), strict=False)) if single_input else rows.columns
        facts = dataclasses.replace(facts, columns=columns, categories=rows.categories)
    objective = forward.objective
    all_columns = {} if data is None else data.train.head(1).kept
    unread = [name for name in all_columns if name not in facts.inputs and len(all_columns) > 1]
    notes = [*forward.notes, *mixing_notes, *([f"does not read {some(unread)} of the data"] if unread else [])]
    unset_weights = [name.removeprefix("source/") for name in source_weights]
    if config is not None and config.head is not None:
        with under("head"):
            task_and_classes = (getattr(config.source, name, None) for name in ("task", "classes"))
            new_head = replace_head(forward.model, prediction, config.head, *task_and_classes)
        choice, predicted_as = choose(graph, new_head.prediction, declared=forward.untrained_reasons), new_head.meaning
        source_weights = {}  # there is no source to compare a new head with
        unset_weights = [name for name in choice.trained if name not in new_head.parameters]
        record["head"] = {"cut": new_head.cut, "layers": str(config.head), "seed": config.head.seed}
        notes.append(new_head.note)
        facts, objective = _facts(forward.model.graph, str(new_head.prediction.name), choice, facts), None
    else:
        record |= {"scaled": True} if forward.scaled else {}
        with under("source"):
            predicted_as = forward.meaning(predictions.get(forward.prediction))
    heads_as = dict[str, Meaning]()
    for name, meaning_of in forward.heads.items():
        with under("source", "heads", name):
            heads_as[name] = meaning_of(predictions.get(name))
    if config is not None and config.init is not None:
        with under("init"):
            init_result = initialize(forward.model, unset_weights, config.init)
        record["init"] = {"file": Path(config.init.path).name, "weights": dict(init_result.weights)}
        notes.append(init_result.note)
    if config is not None and config.quantize is not None:
        if data is None:
            rule, fix = "{key} measures ranges on training rows.", "Give data."
            raise NoRowsError(rule, key="quantize", got="no rows", fix=fix)
        if forward.rounding and getattr(config.source, "quantized", None) == "fake":
            rule, fix = "{key} rounds a model of floats.", "Set {at}source.quantized=float: it is then rounded once."
            raise ConvertError(rule, key="quantize", got="a quantized file, read as it rounds", fix=fix)
        quantized_model = quantize(forward.model, facts, calibration_rows(data.train.sample()))
        record["quantize"] = config.quantize
        facts = dataclasses.replace(facts, constants=(*facts.constants, *quantized_model.scales))
        notes.append(quantized_model.note)
        source_weights = {}  # the quantized model's weights are no longer the source's
    if not record.keys().isdisjoint(("head", "init", "quantize")):
        model, weights = finish_apart(forward.model)
    meaning = dict(vars(predicted_as))
    meaning["class_weight"] = class_weight(predicted_as.task, predicted_as.classes, data)
    meaning["objective"] = objective_facts(objective, dataclasses.replace(facts, classes=predicted_as.classes), data)
    notes += [sentence(choice.trained, choice.untrained, by_default=True), *objective_notes(meaning["objective"])]
    if choice.shared:
        shared = [f"{name} (by {count} nodes)" for name, count in choice.shared.items()]
        notes.append(
            f"several nodes read {some(shared)}, and training moves them together; where an exporter merged equal "
            "values, each node can have its own (convert.untie=true)"
        )
    if (copied := copies(graph, choice.trained)) and not (config is not None and config.untie):
        notes.append(
            f"trains {some(copied)} apart; to train tied weights together, let all nodes read one weight of the file"
        )
    head_notes = [note for head in heads_as.values() for note in head.notes]
    record["notes"] = [*notes, *meaning.pop("notes"), *head_notes]
    dropped = ("notes", "members")
    head_fields = {name: {k: v for k, v in vars(head).items() if k not in dropped} for name, head in heads_as.items()}
    meaning["heads"] = {name: HeadFacts(**facts) for name, facts in head_fields.items()}
    facts = dataclasses.replace(facts, **meaning, lineage=(record,))
    return Artifact(model, facts, source_weights if forward.expected is not None else {}, weights=weights)


def _facts(graph: ir.Graph, prediction: str, choice: Choice, previous: Facts | None = None) -> Facts:
    """Return the facts of a graph; `previous` are the facts whose columns and categories its inputs keep."""
    inputs = tuple(str(v.name) for v in query.data_inputs(graph))
    return Facts(
        task="regression",  # replaced once the prediction's meaning is known
        inputs=inputs,
        outputs=tuple(str(o.name) for o in graph.outputs),
        prediction=prediction,
        parameters=choice.trained,
        constants=tuple(choice.untrained),
        columns={name: columns for name, columns in previous.columns.items() if name in inputs} if previous else {},
        categories=previous.categories if previous else {},
    )


def _forward(source: Any, config: ConvertConfig | None, data: Data | None) -> Forward:
    if source is None:
        if config is None:
            rule = "convert needs a source."
            raise ConvertError(rule, got="None and no config", fix="Give an estimator, a model or a path.")
        with under("source"):
            return config.source(data, config.dtype)
    settings = config.source if config is not None and isinstance(config.source, GraphSettings) else Given()
    if isinstance(source, onnx.ModelProto):
        return from_model(source, settings, data)
    if isinstance(source, str | Path):
        fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(GraphSettings)}
        return OnnxFile(path=str(source), **fields)(data, "")
    if "torch" in sys.modules and isinstance(source, sys.modules["torch"].nn.Module):  # who has one has imported it
        if settings.origin == Given().origin:
            settings = Given(**vars(settings) | {"name": f"torch:{type(source).__name__}"})
        forward = from_module(source, settings, data)
        if IN_INFERENCE in forward.notes:
            advice = "say so with module.train(), and call .eval() on layers that shall stay as they predict"
            warnings.warn(f"{type(source).__name__} {IN_INFERENCE}: {advice}.", stacklevel=3)
        return forward
    return from_estimator(source, data, config.dtype if config else "float32")


def _compare(
    model: onnx.ModelProto, weights: Weights, facts: Facts, forward: Forward, rows: Rows, config: ConvertConfig | None
) -> tuple[float, dict[str, np.ndarray], tuple[str, ...]]:
    """Return the largest difference to the source on these rows, the model's predictions by output, and notes."""
    inputs = feed_inputs(model, facts, rows)
    inference = forward.model.clone()
    session = Session(inference) if to_inference(inference) else Session(model, weights=weights)
    names = [facts.prediction, *forward.heads]
    _check_missing(session, inputs, names, rows)
    predictions = dict(zip(names, session.run(inputs, names), strict=True))
    mixing_notes = _mixing_notes(session, inputs, facts.prediction, predictions[facts.prediction])
    del session, inference  # frees their weights before a session of the source loads the same ones again
    source_inputs = rows.inputs if forward.as_given else inputs
    worst = max(
        _difference(facts.parameters, forward, name, predicted, source_inputs, config)
        for name, predicted in predictions.items()
    )
    return worst, predictions, mixing_notes


def _difference(
    parameters: Sequence[str],
    forward: Forward,
    output: str,
    predicted: np.ndarray,
    inputs: Mapping[str, np.ndarray],
    config: ConvertConfig | None,
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
    source_output = predicted if forward.expected is None else forward.expected(inputs, output)
    expected = np.asarray(source_output, np.float64).reshape(predicted.shape)
    if not np.isfinite(expected).all():
        constants = {name: query.constant(value) for name, value in forward.model.graph.initializers.items()}
        not_finite = [name for name in constants if name in parameters and not np.isfinite(constants[name]).all()]  # type: ignore[arg-type]
        bad_rows = np.sum(~np.isfinite(expected).reshape(len(expected), -1).all(axis=1))
        raise ConvertError(
            "A model must predict finite values.",
            got=f"nan or infinite values of {output!r} in {bad_rows} of {len(expected)} rows"
            + (f"; weights that are not finite: {some(not_finite)}" if not_finite else ""),
            fix="Take a file whose weights are finite, or end the graph in front of them with {at}source.prediction."
            if not_finite
            else "Check the model, and the scale of its inputs.",
        )
    difference = float(np.abs(predicted - expected).max() / max(1.0, np.abs(expected).max()))
    allowed = (config.tolerance if config else None) or max(TOLERANCE.get(predicted.dtype.name, 1e-2), forward.rounding)
    if not difference <= allowed:
        reason = (
            f": {forward.rounding_reason}"
            if forward.rounding_reason
            else ", or use {at}dtype=float64 for an estimator."
        )
        raise ConvertError(
            "The converted model must predict what its source predicts.",
            key="tolerance",
            got=f"{forward.origin}: largest difference {difference:.3g} on {count} rows, tolerance {allowed:g}",
            fix=f"Raise {{key}} if the difference is acceptable{reason}",
        )
    return difference


def _table(rows: Rows, facts: Facts) -> dict[str, Any]:
    """Return, as JSON values, the table columns that the model reads, and an example row of typical values."""
    columns = {name: column for name, column in rows.kept.items() if name in facts.inputs}
    row = {name: _typical(rows.inputs[name], column.kind) for name, column in columns.items()}
    return {"columns": {name: vars(column) for name, column in columns.items()}, "row": row} if columns else {}


def _typical(column: np.ndarray, kind: str) -> float | str | None:
    """Return the median of numbers or dates, or the most frequent word; "text" where no word occurs twice."""
    values = np.sort(column[column == column] if kind == "number" else column[column != ""])
    if not len(values):
        return None
    words, counts = np.unique(values, return_counts=True)
    if kind == "word":
        return str(words[counts.argmax()]) if counts.max() > 1 else "text"
    return values[(len(values) - 1) // 2].item() if kind == "number" else str(values[(len(values) - 1) // 2])


def _check_missing(session: Session, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], rows: Rows) -> None:
    """Reject a column with missing numbers if the model predicts nan for them."""
    first = {name: array[:1] for name, array in inputs.items()}
    single_input = len(inputs) == len(rows.kept) == 1  # the only array belongs to the only input, whatever its name
    for name, table_column in zip(inputs, rows.kept.values(), strict=True) if single_input else rows.kept.items():
        if not table_column.missing or name not in inputs or inputs[name].dtype.kind != "f":
            continue
        predicted = session.run({**first, name: np.full_like(first[name], np.nan)}, outputs)
        if not all(np.isfinite(array).all() for array in predicted):
            raise ConvertError(
                "A model of columns with missing values must have a way to deal with them.",
                got=f"{table_column.missing:,} rows without a value in column {name!r}, for which it predicts nan",
                fix="Put an imputer in front of it, drop such rows, or leave the column out of {@data.source.inputs}.",
            )


def _mixing_notes(
    session: Session, inputs: Mapping[str, np.ndarray], prediction: str, batch: np.ndarray
) -> tuple[str, ...]:
    """Return a note if the prediction of a row depends on the other rows of its batch."""
    if batch.ndim == 0 or len(batch) < 2:
        return ()
    try:
        [alone] = session.run({name: array[-1:] for name, array in inputs.items()}, [prediction])
    except ModelError:
        return ("runs on several rows at a time, and not on one",)
    if alone.shape == batch[-1:].shape and np.abs(alone - batch[-1:]).max() <= MIXING * max(1e-6, np.abs(batch).max()):
        return ()
    return (
        f"the prediction of a row ({prediction!r}) depends on the rows beside it, as if a batch were one sequence: "
        "batches are cut and shuffled without regard to that",
    )
