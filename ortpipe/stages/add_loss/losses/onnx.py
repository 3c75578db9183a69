"""A loss that an .onnx file computes: its output, from the inputs prediction (or logits) and label."""

from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from ortpipe.errors import LossError, under
from ortpipe.graph import query, serial
from ortpipe.graph.builder import Builder
from ortpipe.graph.inline import inline, prepared
from ortpipe.settings import Config
from ortpipe.stages.add_loss.scores import Scores, required


@dataclass(frozen=True)
class OnnxLoss(Config):
    """A graph of prediction and label → terms [N, E…, K] or [N, E…, 1], such as one that PyTorch exported.

    Its inputs are named `prediction` or `logits`, and `label`; of two with other names the first is the prediction. Its
    weights are constants. The gradient of its operators follows as that of the model's.

    Attributes:
        path: the file; its content is part of the stage's key.
    """

    path: str = field(metadata={"identity": False})
    tasks = ("regression", "binary", "multiclass", "multilabel")

    def files(self) -> tuple[Path, ...]:
        """Return what is read, of that what is there."""
        return serial.files(Path(self.path))

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return what the file's graph computes."""
        with under("loss"):
            model = prepared(serial.read(Path(self.path)), op)
        inputs = query.data_inputs(model.graph)
        known = {"label": label, "prediction": scores.prediction}
        if any(value.name == "logits" for value in inputs):
            known["logits"] = required(scores, self.path)
        names = [str(value.name) for value in inputs]
        if not set(names) <= set(known) and len(names) == 2:
            known = dict(zip(names, (scores.prediction, label), strict=True))
        if not set(names) <= set(known) or len(model.graph.outputs) != 1:
            outputs = [str(value.name) for value in model.graph.outputs]
            raise LossError(
                "A loss in an .onnx file has the inputs prediction (or logits) and label, and one output, its terms.",
                got=f"{self.path} with inputs {', '.join(names)} and outputs {', '.join(outputs)}",
                key="loss.path",
                fix="Name them so when it is exported.",
            )
        feeds = {str(v.name): op.cast(known[str(v.name)], v) for v in inputs}
        [terms] = model.graph.outputs
        inline(op, model, feeds, "loss")
        return op.cast(terms, scores.prediction)
