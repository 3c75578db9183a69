"""Distillation: l = α·T²·Σₖ pₖ·(log pₖ − log qₖ) − (1 − α)·log softmax(z)[y], p = softmax(t/T) and q = softmax(z/T)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import onnx_ir as ir
from annotated_types import Ge, Gt, Le, Lt

from ortpipe.errors import LossError, under
from ortpipe.graph.core import query
from ortpipe.graph.core.operators import having
from ortpipe.graph.files import serial
from ortpipe.graph.importing.lower import inline, prepared
from ortpipe.settings import Positive
from ortpipe.stages.add_loss.margins import truth
from ortpipe.stages.add_loss.scores import Builder, LossConfig, Scores

LINEAR = having("product", "sum")  # an output of these operators holds raw scores
SAME = having("view")


@dataclass(frozen=True)
class Distill(LossConfig):
    """Logits z learn from a teacher's t and from the labels y (Hinton, Vinyals and Dean, 2015).

    The teacher reads the model's own inputs, and its weights are constants.

    Attributes:
        path: the teacher's .onnx file; its content is part of the stage's key.
        temperature: T, which makes both distributions softer; the factor T² keeps the scale of the gradient.
        alpha: the weight of the teacher, from 0 to 1; that of the labels is 1 − alpha.
        output: the teacher's output; by default its only float output.
        scores: whether that holds `logits` or `probabilities`; null: derived from the graph, if that is unambiguous.
        eps: clips probabilities.
    """

    path: str = field(metadata={"identity": False})
    temperature: Positive = 2.0
    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    output: str | None = None
    scores: Literal["logits", "probabilities"] | None = None
    eps: Annotated[float, Gt(0), Lt(0.5)] = 1e-6
    tasks = ("multiclass",)

    def files(self) -> tuple[Path, ...]:
        """Return the file and its external data, without missing ones."""
        return serial.files(Path(self.path))

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return the terms [N, E…, K]."""
        z: Any = scores.logits
        if z is None:
            z = op.Log(op.Clip(scores.prediction, self.eps, 1))
        t = op.Reshape(op.cast(self._teacher(op, scores), z), op.Shape(z))  # foreign operators have no shape inference
        log_p, log_q = (op.LogSoftmax(op.Div(x, self.temperature), axis=-1) for x in (t, z))
        soft = op.Mul(op.Exp(log_p), op.Sub(log_p, log_q))
        hard = op.Mul(op.LogSoftmax(z, axis=-1), truth(op, label, scores))
        return op.Sub(op.Mul(soft, self.alpha * self.temperature**2), op.Mul(hard, 1 - self.alpha))

    def _teacher(self, op: Builder, scores: Scores) -> ir.Value:
        """Return the teacher's logits, up to a constant that is the same for all classes."""
        with under("loss"):
            model = prepared(serial.read(Path(self.path)), op)
        output = self._output(model.graph)
        source = output
        while (node := source.producer()) is not None and node.op_type in SAME and node.inputs[0] is not None:
            source = node.inputs[0]
        node = source.producer()
        kind = "" if node is None or node.domain else node.op_type
        meaning = self.scores or ("probabilities" if kind == "Softmax" else "logits" if kind in LINEAR else None)
        if meaning is None:
            raise LossError(
                "The teacher's output must be known to hold logits or probabilities.",
                got=f"{output.name!r}, computed by {kind or 'another operator'}",
                key="loss.scores",
                fix="Set {key}=logits or {key}=probabilities.",
            )
        self._check_classes(output, scores)
        stable = meaning == "probabilities" and kind == "Softmax" and source is output and _over_classes(node, output)
        inline(op, model, self._feeds(op, model.graph, scores), "teacher")
        if stable:
            assert node is not None
            return op.Identity(node.inputs[0])
        return op.Log(op.Clip(output, self.eps, 1)) if meaning == "probabilities" else output

    def _output(self, graph: ir.Graph) -> ir.Value:
        floats = {str(v.name): v for v in graph.outputs if v.dtype in query.FLOATS}
        if self.output in floats or (self.output is None and len(floats) == 1):
            return floats[self.output] if self.output is not None else next(iter(floats.values()))
        rule = "{key} must name a float output of the teacher; it is optional if there is only one."
        fix = f"Its float outputs are {', '.join(floats) or 'none'}."
        raise LossError(rule, key="loss.output", got=self.output, fix=fix)

    def _check_classes(self, output: ir.Value, scores: Scores) -> None:
        size = output.shape[-1] if output.shape is not None and output.shape.rank() else None
        if isinstance(size, int) and size != scores.classes:
            raise LossError(
                "Teacher and model must have the same classes, in the last dimension of their outputs.",
                got=f"{output.name!r} of shape {output.shape}, a model of {scores.classes} classes",
                fix="Choose another output with {@add_loss.loss.output}, or another teacher.",
            )

    def _feeds(self, op: Builder, graph: ir.Graph, scores: Scores) -> dict[str, ir.Value]:
        teacher_inputs, model_inputs = query.data_inputs(graph), {str(v.name): v for v in scores.inputs}
        if len(teacher_inputs) == len(model_inputs) == 1:
            model_inputs = {str(teacher_inputs[0].name): scores.inputs[0]}
        if missing := [str(v.name) for v in teacher_inputs if v.name not in model_inputs]:
            rule = "The teacher must read the model's inputs, by name."
            fix = f"Rename its inputs to the model's: {', '.join(model_inputs)}."
            raise LossError(rule, key="loss.path", got=f"{', '.join(missing)}, which the model lacks", fix=fix)
        return {str(v.name): op.cast(model_inputs[str(v.name)], v) for v in teacher_inputs}


def _over_classes(node: ir.Node | None, output: ir.Value) -> bool:
    axis = node.attributes["axis"].as_int() if node is not None and "axis" in node.attributes else -1
    return axis == -1 or (output.shape is not None and axis == output.shape.rank() - 1)
