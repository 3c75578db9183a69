"""An .onnx file (external data included), from any exporter."""

import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import read_metadata
from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError, ModelError, nearest
from ortpipe.graph.choice.parameters import some
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import Weights, attach, take_apart
from ortpipe.graph.core.check import parsed
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.sound import check_sound
from ortpipe.graph.files import serial
from ortpipe.graph.forms.modes import settle
from ortpipe.graph.importing.batch import name_batch, plain_dimensions
from ortpipe.graph.importing.branches import capture_unchanged, take_branches
from ortpipe.graph.importing.lift import float_constants, lift
from ortpipe.graph.importing.lower import changed_opset, lowered, moved_windows
from ortpipe.stages.convert.batch import Original, batch_size, compared_rows, take_rows
from ortpipe.stages.convert.dialects import read_dialects
from ortpipe.stages.convert.dialects.float16 import write_float32
from ortpipe.stages.convert.heads import Head
from ortpipe.stages.convert.inputs import (
    axes_of_rows,
    axis_of,
    check_axes,
    check_data_inputs,
    drop_unread,
    fix,
    fixed_batch,
    listed,
    moved,
    needs_sizes,
    set_shapes,
    sizes_of_rows,
    turn,
)
from ortpipe.stages.convert.meaning import Meaning, OutputSettings, Prediction
from ortpipe.stages.convert.sources import Forward, snapshot
from ortpipe.stages.convert.sources.graph_settings import GraphSettings
from ortpipe.stages.convert.standardize import classes_in, standardize, without_zip_map
from ortpipe.stages.convert.which_output import choose_output, label_outputs


@dataclass(frozen=True)
class OnnxFile(GraphSettings):
    """A forward model on disk.

    Attributes:
        path: the file, or a folder with model.onnx and config.json, whose labels are the classes.
    """

    path: str = field(metadata={"identity": False})  # `files` are told apart by content

    @property
    def origin(self) -> str:
        """The file."""
        return self.path

    def files(self) -> tuple[Path, ...]:
        """Return the existing files that are read: the model and its external data."""
        path = Path(self.path)
        if not path.is_dir():
            return serial.files(path)
        description = path / snapshot.DESCRIPTION
        return (*serial.files(snapshot.model_file(path)), *([description] if description.is_file() else []))

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Read the file; `dtype` is ignored, the model keeps its own types."""
        path = Path(self.path)
        if not path.is_dir():
            model, weights = serial.read_apart(path)
            return from_model(model, self, data, weights)
        described, note = snapshot.meaning(path)
        unset = {name: value for name, value in described.items() if getattr(self, name) is None}
        settings = dataclasses.replace(self, path=str(snapshot.model_file(path)), **unset)
        model, weights = serial.read_apart(Path(settings.path))
        forward = from_model(model, settings, data, weights)
        return dataclasses.replace(forward, notes=(*([note] if note else []), *forward.notes))


def from_model(
    model: onnx.ModelProto, config: GraphSettings, data: Data | None = None, weights: Weights | None = None
) -> Forward:
    """Return a model's forward form: loadable opset, ai.onnx.ml rewritten, any number of rows on the first axis.

    `weights` are the values of the initializers that are stored outside of `model`.
    """
    _check_tensors(model)
    if weights is None:
        check_sound(model)
        model, weights = take_apart(model)
    with_sizes = _with_sizes(plain_dimensions(model), config)  # first: the rewrites of some operators depend on sizes
    low = lowered(with_sizes, weights)
    low, zip_map_classes = without_zip_map(low)
    metadata = read_metadata(model)
    forward = parsed(low)
    attach(forward, weights)
    file_notes = [*changed_opset(model, low), *moved_windows(with_sizes, low), *_end_at_values(forward, config)]
    if config.dtype == "float32" and write_float32(forward):
        file_notes.append("reads float16 and bfloat16 as float32, inputs and outputs too")
    classes = config.classes or tuple(metadata.get("classes", ())) or zip_map_classes or classes_in(forward.graph)
    constant_names = {v.name for v in float_constants(forward.graph)}
    by_name = {str(v.name): axis_of(v, None) for v in forward.graph.outputs}
    named = by_name if config.batch_axis is None else config.batch_axis
    forward, notes = _rows_first(forward, config, data)
    graph, original = forward.graph, Original.of(forward, data, named)
    dialects = read_dialects(forward, config.quantized)
    original.fused = dialects.rounding == 0
    if dialects.notes and data is not None:
        try:
            original.session  # noqa: B018
        except ModelError as error:
            original = Original.of(forward, data, named)
            file_notes.append(
                "predictions are not compared with the file's, which this onnxruntime cannot run, but with those of "
                f"its rewritten operators ({str(error.got)[:200]})"
            )
    original.size = batch_size(graph, original, config.batch)
    iterated = standardize(graph)
    if iterated:
        file_notes.append(
            "probabilities follow Platt's formula, which onnxruntime approximates within 0.005; labels follow the votes"
        )
    name_batch(forward)
    capture_unchanged(graph)
    take_branches(forward)
    first = None if data is None else data.train.head(1)
    if first is not None and needs_sizes(graph) and (free := sizes_of_rows(graph, first.inputs)):
        set_shapes(graph, free)
        name_batch(forward)
        take_branches(forward)
        sizes = listed([v for v in graph.inputs if v.name in free])
        notes.append(
            f"fixes sizes at those of the rows, which the gradients of some operators need: {sizes} "
            "(convert.source.shape)"
        )
    constants = [v for v in float_constants(graph) if v.name in constant_names]
    weight_names = _lift(graph, constants, config, written=bool(metadata))
    if weight_names:
        notes.append(f"lifts {len(weight_names)} weights from constants: {some(weight_names)}")
    chosen = config.prediction if config.prediction is not None else metadata.get("prediction")
    output = _prediction(graph, chosen)
    labelled = bool(label_outputs(graph))
    written = {str(metadata.get("prediction")): metadata, **metadata.get("heads", {})}  # by ortpipe, into the file

    def meaning(rows: np.ndarray | None, output: ir.Value, head: Head, *, is_head: bool = False) -> Meaning:
        """Return what an output means."""
        name, settings = str(output.name), OutputSettings(config.task, config.scores, classes, config.class_axis)
        explicit = _output_settings(name, config.heads.get(name, settings), written.get(name, {}))
        labels = data.train.labels if data is not None and not is_head else None
        per_row = first.label.shape[1:] if first is not None and not is_head else ()
        is_labelled, sizes = labelled and not is_head, query.sizes(output)
        return Prediction(name, sizes, is_labelled, head, explicit, rows, is_head, labels, per_row).meaning()

    floats = [o for o in graph.outputs if o.dtype in query.FLOATS and o.name not in config.heads]
    candidates = [o for o in floats if query.float_initializers(graph, o)]
    if chosen is None and data is not None and candidates:
        output, own_classes = choose_output(forward, original, candidates, compared_rows(data), meaning)
        indices = tuple(range(len(own_classes or ())))  # a file may compute these beside the names of classes
        is_told = own_classes not in (None, classes) and (own_classes != indices or {*(classes or ())} == {*indices})
        if own_classes is not None and is_told and config.classes is None:
            classes = own_classes
            listed_labels = some([str(label) for label in own_classes])
            notes.append(f"the columns of {output.name!r} are {listed_labels}, by the labels that the file computes")
    if not query.float_initializers(graph, output):
        raise ConvertError(
            "A prediction must depend on at least one float initializer, or on a constant that is a weight.",
            got=f"{config.origin}: none for output {output.name!r}",
            fix="Choose another output with {at}prediction, or name constants that are weights in {at}lift.",
        )
    name = str(output.name)
    outputs = [name, *_heads(graph, config, name)]
    forward, heads, row_notes = take_rows(forward, original, config.batch, outputs)
    graph = forward.graph
    notes += row_notes
    if frozen := settle(graph):
        notes.append(
            f"normalizes by the running statistics, which stay as they are, in {some(frozen)}: the file asks for "
            "those of each batch, but these layers run inside a loop or a branch"
        )
    vars(original).pop("session", None)  # frees its weights until predictions are compared
    meanings = {
        output: functools.partial(meaning, output=query.value(graph, output), head=head, is_head=output != name)
        for output, head in heads.items()
    }
    return Forward(
        forward,
        prediction=name,
        meaning=meanings.pop(name),
        expected=original.run,
        heads=meanings,
        origin=config.origin,
        notes=(*file_notes, *dialects.notes, *notes),
        rounding=max(dialects.rounding, iterated),
        rounding_reason=dialects.reason,
    )


def _check_tensors(model: onnx.ModelProto) -> None:
    """Reject inputs that are one dictionary per row, as skl2onnx writes them for a DictVectorizer."""
    map_inputs = [value.name for value in model.graph.input if value.type.HasField("map_type")]
    if map_inputs:
        readers = [node.op_type for node in model.graph.node if not {*node.input}.isdisjoint(map_inputs)]
        raise ConvertError(
            "An input must be a tensor of rows.",
            got=f"{', '.join(map_inputs)}: a dictionary, read by {', '.join(readers)}",
            fix="Export the model without its DictVectorizer, and give its features as columns of a table.",
        )


def _with_sizes(model: onnx.ModelProto, config: GraphSettings) -> onnx.ModelProto:
    if not config.shape:
        return model
    with_sizes = ir.from_proto(model)
    set_shapes(with_sizes.graph, config.shape)
    return ir.to_proto(with_sizes)


def _end_at_values(model: ir.Model, config: GraphSettings) -> list[str]:
    """Make the prediction and heads that are inner values of the graph its outputs, in place; return a note."""
    outputs = [str(o.name) for o in model.graph.outputs]
    inner = {name for name, value in query.values(model.graph).items() if value.producer() is not None} - {*outputs}
    cut, heads = config.prediction, [head for head in config.heads if head in inner]
    if cut in inner:
        keep_outputs(model, [str(cut), *(o for o in outputs if o in config.heads), *heads])
        return [f"ends at {cut!r}: the outputs of the file are left out{' but for heads' if config.heads else ''}"]
    if not heads:
        return []
    keep_outputs(model, [*outputs, *heads])
    return [f"gives values inside of the graph as outputs too: {some(heads)}"]


def _output_settings(output: str, configured: OutputSettings, written: Mapping[str, Any]) -> OutputSettings:
    """Return an output's settings from the config; unset ones from the facts that ortpipe wrote into the file."""
    scores = configured.scores
    if scores is None and written.get("task", "regression") != "regression":
        scores = "logits" if written.get("logits") == output else "probabilities"
    axis = configured.class_axis if configured.class_axis is not None else written.get("class_axis")
    classes = configured.classes or tuple(written.get("classes") or ()) or None
    return OutputSettings(configured.task or written.get("task"), scores, classes, axis)


def _heads(graph: ir.Graph, config: GraphSettings, prediction: str) -> list[str]:
    """Return the names of the heads; reject names that are no float outputs, or the prediction."""
    outputs = {str(o.name): o for o in graph.outputs}
    for name in config.heads:
        output = outputs.get(name)
        candidates = [n for n, o in outputs.items() if n != prediction and o.dtype in query.FLOATS]
        if name not in candidates:
            actual = "the prediction itself" if name == prediction else "no output" if output is None else output.dtype
            rule, fix = "{key} must name float outputs beside the prediction.", nearest(name, candidates)
            raise ConvertError(rule, key="heads", got=f"{name!r}, {actual}", fix=fix)
        if not query.float_initializers(graph, outputs[name]):
            rule, fix = "A head must depend on at least one float initializer.", "Leave it out of {key}."
            raise ConvertError(rule, key="heads", got=f"none for output {name!r}", fix=fix)
    return list(config.heads)


def _rows_first(model: ir.Model, config: GraphSettings, data: Data | None) -> tuple[ir.Model, list[str]]:
    """Return the model with only the inputs that hold rows, these first, as runs confirm; and notes."""
    graph, arrays, notes = model.graph, None if data is None else data.train.head(1).inputs, list[str]()
    if arrays is not None and (unread := drop_unread(graph, arrays)):
        notes.append(f"leaves out inputs that nothing reads: {some(unread)}")
    check_axes(graph, config.batch_axis)
    constant_inputs = config.fixed or {}
    inputs = [v for v in query.data_inputs(graph) if v.name not in constant_inputs]
    candidates, trials = axes_of_rows(inputs, config.batch_axis, arrays or {}), list[ir.Model]()
    for axes in candidates:
        trials.append(trial := model.clone() if len(candidates) > 1 else model)
        for value in [v for v in query.data_inputs(trial.graph) if v.name in axes]:
            turn(trial.graph, value, axes[str(value.name)])
        fix(trial.graph, constant_inputs)
        check_data_inputs(trial.graph, arrays)
        if data is None or len(candidates) == 1 or Original.of(trial, data).has_rows_first(fixed_batch(trial.graph)):
            break
    else:
        axes, trial = candidates[0], trials[0]
    return trial, [*notes, *moved(axes)]


def _lift(graph: ir.Graph, constants: Sequence[ir.Value], config: GraphSettings, *, written: bool) -> list[str]:
    """Turn constants that are weights into initializers; return their names."""
    if config.lift is False or (config.lift is True and (written or not constants)):
        return []
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS]
    if config.lift is True:
        return lift(graph, constants, floats)
    patterns = config.lift
    return lift(graph, constants, floats, lambda names: query.select(patterns, names, ConvertError, "lift"))


def _prediction(graph: ir.Graph, choice: str | int | None) -> ir.Value:
    names = [str(o.name) for o in graph.outputs]
    if isinstance(choice, int):
        if not 0 <= choice < len(names):
            rule, fix = "{key} must be an output's index.", f"The model has {len(names)}: {', '.join(names)}."
            raise ConvertError(rule, key="prediction", got=choice, fix=fix)
        choice = names[choice]
    if choice is not None and choice not in names:
        rule, values = "{key} must be an output, or a value inside of the graph.", query.values(graph).items()
        close = difflib.get_close_matches(choice, [name for name, value in values if value.producer() is not None])
        raise ConvertError(rule, key="prediction", got=repr(choice), fix=nearest(choice, {*names, *close}))
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS and choice in (None, o.name)]
    if not floats:
        candidates = [o for o in graph.outputs if choice in (None, o.name)]
        ancestors = query.ancestors(candidates)
        inner = [v for node in graph for v in node.outputs if v in ancestors and v.dtype in query.FLOATS]
        scores = next((f": {v.name!r}." for v in reversed(inner) if query.float_initializers(graph, v)), ".")
        raise ConvertError(
            "A model needs a float output to train.",
            got=f"outputs {', '.join(str(o.name) for o in candidates)}",
            key="prediction",
            fix="Name a float value inside of the graph with {key}, such as the scores in front of the labels" + scores,
        )
    return next((o for o in floats if query.float_initializers(graph, o)), floats[0])
