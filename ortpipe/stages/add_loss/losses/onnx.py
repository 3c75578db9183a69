"""A loss from an .onnx file, which computes it from the inputs prediction (or logits) and label."""

from dataclasses import dataclass, field
from pathlib import Path

from ortpipe.errors import LossError, under
from ortpipe.graph.core import query
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.graph.files import serial
from ortpipe.graph.importing.lower import inline, prepared
from ortpipe.stages.add_loss.margins import required
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class OnnxLoss(LossConfig):
    """A graph (prediction, label) → terms [N, E…, K] or [N, E…, 1], such as one that PyTorch exported.

    Its inputs are named `prediction` or `logits`, and `label`; if two inputs have other names, the first is the
    prediction. Its weights are constants. Its operators are differentiated like the model's.

    Attributes:
        path: the file; its content is part of the stage's key.
    """

    path: str = field(metadata={"identity": False})
    tasks = ("regression", "binary", "multiclass", "multilabel")

    def files(self) -> tuple[Path, ...]:
        """Return the file and its external data, without missing ones."""
        return serial.files(Path(self.path))

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return the terms that the file's graph computes."""
        with under("loss"):
            model = prepared(serial.read(Path(self.path)), op)
        inputs = query.data_inputs(model.graph)
        value_by_name = {"label": label, "prediction": scores.prediction}
        if any(value.name == "logits" for value in inputs):
            value_by_name["logits"] = required(scores, self.path)
        names = [str(value.name) for value in inputs]
        if not set(names) <= set(value_by_name) and len(names) == 2:
            value_by_name = dict(zip(names, (scores.prediction, label), strict=True))
        if not set(names) <= set(value_by_name) or len(model.graph.outputs) != 1:
            outputs = [str(value.name) for value in model.graph.outputs]
            raise LossError(
                "A loss's .onnx file must have the inputs prediction (or logits) and label, and one output, its terms.",
                got=f"{self.path} with inputs {', '.join(names)} and outputs {', '.join(outputs)}",
                key="loss.path",
                fix="Export it with these names.",
            )
        feeds = {str(v.name): op.cast(value_by_name[str(v.name)], v) for v in inputs}
        [terms] = model.graph.outputs
        inline(op, model, feeds, "loss")
        return op.cast(terms, scores.prediction)
