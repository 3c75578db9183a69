"""A fitted scikit-learn estimator or Pipeline as one graph."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.builder import Builder
from ortpipe.graph.origins import within
from ortpipe.graph.serial import IR_VERSION, OPSET
from ortpipe.stages.convert.meaning import Meaning
from ortpipe.stages.convert.sources import Forward
from ortpipe.stages.convert.sources.estimators import (
    check_estimator,
    check_supported,
    class_path,
    end_of,
    label_of,
    plain_classes,
)
from ortpipe.stages.convert.sources.sklearn_transformers import TRANSFORMERS


def supported_steps(estimator: Any) -> tuple[list[Any], Any]:
    """Return the scalers and the final estimator of an estimator or Pipeline, all of them supported."""
    from sklearn.pipeline import Pipeline

    steps = [step for _, step in estimator.steps] if isinstance(estimator, Pipeline) else [estimator]
    steps = [step for step in steps if step is not None and not isinstance(step, str)]  # 'passthrough'
    if not steps:
        raise ConvertError("A Pipeline must end in an estimator.", got="no step", fix="Add one as its last step.")
    *scalers, last = steps
    for step in scalers:
        check_supported(TRANSFORMERS, class_path(step), "Every step before the last")
    check_estimator(last)
    return scalers, last


def build(estimator: Any, dtype: str) -> Forward:
    """Return the graph of a fitted estimator: input `X` [N, features]; outputs as skl2onnx names them.

    Regression gives `prediction` [N, K]; classifiers give `label` [N] and `probabilities` [N, K].
    """
    scalers, last = supported_steps(estimator)
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=type(last).__name__)
    op = Builder(graph, "forward")
    width = int((scalers[0] if scalers else last).n_features_in_)
    x = op.input("X", ir.DataType.from_numpy(np.dtype(dtype)), ["N", width])
    for scaler in scalers:
        x = TRANSFORMERS[class_path(scaler)](op, scaler, x, dtype)
    with within(graph, *([name for name, step in estimator.steps if step is last] if last is not estimator else ())):
        end = end_of(op, last, x, dtype)
    if end.logits is not None:
        op.rename(end.logits, "logits")
    classes: tuple[int | str, ...] | None = None
    if end.task == "regression":
        graph.outputs.append(op.rename(end.prediction, "prediction"))
    else:
        classes = None if end.task == "multilabel" else plain_classes(last.classes_)
        op.rename(end.prediction, "probabilities")
        graph.outputs.extend([op.rename(label_of(op, end, classes), "label"), end.prediction])

    def expected(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        [rows] = inputs.values()
        return np.asarray(estimator.predict(rows) if end.task == "regression" else estimator.predict_proba(rows))

    meaning = Meaning(end.task, str(end.logits.name) if end.logits is not None else None, classes)
    return Forward(
        ir.Model(graph, ir_version=IR_VERSION),
        prediction=str(end.prediction.name),
        meaning=lambda rows: meaning,
        expected=lambda inputs, output: expected(inputs),
        origin=class_path(last),
    )
