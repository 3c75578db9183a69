"""The outputs of a model that ortpipe writes, with the names that skl2onnx gives them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder

Classes = tuple[int | str, ...]

ML = "ai.onnx.ml"
ML_VERSION = 3  # supported by onnxruntime 1.19.2 and later


def with_width(value: ir.Value, width: int) -> ir.Value:
    """Set a value's shape to [N, width], which later operators and the label depend on."""
    value.shape = ir.Shape(["N", width])
    return value


def two_columns(op: Builder, p: ir.Value) -> ir.Value:
    """[1 − p, p]: the probabilities of both classes."""
    return op.Concat(op.Sub(1, p), p, axis=-1)


def plain_classes(classes: Any) -> Classes:
    """Return class labels as int or str."""
    labels = np.asarray(classes).tolist()
    for label in labels:
        if not isinstance(label, str) and not float(label).is_integer():
            rule = "Class labels must be strings or integers."
            raise ConvertError(rule, got=repr(label), fix="Encode the labels first.")
    return tuple(label if isinstance(label, str) else int(label) for label in labels)


def write_class_outputs(
    op: Builder, prediction: ir.Value, logits: ir.Value | None, classes: Classes | None, ranking: ir.Value | None = None
) -> None:
    """Name a classifier's values, and make its label and prediction the graph's outputs.

    The label is the class of the largest entry of `ranking`, by default of the prediction.
    """
    is_scores = prediction is logits
    if logits is not None:
        op.rename(logits, "scores" if is_scores else "logits")
    if not is_scores:
        op.rename(prediction, "probabilities")
    label = _label_of(op, prediction if ranking is None else ranking, classes, is_scores=is_scores)
    op.graph.outputs.extend([op.rename(label, "label"), prediction])


def _label_of(op: Builder, values: ir.Value, classes: Classes | None, *, is_scores: bool) -> ir.Value:
    """Return the predicted label: the class that ranks highest, z > 0 for one score, p > ½ for several labels."""
    if classes is None:
        return op.Cast(op.Greater(values, 0 if is_scores else 0.5), to=ir.DataType.INT64)
    if values.shape is not None and values.shape[-1] == 1:
        index = op.Cast(op.Squeeze(op.Greater(values, op.like(0, values)), [-1]), to=ir.DataType.INT64)
    else:
        index = op.ArgMax(values, axis=1, keepdims=0)
    strings = any(isinstance(label, str) for label in classes)
    return op.Gather(op.const(np.array(classes, str if strings else np.int64)), index)


def code_of_words(op: Builder, x: ir.Value, words: Sequence[str], codes: Sequence[int] | None = None) -> ir.Value:
    """Return the code of each word, int64, by default 1, 2 …; 0 for unknown ones."""
    codes = range(1, len(words) + 1) if codes is None else codes
    op.graph.opset_imports.setdefault(ML, ML_VERSION)
    value = op.LabelEncoder(x, domain=ML, keys_strings=list(words), values_int64s=list(codes), default_int64=0)
    value.type, value.shape = ir.TensorType(ir.DataType.INT64), x.shape
    return value
