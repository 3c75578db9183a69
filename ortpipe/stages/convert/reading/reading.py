"""An .onnx file's model on its way to a forward model: opened at a loadable opset, then changed step by step."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError, ModelError, nearest
from ortpipe.facts_json import read_metadata
from ortpipe.graph.core import query, selection
from ortpipe.graph.core.apart import attach, take_apart
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.inference import infer, parsed
from ortpipe.graph.core.protos import Weights
from ortpipe.graph.core.selection import some
from ortpipe.graph.core.sound import check_sound
from ortpipe.graph.forms.modes import settle
from ortpipe.graph.importing.batch import name_batch, plain_dimensions
from ortpipe.graph.importing.lift import float_constants, lift
from ortpipe.graph.importing.lower import changed_opset, lowered
from ortpipe.graph.importing.sizes import capture_unchanged, take_branches
from ortpipe.stages.convert.dialects import DialectReport, read_dialects
from ortpipe.stages.convert.dialects.standardize import check_trees, classes_in, standardize, without_zip_map
from ortpipe.stages.convert.forward import Meaning
from ortpipe.stages.convert.prediction.heads import Head
from ortpipe.stages.convert.prediction.meaning import OutputSettings, Prediction
from ortpipe.stages.convert.reading.graph_settings import GraphSettings
from ortpipe.stages.convert.rows import inputs
from ortpipe.stages.convert.rows.batch import Original, batch_size, take_rows

PAIR = "pair"


@dataclass
class Reading:
    """A file's model. Each step changes it in place, and adds its notes."""

    model: ir.Model
    config: GraphSettings
    data: Data | None
    low: onnx.ModelProto | None  # the file at an opset that the runtime loads; None: the model differs from it
    weights: Weights  # of `low`
    metadata: Mapping[str, Any]  # the facts that ortpipe wrote into the file
    classes: tuple[int | str, ...] | None  # of the prediction, as far as the file tells
    constants: frozenset[str]  # the float constants of the file
    file_notes: list[str]
    notes: list[str] = field(default_factory=list)
    original: Original = field(init=False)  # the model before rewrites, to compare predictions with
    labelled: bool = False  # whether the file computes labels

    @property
    def graph(self) -> ir.Graph:
        """The model's graph."""
        return self.model.graph

    @property
    def first(self) -> Rows | None:
        """The first row of the data."""
        return None if self.data is None else self.data.train.head(1)

    def meaning_of(self, name: str, head: Head, *, is_head: bool = False) -> Callable[[np.ndarray | None], Meaning]:
        """Return a function from an output of real rows, or None, to its meaning."""
        settings = OutputSettings(self.config.task, self.config.scores, self.classes, self.config.class_axis)
        written = {str(self.metadata.get("prediction")): self.metadata, **self.metadata.get("heads", {})}
        of_file = written.get(name, {})
        explicit = _explicit(name, self.config.heads.get(name, settings), of_file)
        levels = () if of_file.get("link") else tuple(of_file.get("levels", ()))  # with a link, the values are final
        output, rows = query.value(self.graph, name), None if self.data is None or is_head else self.data.train

        def meaning(values: np.ndarray | None) -> Meaning:
            labels, per_row = (None, ()) if rows is None else (rows.labels, rows.head(1).label.shape[1:])
            sizes, is_labelled = query.sizes(output), self.labelled and not is_head
            read = Prediction(name, sizes, is_labelled, head, explicit, values, is_head, labels, per_row).meaning()
            return dataclasses.replace(read, levels=levels)

        return meaning


def opened(model: onnx.ModelProto, config: GraphSettings, data: Data | None, weights: Weights | None) -> Reading:
    """Return a file's model at an opset that the runtime loads, with the float type and outputs of the config."""
    _check_tensors(model)
    check_trees(model)
    _check_unadjusted(read_metadata(model))
    if weights is None:
        check_sound(model)
        model, weights = take_apart(model)
    with_sizes = plain_dimensions(model)
    if config.shape:  # first: the rewrites of some operators depend on sizes
        sized = ir.from_proto(with_sizes)
        inputs.set_shapes(sized.graph, config.shape)
        with_sizes = ir.to_proto(sized)
    moved = list[str]()
    low, zip_map_classes = without_zip_map(lowered(with_sizes, weights, moved))
    forward, metadata = parsed(low), read_metadata(model)
    attach(forward, weights)
    changes = _end_at_values(forward, config)
    if config.pair:
        config = dataclasses.replace(config, prediction=PAIR, task=config.task or "regression")
        changes.append(end_at_pair(forward, config.pair, config.fixed or {}))
    if config.dtype == "float32" and _write_float32(forward):
        changes.append("reads float16 and bfloat16 as float32, inputs and outputs too")
    elsewhere = f"places windows of auto_pad=SAME as ONNX defines them, which onnxruntime does not: {some(moved)}"
    notes = [*changed_opset(model, low), *([elsewhere] if moved else []), *changes]
    classes = config.classes or tuple(metadata.get("classes", ())) or zip_map_classes or classes_in(forward.graph)
    constants = frozenset(str(v.name) for v in float_constants(forward.graph))
    return Reading(forward, config, data, None if changes else low, weights, metadata, classes, constants, notes)


def _check_unadjusted(metadata: Mapping[str, Any]) -> None:
    """Reject a model with a calibration or a threshold, which fit the weights that it has."""
    if adjustments := [f"{name} {metadata[name]}" for name in ("calibration", "threshold") if name in metadata]:
        rule = "A model that was calibrated, or whose threshold was tuned, cannot be trained further."
        fix = "Start from its run instead (start=RUN), or read stages/5_train/model.onnx of that run."
        raise ConvertError(rule, got=", ".join(adjustments), fix=fix)


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


def _write_float32(model: ir.Model) -> bool:
    """Rewrite every float16 and bfloat16 as float32, inputs and outputs too, in place; return whether there was any."""
    changed = False
    for graph in model.graphs():
        outputs = [y for node in graph for y in node.outputs]
        for value in {*graph.inputs, *graph.outputs, *graph.initializers.values(), *outputs}:
            if value.dtype in query.HALVES:
                changed = True
                value.type = ir.TensorType(ir.DataType.FLOAT)
                if value.const_value is not None and value.is_initializer():
                    value.const_value = _as_float32(value.const_value)
        for node, attribute in [(n, a) for n in graph for a in n.attributes.values()]:
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in query.HALVES:
                node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _as_float32(attribute.as_tensor()))
            elif (
                attribute.name in ("to", "dtype")
                and attribute.type == ir.AttributeType.INT
                and attribute.as_int() in query.HALVES
            ):
                node.attributes[attribute.name] = ir.AttrInt64(attribute.name, ir.DataType.FLOAT.value)
    if changed:
        infer(model)
    return changed


def _as_float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)


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


def _explicit(output: str, configured: OutputSettings, written: Mapping[str, Any]) -> OutputSettings:
    """Return an output's settings from the config; unset ones from the facts that ortpipe wrote into the file."""
    scores = configured.scores
    if scores is None and written.get("task", "regression") != "regression":
        scores = "logits" if written.get("logits") == output else "probabilities"
    axis = configured.class_axis if configured.class_axis is not None else written.get("class_axis")
    classes = configured.classes or tuple(written.get("classes") or ()) or None
    return OutputSettings(configured.task or written.get("task"), scores, classes, axis)


def put_rows_first(reading: Reading) -> None:
    """Keep only the inputs that hold rows, these first, as runs confirm; and keep the original."""
    model, config, data, changes = reading.model, reading.config, reading.data, list[str]()
    by_name = {str(v.name): inputs.axis_of(v, None) for v in model.graph.outputs}
    named = by_name if config.batch_axis is None else config.batch_axis
    arrays = None if reading.first is None else reading.first.inputs
    if arrays is not None and (unread := inputs.drop_unread(model.graph, arrays)):
        changes.append(f"leaves out inputs that nothing reads: {some(unread)}")
    inputs.check_axes(model.graph, config.batch_axis)
    constant_inputs = config.fixed or {}
    values = [v for v in query.data_inputs(model.graph) if v.name not in constant_inputs]
    candidates = inputs.axes_of_rows(values, config.batch_axis, arrays or {})
    trials = list[ir.Model]()
    for axes in candidates:
        trials.append(trial := model.clone() if len(candidates) > 1 else model)
        for value in [v for v in query.data_inputs(trial.graph) if v.name in axes]:
            inputs.turn(trial.graph, value, axes[str(value.name)])
        inputs.fix(trial.graph, constant_inputs)
        inputs.check_data_inputs(trial.graph, arrays)
        is_only = data is None or len(candidates) == 1
        if is_only or Original.of(trial, data).has_rows_first(inputs.fixed_batch(trial.graph)):
            break
    else:
        if len(candidates) > inputs.MOST_AXES:
            rule, fix = "The axis of rows of every input must be known.", "Set {key} to it, for all inputs or by name."
            actual = f"{len(candidates)} combinations of axes tried, none with independent rows"
            raise ConvertError(rule, key="batch_axis", got=actual, fix=fix)
        axes, trial = candidates[0], trials[0]
    changes += inputs.moved(axes)
    is_as_read = reading.low is not None and not changes and not constant_inputs
    reading.model, reading.notes = trial, [*reading.notes, *changes]
    reading.original = Original.of(trial, data, named, (reading.low, reading.weights) if is_as_read else None)


def rewrite_dialects(reading: Reading) -> DialectReport:
    """Rewrite the operators of onnxruntime's own domain, and take the number of rows at a time from runs."""
    original, dialects = reading.original, read_dialects(reading.model, reading.config.quantized)
    original.fused = dialects.rounding == 0
    if dialects.notes and reading.data is not None:
        try:
            original.session  # noqa: B018
        except ModelError as error:
            original = reading.original = Original.of(reading.model, reading.data, original.named)
            reading.file_notes.append(
                "predictions are not compared with the file's, which this onnxruntime cannot run, but with those of "
                f"its rewritten operators ({str(error.got)[:200]})"
            )
    original.size = batch_size(reading.graph, original, reading.config.batch)
    return dialects


def rewrite_ml(reading: Reading) -> float:
    """Rewrite the operators of ai.onnx.ml; return their tolerance."""
    if iterated := standardize(reading.graph):
        reading.file_notes.append(
            "probabilities follow Platt's formula, which onnxruntime approximates within 0.005; labels follow the votes"
        )
    return iterated


def fix_sizes(reading: Reading) -> None:
    """Infer all sizes, and decide branches by them; fix sizes at those of the rows where gradients need them."""
    graph, first = reading.graph, reading.first
    name_batch(reading.model)
    capture_unchanged(graph)
    take_branches(reading.model)
    if first is not None and inputs.needs_sizes(graph) and (free := inputs.sizes_of_rows(graph, first.inputs)):
        inputs.set_shapes(graph, free)
        name_batch(reading.model)
        take_branches(reading.model)
        sizes = inputs.listed([v for v in graph.inputs if v.name in free])
        reading.notes.append(
            f"fixes sizes at those of the rows, which the gradients of some operators need: {sizes} "
            "(convert.source.shape)"
        )


def lift_weights(reading: Reading) -> None:
    """Turn the file's constants that are weights into initializers."""
    graph, patterns = reading.graph, reading.config.lift
    constants = [v for v in float_constants(graph) if v.name in reading.constants]
    if patterns is False or (patterns is True and (reading.metadata or not constants)):
        return
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS]
    named = None if patterns is True else partial(selection.select, patterns, error=ConvertError, key="lift")
    if names := lift(graph, constants, floats, named):
        reading.notes.append(f"lifts {len(names)} weights from constants: {some(names)}")


def free_rows(reading: Reading, outputs: Sequence[str]) -> dict[str, Head]:
    """Let the model take any number of rows; return the heads of these outputs."""
    reading.model, heads, notes = take_rows(reading.model, reading.original, reading.config.batch, outputs)
    reading.notes += notes
    if frozen := settle(reading.graph):
        reading.notes.append(
            f"normalizes by the running statistics, which stay as they are, in {some(frozen)}: the file asks for "
            "those of each batch, but these layers run inside a loop or a branch"
        )
    return heads


# Pairs of embeddings as one output [N, 2·K]: of two outputs, or of one that the model computes for both inputs


def end_at_pair(model: ir.Model, names: Sequence[str], fixed: Collection[str]) -> str:
    """End a model at the embeddings [N, K] of these names, in place; return a note.

    Of one name, the pair is that of both inputs of a row, [N, 2, …], but for `fixed` ones, which hold no rows.
    """
    graph = model.graph
    embeddings = [_embedding(graph, name) for name in names]
    width, *others = [query.width(value) for value in embeddings]
    if len(names) > 2 or width is None or others not in ([], [width]):
        shapes = ", ".join(f"{value.name} {value.shape}" for value in embeddings)
        rule = "{key} must name one or two embeddings [N, K] of the same width K."
        raise ConvertError(rule, key="pair", got=shapes, fix="Name values in front of or behind a projection.")
    first, second = embeddings[0], embeddings[-1]
    op = Builder(graph, PAIR)
    if others:
        pair = op.Concat(first, second, axis=-1)
    else:
        for value in [value for value in query.data_inputs(graph) if value.name not in fixed]:
            _take_two(graph, value)
        pair = op.Reshape(first, [-1, 2 * width])
    pair.dtype = first.dtype
    op.rename(pair, PAIR)
    graph.outputs.append(pair)
    keep_outputs(model, [str(pair.name)])
    infer(model)
    each = "of both inputs of each row" if not others else "side by side"
    return f"ends at {pair.name!r}: {' and '.join(map(repr, names))}, {each}"


def _embedding(graph: ir.Graph, name: str) -> ir.Value:
    value, outputs = query.values(graph).get(name), [str(output.name) for output in graph.outputs]
    if value is None or value.producer() is None:
        rule, fix = "{key} must name outputs, or values inside of the graph.", nearest(name, outputs)
        raise ConvertError(rule, key="pair", got=repr(name), fix=fix)
    if value.dtype in query.FLOATS and value.shape is not None and value.shape.rank() == 2:
        return value
    others = [str(o.name) for o in graph.outputs if o.shape is not None and o.shape.rank() == 2]
    fix = f"Choose {' or '.join(others)}." if others else "Add the pooling over tokens to the file, such as their mean."
    got = f"{name!r} of shape {value.shape}"
    raise ConvertError("{key} must name embeddings, one vector of floats per row.", key="pair", got=got, fix=fix)


def _take_two(graph: ir.Graph, value: ir.Value) -> None:
    """Let an input take two of its rows in each row, [N, 2, …]."""
    uses, first = list(value.uses()), next(iter(graph), None)
    op = Builder(graph, f"{PAIR}/{value.name}", before=first)
    value.shape = ir.Shape(["N", 2, *list(value.shape or ())[1:]])
    each = op.Reshape(value, op.Concat([-1], op.Shape(value, start=2), axis=0))
    each.dtype = value.dtype
    for node, place in uses:
        node.replace_input_with(place, each)
