"""An .onnx file (external data included), from any exporter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Task, read_metadata
from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError, nearest
from ortpipe.graph import query, serial
from ortpipe.graph.batch import name_batch
from ortpipe.graph.check import finish, parsed
from ortpipe.graph.lift import float_constants, lift
from ortpipe.graph.lower import lowered
from ortpipe.graph.modes import to_inference
from ortpipe.graph.parameters import some
from ortpipe.runtime.session import Session
from ortpipe.settings import Config
from ortpipe.stages.convert.dialects import write_standard
from ortpipe.stages.convert.heads import read_head
from ortpipe.stages.convert.meaning import Prediction, Told
from ortpipe.stages.convert.patterns import sizes_of
from ortpipe.stages.convert.sources import Forward
from ortpipe.stages.convert.standardize import classes_in, standardize, without_zip_map

LABELS = ("INT64", "INT32", "STRING")  # types of an output that makes a model a classifier


@dataclass(frozen=True)
class OnnxFile(Config):
    """A forward model on disk.

    Attributes:
        path: the file.
        prediction: the float output to train, by name or index; by default the first one that depends on weights.
        task: `regression`, `binary`, `multiclass` or `multilabel`; by default read off the graph
            and the values of real rows (a Softmax or Sigmoid at its end makes a classifier).
        scores: what a classifier's prediction holds, `probabilities` or raw scores (`logits`); by default read off
            the graph and the values of real rows. Of two columns, the logit is the second less the first,
            and of opposite ones, [−s, s], the second.
        classes: the label of each class index; by default what the model says, else 0, 1, 2 …
        class_axis: the prediction's axis of classes or columns, such as 1 of images [N, K, H, W], or `none`: each
            number stands for itself; by default that of its Softmax, else the last one, or 1 of images. Its other axes
            are the elements of a row, each with a label and a loss of its own: steps, pixels.
        lift: whether weights in Constant nodes, and those of branches, become initializers, which training can move:
            those that it would move by default if they were initializers, or names and globs of constants. In a file
            that ortpipe wrote, constants are what must not be trained, and stay.
    """

    path: str = field(metadata={"identity": False})  # `files` are told apart by content
    prediction: str | int | None = None
    task: Task | None = None
    scores: Literal["logits", "probabilities"] | None = None
    classes: tuple[int | str, ...] | None = None
    class_axis: int | Literal["none"] | None = None
    lift: bool | tuple[str, ...] = True

    def files(self) -> tuple[Path, ...]:
        """Return what is read, of that what is there: the file and its external data."""
        return serial.files(Path(self.path))

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Read the file; `data` and `dtype` play no part, the model keeps its own types."""
        return from_model(serial.read(Path(self.path)), self)


def from_model(model: onnx.ModelProto, config: OnnxFile) -> Forward:
    """Return a model's forward form: loadable opset, ai.onnx.ml rewritten, batch dimension named N."""
    original, zipped = without_zip_map(lowered(model))
    metadata = read_metadata(model)
    forward = parsed(original)
    graph = forward.graph
    constants = float_constants(graph)
    classes = config.classes or tuple(metadata.get("classes", ())) or zipped or classes_in(graph)
    for value in query.data_inputs(graph):
        if value.shape is not None and value.shape.rank() and isinstance(value.shape[0], int):
            raise ConvertError(
                "The first dimension of every input is the batch and must be dynamic.",
                got=f"input {value.name!r} of shape {list(value.shape)}",
                fix="Export the model with a dynamic batch dimension.",
            )
    write_standard(forward)
    standardize(graph)
    forward = name_batch(forward)
    graph = forward.graph
    lifted = _lift(graph, constants, config, written=bool(metadata))
    output = _prediction(graph, config.prediction if config.prediction is not None else metadata.get("prediction"))
    head, output = read_head(graph, output)
    if not query.float_initializers(graph, output):
        raise ConvertError(
            "A prediction must depend on at least one float initializer, or on a constant that is a weight.",
            got=f"{config.path}: none for output {output.name!r}",
            fix="Choose another output with {at}prediction, or name constants that are weights in {at}lift.",
        )
    name = str(output.name)
    labelled = any(o.dtype is not None and o.dtype.name in LABELS for o in graph.outputs)
    written = metadata if metadata.get("prediction") == name else {}  # by ortpipe, in the file
    scores = config.scores
    if scores is None and written.get("task", "regression") != "regression":
        scores = "logits" if written.get("logits") == name else "probabilities"
    axis = config.class_axis if config.class_axis is not None else written.get("class_axis")
    told = Told(config.task or written.get("task"), scores, classes, axis)

    def expected(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        inference = parsed(original)
        session = Session(finish(inference) if to_inference(inference) else original)
        return session.run(inputs, [name])[0]

    return Forward(
        forward,
        prediction=name,
        meaning=lambda rows: Prediction(name, sizes_of(output), labelled, head, told, rows).meaning(),
        expected=expected,
        origin=config.path,
        notes=(f"lifts {len(lifted)} weights from constants: {some(lifted)}",) if lifted else (),
    )


def _lift(graph: ir.Graph, constants: Sequence[ir.Value], config: OnnxFile, *, written: bool) -> list[str]:
    """Make initializers of the constants that are weights; return their names."""
    if config.lift is False or not constants or (config.lift is True and written):
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
        raise ConvertError("{key} must be an output.", key="prediction", got=repr(choice), fix=nearest(choice, names))
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS and choice in (None, o.name)]
    if not floats:
        raise ConvertError(
            "A model needs a float output to train.",
            got=f"outputs {', '.join(names) if choice is None else choice}",
            key="prediction",
            fix="Export its scores, or choose them with {key}.",
        )
    return next((o for o in floats if query.float_initializers(graph, o)), floats[0])
