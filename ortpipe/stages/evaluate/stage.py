"""evaluate: a trained model and held-out rows → the same model with metrics beside its baselines."""

from __future__ import annotations

import numpy as np
import onnx

from ortpipe.artifact import Artifact, Facts, under
from ortpipe.data.feeds import class_index, feed_inputs
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import EvaluateError
from ortpipe.graph.compose import with_parameters
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.metrics import METRICS

VERSION = 1
STATES = {"before": "initial", "trained": "parameter", "source": "source"}  # state → the folder of its weights


def evaluate(
    artifact: Artifact,
    config: EvaluateConfig | None = None,
    *,
    data: Data,
    runtime: RuntimeConfig | None = None,
) -> Artifact:
    """Return the artifact with metrics on the test rows: before training, trained, and the source's own weights.

    Its tensors gain `evaluation/label` and `evaluation/prediction` (class indices, or values [N, K]).

    Raises:
        EvaluateError: there are no test rows, a metric does not fit the task, or one that was asked for has no value.
    """
    config = config or EvaluateConfig()
    facts = artifact.facts
    check(facts, config, data=data)
    assert data.test is not None
    names = config.metrics or tuple(n for n, m in METRICS.items() if facts.task in m.tasks)
    sessions = {state: _session(artifact, folder, runtime) for state, folder in STATES.items()}
    truths: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    found: dict[str, list[np.ndarray]] = {state: [] for state in STATES}
    for piece in data.test.pieces(config.rows):
        inputs = feed_inputs(artifact.model, facts, piece)
        truths.append(_truth(facts, piece))
        weights += [] if piece.sample_weight is None else [piece.sample_weight]
        for state, session in sessions.items():
            found[state] += session.run(inputs, [facts.prediction])
    truth = np.concatenate(truths)
    weight = np.concatenate(weights) if weights else None
    table: dict[str, dict[str, float]] = {name: {} for name in names}
    for state, predictions in found.items():
        label, probability = _read(facts, np.concatenate(predictions).astype(np.float64))
        _check_width(truth, label)
        for name in names:
            table[name][state] = METRICS[name](truth, label, probability, weight)
        if state == "trained":
            predicted = label
    return artifact.next(
        "evaluate",
        VERSION,
        tensors={**artifact.tensors, "evaluation/label": truth, "evaluation/prediction": predicted},
        metrics=_defined(table, config),
    )


def check(facts: Facts, config: EvaluateConfig, *, data: Data, runtime: RuntimeConfig | None = None) -> None:
    """Refuse a metric that does not fit the task, and data without test rows."""
    if data.test is None:
        raise EvaluateError("evaluate needs test rows.", got="data.split.test=0", fix="Set data.split.test=0.25.")
    fitting = [n for n, m in METRICS.items() if facts.task in m.tasks]
    for name in config.metrics or ():
        if name not in fitting:
            raise EvaluateError(
                "A metric must fit the model's task.",
                got=f"{name} for a {facts.task} model",
                fix=f"Choose from {', '.join(fitting)}.",
            )


def _defined(table: dict[str, dict[str, float]], config: EvaluateConfig) -> dict[str, dict[str, float]]:
    """Leave out what has no value on these rows (ROC AUC of one class, R² of one row), unless it was asked for."""
    undefined = [name for name, row in table.items() if not np.isfinite(list(row.values())).all()]
    if config.metrics is not None and undefined:
        raise EvaluateError(
            "A metric that is asked for must have a value on the test rows.",
            got=f"{undefined[0]} = {table[undefined[0]]}",
            fix="Give more test rows, of every class (data.split.stratify=true), or leave it out of evaluate.metrics.",
        )
    return {name: row for name, row in table.items() if name not in undefined}


def _check_width(truth: np.ndarray, predicted: np.ndarray) -> None:
    if truth.shape[1:] != predicted.shape[1:]:
        raise EvaluateError(
            "Labels must have the width of the model's prediction.",
            got=f"test labels of shape {truth.shape}, predictions of shape {predicted.shape}",
            fix="Choose other labels or another model.",
        )


def _truth(facts: Facts, rows: Rows) -> np.ndarray:
    if facts.task in ("binary", "multiclass"):
        return class_index(facts, rows.label)
    label = rows.label if rows.label.ndim == 2 else rows.label.reshape(-1, 1)
    return label.astype(np.int64 if facts.task == "multilabel" else np.float64)


def _session(artifact: Artifact, folder: str, runtime: RuntimeConfig | None) -> Session:
    """Return the model with the weights in a folder, loaded."""
    model: onnx.ModelProto = with_parameters(artifact.model, under(folder, artifact.tensors))
    return Session(model, runtime)


def _read(facts: Facts, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return predicted values, or class indices and probabilities, of a model's prediction."""
    if facts.task == "regression":
        return prediction, None
    raw = facts.logits == facts.prediction  # the model ends in scores
    if facts.task == "multiclass" or (facts.task == "binary" and prediction.shape[1] == 2):
        probability = _softmax(prediction) if raw else prediction
        probability = probability / probability.sum(axis=1, keepdims=True)  # float32 rows sum to 1 ± 1e-7
        return probability.argmax(axis=1), probability
    p = 1 / (1 + np.exp(-np.clip(prediction, -700, 700))) if raw else prediction
    if facts.task == "multilabel":
        return (p > 0.5).astype(np.int64), p
    probability = np.hstack([1 - p, p])
    return probability.argmax(axis=1), probability


def _softmax(z: np.ndarray) -> np.ndarray:
    e: np.ndarray = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
