"""Write calibration and a decision threshold into a model's graph, in standard ONNX operators."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Artifact
from ortpipe.facts import Facts
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder

LABELS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.STRING)  # the types of an output of classes


def with_temperature(artifact: Artifact, temperature: float, width: int, columns: int | None) -> Artifact:
    """Return a model with p = softmax(z / T), or σ(z / T): `width` is that of its prediction.

    z are the model's logits in `columns` or, if that is None, the logarithms of its probabilities.
    """
    facts, scale = artifact.facts, 1 / temperature

    def write(op: Builder, p: ir.Value) -> ir.Value:
        nonlocal facts
        if facts.logits == facts.prediction:
            return op.Mul(p, scale)
        if columns is None:
            return _tempered(op, p, scale, width)
        z = op.Mul(query.value(op.graph, str(facts.logits)), scale)
        facts = dataclasses.replace(facts, logits=str(z.name))
        return _probabilities(op, z, facts, columns, width)

    model = _with_output(artifact, facts.prediction, "calibration", write)
    return Artifact(model, dataclasses.replace(facts, calibration="temperature"), artifact.tensors)


def _tempered(op: Builder, p: ir.Value, scale: float, width: int) -> ir.Value:
    assert p.dtype is not None
    least = float(np.finfo(p.dtype.numpy()).eps)
    if width > 1:
        return op.Softmax(op.Mul(op.Log(op.Clip(p, least, 1.0)), scale), axis=-1)
    p = op.Clip(p, least, 1 - least)
    return op.Sigmoid(op.Mul(op.Sub(op.Log(p), op.Log(op.Sub(1.0, p))), scale))


def _probabilities(op: Builder, z: ir.Value, facts: Facts, columns: int, width: int) -> ir.Value:
    """Return the probabilities of logits in `columns`; one column of either is of the second class."""
    z = op.Mul(z, 0.5) if facts.opposite else z
    if columns > 1:
        return op.Softmax(z, axis=-1)
    p = op.Sigmoid(z)
    return p if width == 1 else op.Concat(op.Sub(1.0, p), p, axis=1)


def with_isotonic(artifact: Artifact, x: np.ndarray, y: np.ndarray, width: int) -> Artifact:
    """Return a model whose probability p of the second class becomes y₀ + Σₖ (yₖ₊₁ − yₖ) · tₖ(p).

    tₖ goes from 0 at xₖ to 1 at xₖ₊₁, so that the sum is np.interp(p, x, y).
    """
    facts = artifact.facts
    raw = facts.logits == facts.prediction

    def write(op: Builder, old: ir.Value) -> ir.Value:
        p = second_class(op, old, facts, width)
        assert p.dtype is not None
        first, inverse, rise = (
            op.const(a.astype(p.dtype.numpy())) for a in (x[None, :-1], 1 / np.diff(x)[None], np.diff(y)[:, None])
        )
        t = op.Clip(op.Mul(op.Sub(p, first), inverse), 0.0, 1.0)
        q = op.Clip(op.Add(op.MatMul(t, rise), float(y[0])), 0.0, 1.0)
        return op.cast(q if width == 1 else op.Concat(op.Sub(1.0, q), q, axis=1), old)

    model = _with_output(artifact, facts.prediction, "calibration", write)
    facts = dataclasses.replace(facts, calibration="isotonic")
    if raw:  # the output is a probability now
        facts = dataclasses.replace(facts, logits=None, opposite=None)
    return Artifact(model, facts, artifact.tensors)


def second_class(op: Builder, prediction: ir.Value, facts: Facts, width: int) -> ir.Value:
    """Return the probability of the second class [N, 1], in float32 or float64."""
    if facts.logits == facts.prediction:
        prediction = _probabilities(op, prediction, facts, width, width)
    p = prediction if width == 1 else op.Gather(prediction, op.const(np.array([1])), axis=1)
    return op.Cast(p, to=ir.DataType.FLOAT) if p.dtype in query.HALVES else p


def with_labels(artifact: Artifact, classes_by_output: Mapping[str, tuple[Any, ...]], width: int) -> Artifact:
    """Return a model whose label outputs are the second class from the threshold on, by default above 0.5."""
    facts = artifact.facts
    for name, classes in classes_by_output.items():

        def write(op: Builder, old: ir.Value, classes: tuple[Any, ...] = classes) -> ir.Value:
            assert old.dtype is not None
            p = second_class(op, query.value(op.graph, facts.prediction), facts, width)
            is_second = op.Greater(p, 0.5) if facts.threshold is None else op.GreaterOrEqual(p, facts.threshold)
            kind = np.str_ if old.dtype == ir.DataType.STRING else old.dtype.numpy()
            first, second = (op.const(np.array(value, kind)) for value in classes)
            label = op.Where(is_second, second, first)
            return label if len(query.sizes(old) or ()) == 2 else op.Squeeze(label, op.const(np.array([1])))

        artifact = Artifact(_with_output(artifact, name, "threshold", write), facts, artifact.tensors)
    return artifact


def _with_output(
    artifact: Artifact, name: str, prefix: str, write: Callable[[Builder, ir.Value], ir.Value]
) -> ir.Model:
    """Return the model with an output replaced by what `write` makes of it, under the same name."""
    model = artifact.ir_model()
    op = Builder(model.graph, prefix)
    old = query.value(model.graph, name)
    new = write(op, old)
    place = model.graph.outputs.index(old)
    op.rename(old, f"{name}/before")
    new.name, new.type, new.shape = name, old.type, old.shape
    model.graph.outputs[place] = new
    return model
