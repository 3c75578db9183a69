"""Opening an .onnx file: its model on its way to a forward model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError
from ortpipe.facts_json import read_metadata
from ortpipe.graph.choice.choice import some
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import Weights
from ortpipe.graph.core.apart_files import attach, take_apart
from ortpipe.graph.core.check import parsed
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.sound import check_sound
from ortpipe.graph.importing.batch import plain_dimensions
from ortpipe.graph.importing.lift import float_constants
from ortpipe.graph.importing.lower import changed_opset, lowered, moved_windows
from ortpipe.stages.convert.dialects.float16 import write_float32
from ortpipe.stages.convert.dialects.standardize import classes_in, without_zip_map
from ortpipe.stages.convert.forward import Meaning
from ortpipe.stages.convert.prediction.heads import Head
from ortpipe.stages.convert.prediction.meaning import OutputSettings, Prediction
from ortpipe.stages.convert.reading.graph_settings import GraphSettings
from ortpipe.stages.convert.rows.batch import Original
from ortpipe.stages.convert.rows.inputs import set_shapes


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
        explicit = _explicit(name, self.config.heads.get(name, settings), written.get(name, {}))
        output, rows = query.value(self.graph, name), None if self.data is None or is_head else self.data.train

        def meaning(values: np.ndarray | None) -> Meaning:
            labels, per_row = (None, ()) if rows is None else (rows.labels, rows.head(1).label.shape[1:])
            sizes, is_labelled = query.sizes(output), self.labelled and not is_head
            return Prediction(name, sizes, is_labelled, head, explicit, values, is_head, labels, per_row).meaning()

        return meaning


def opened(model: onnx.ModelProto, config: GraphSettings, data: Data | None, weights: Weights | None) -> Reading:
    """Return a file's model at an opset that the runtime loads, with the float type and outputs of the config."""
    _check_tensors(model)
    if weights is None:
        check_sound(model)
        model, weights = take_apart(model)
    with_sizes = _with_sizes(plain_dimensions(model), config)  # first: the rewrites of some operators depend on sizes
    low, zip_map_classes = without_zip_map(lowered(with_sizes, weights))
    forward, metadata = parsed(low), read_metadata(model)
    attach(forward, weights)
    changes = _end_at_values(forward, config)
    if config.dtype == "float32" and write_float32(forward):
        changes.append("reads float16 and bfloat16 as float32, inputs and outputs too")
    notes = [*changed_opset(model, low), *moved_windows(with_sizes, low), *changes]
    classes = config.classes or tuple(metadata.get("classes", ())) or zip_map_classes or classes_in(forward.graph)
    constants = frozenset(str(v.name) for v in float_constants(forward.graph))
    return Reading(forward, config, data, None if changes else low, weights, metadata, classes, constants, notes)


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


def _explicit(output: str, configured: OutputSettings, written: Mapping[str, Any]) -> OutputSettings:
    """Return an output's settings from the config; unset ones from the facts that ortpipe wrote into the file."""
    scores = configured.scores
    if scores is None and written.get("task", "regression") != "regression":
        scores = "logits" if written.get("logits") == output else "probabilities"
    axis = configured.class_axis if configured.class_axis is not None else written.get("class_axis")
    classes = configured.classes or tuple(written.get("classes") or ()) or None
    return OutputSettings(configured.task or written.get("task"), scores, classes, axis)
