"""evaluate: a trained model and held-out rows → the model with metrics and those of its baselines.

The metrics of a head have its name in front, `digit_1/accuracy`, and its tensors likewise, `evaluation/digit_1/…`.
Probabilities also get the curves of `metrics.curves`. `int8` is a fake-quantized model computed with integers. The
lineage records `intervals` of the test metrics, these by `slices`, and the `importance` and `sensitivity` of columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, Facts, in_folder
from ortpipe.data.feeds import feed_inputs, name_head
from ortpipe.data.rows import Data, check_data
from ortpipe.doors import later
from ortpipe.graph.core import protos
from ortpipe.graph.core.check import proto_apart
from ortpipe.graph.core.edit import set_initializers
from ortpipe.graph.core.protos import Weights, is_quantized
from ortpipe.metrics import UNWEIGHTED, shown
from ortpipe.metrics.predictions import Compared, compared, measured, rows_at_most, truth
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.settings import typed
from ortpipe.stages.evaluate.config import VERSION, EvaluateConfig

if TYPE_CHECKING:  # for settings and models beyond the metrics of float values
    from ortpipe.data.row_set import RowSet
    from ortpipe.graph.forms.int8 import to_int8
    from ortpipe.metrics.curves import curves
    from ortpipe.stages.evaluate.adjusted import evaluate_adjusted
    from ortpipe.stages.evaluate.baselines import add_baselines
    from ortpipe.stages.evaluate.early import check
    from ortpipe.stages.evaluate.parts import add_records, metrics_of_validation, reject_undefined
else:
    later(__name__)

WEIGHTED_NOTE = f"test rows have weights: a metric weighs each row by its own, and {UNWEIGHTED} counts each row once"
STATES = {"before": "initial", "trained": "parameter", "source": "source"}  # state → the folder of its weights
INT8 = "int8"  # the state of a fake-quantized model: trained, converted to integers


@typed
def evaluate(
    artifact: Artifact,
    config: EvaluateConfig | None = None,
    *,
    data: Data,
    runtime: RuntimeConfig | None = None,
    report: Callable[[object], None] = lambda event: None,
) -> Artifact:
    """Return the artifact with metrics on the test rows: before training, trained, and with the source's weights.

    A model without the weights of a state, such as a bare file, has no metrics of that state, nor of a source all of
    whose weights `convert.init` replaced. If rows have weights, each metric uses them, and the same name with
    `_unweighted` counts each row once. The tensors gain `evaluation/label` and `evaluation/prediction` (class indices,
    or values [N, K]). The lineage records the trained model's metrics on the `validation` rows, by which searches
    choose.

    Raises:
        EvaluateError: there are no test rows, a metric does not fit the task, or a configured one has no value.
    """
    check_data(data)
    config = config or EvaluateConfig()
    if data.test is None or config != EvaluateConfig(baseline=None):
        check(artifact.facts, config, data=data)
    if config.calibration is not None or config.threshold is not None:
        return evaluate_adjusted(artifact, config, data, runtime, report)
    return measure(artifact, config, config.metrics or shown(artifact.facts), data, runtime, report)


def measure(artifact: Artifact, config: EvaluateConfig, names: Sequence[str], data: Data, *last: Any) -> Artifact:
    """Return the artifact with these metrics on the test rows; `last` are the last fields of `Work`."""
    assert data.test is not None
    facts = artifact.facts
    most = min(config.rows, *(rows_at_most(part, data.test.of(head)) for head, part in facts.predictions.items()))
    work = Work(artifact, artifact.ir_model(), config, data.test, most, names, *last)
    tested, validation = _predictions(work, data.validation)
    trained = tested["trained"].compared(facts)
    table = _metrics(work, tested, trained)
    notes = add_baselines(work, data.train, trained, table) if config.baseline else []
    notes += [] if tested["trained"].weight is None else [WEIGHTED_NOTE]
    tensors, record = _tensors(trained), dict[str, Any](validation=validation)
    if config.bootstrap or config.by or config.importance or config.sensitivity:
        notes += add_records(work, tested["trained"], trained, table, record, tensors)
    return artifact.next(
        "evaluate",
        VERSION,
        tensors={**artifact.tensors, **tensors},
        metrics=table,
        notes=notes,
        record={key: values for key, values in record.items() if values},
    )


class Work(NamedTuple):
    """The inputs of one `evaluate` call."""

    artifact: Artifact
    model: ir.Model  # the artifact's
    config: EvaluateConfig
    rows: RowSet  # the test rows
    most: int  # the largest number of rows to read
    names: Sequence[str]  # the metrics
    runtime: RuntimeConfig | None
    report: Callable[[object], None]  # called before and after the fit of a baseline

    def proto(self, state: str) -> tuple[onnx.ModelProto, Weights]:
        """Return a copy of the model with the weights of a state, the large ones separately."""
        copy = self.model.clone()
        set_initializers(copy, in_folder(STATES[state], self.artifact.tensors))
        return proto_apart(copy, deep=True)

    def session(self, state: str) -> Session:
        """Return a session of the model with the weights of a state."""
        model, weights = (to_int8(self.artifact.model), None) if state == INT8 else self.proto(state)
        return Session(model, self.runtime, weights=weights)


class Answers(NamedTuple):
    """The labels, predictions and weights of rows; labels and predictions by head."""

    labels: Arrays
    predictions: Arrays
    weight: np.ndarray | None

    def compared(self, facts: Facts, *, source: bool = False) -> dict[str, Compared]:
        """Return labels and predictions of each head, entry by entry.

        The source predicts values, not scores, whatever loss its network is then trained with.
        """
        entries = dict[str, Compared]()
        for head, part in facts.predictions.items():
            with name_head(head):
                part = dataclasses.replace(part, link=None) if source and part.link == "log" else part
                entries[head] = compared(part, self.labels[head], self.predictions[head], self.weight)
        return entries


def answers(
    sessions: Mapping[str, Session], model: onnx.ModelProto, facts: Facts, rows: RowSet, most: int
) -> dict[str, Answers]:
    """Return the predictions of sessions, such as one per state, for at most `most` rows."""
    parts = facts.predictions
    outputs = [part.prediction for part in parts.values()]
    labels, weights, predictions = list[Arrays](), list[np.ndarray](), {state: list[Arrays]() for state in sessions}
    for piece in rows.pieces(most):
        fed = feed_inputs(model, facts, piece)
        labels.append({head: truth(part, piece.of(head).label) for head, part in parts.items()})
        weights += [] if piece.sample_weight is None else [piece.sample_weight]
        for state, session in sessions.items():
            predictions[state].append(dict(zip(parts, session.predict(fed, outputs), strict=True)))
    weight = np.concatenate(weights) if weights else None
    return {state: Answers(_joined(labels), _joined(pieces), weight) for state, pieces in predictions.items()}


def _joined(pieces: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _predictions(work: Work, validation_rows: RowSet | None) -> tuple[dict[str, Answers], dict[str, float]]:
    """Return predictions of each state on the test rows, and the trained model's metrics on the validation rows."""
    artifact, facts, model = work.artifact, work.artifact.facts, work.artifact.signature
    states = [state for state, folder in STATES.items() if state == "trained" or in_folder(folder, artifact.tensors)]
    others = facts.lineage[0].get("init", {}).get("weights", ()) if facts.lineage else ()
    if not in_folder("source", artifact.tensors).keys() - others:  # replaced by others; a network's were random
        states = [state for state in states if state != "source"]
    states += [INT8] if is_quantized(model) else []
    is_large = sum(array.nbytes for array in artifact.initializers.values()) > protos.LARGE_MODEL
    tested, validation = dict[str, Answers](), dict[str, float]()
    for group in [[state] for state in states] if is_large else [states]:  # of a large model, only one in memory
        sessions = {state: work.session(state) for state in group}
        tested |= answers(sessions, model, facts, work.rows, work.most)
        if validation_rows is not None and "trained" in sessions:
            validation = metrics_of_validation(work, sessions["trained"], validation_rows)
        sessions.clear()
    return tested, validation


def _metrics(work: Work, tested: Mapping[str, Answers], trained: Mapping[str, Compared]) -> dict[str, dict[str, float]]:
    """Return the metrics of each state; one without a value, such as the ROC AUC of one class, is left out."""
    facts, by_state = work.artifact.facts, dict[str, dict[str, float]]()
    for state, answer in tested.items():
        entries = trained if state == "trained" else answer.compared(facts, source=state == "source")
        by_state[state] = measured(entries, work.names)
    names = [f"{name}{kind}" for name in work.names for kind in ("", UNWEIGHTED)]
    table = {n: {state: v[n] for state, v in by_state.items()} for n in names if n in by_state["trained"]}
    undefined = [name for name, row in table.items() if not np.isfinite(list(row.values())).all()]
    if work.config.metrics is not None and undefined:
        reject_undefined(undefined[0], table[undefined[0]])
    return {name: row for name, row in table.items() if name not in undefined}


def _tensors(trained: Mapping[str, Compared]) -> dict[str, np.ndarray]:
    """Return the labels and predictions of the test rows, and the curves of probabilities."""
    tensors = dict[str, np.ndarray]()
    for head, entries in trained.items():
        arrays = {"label": entries.truth, "prediction": entries.label}
        arrays |= {} if entries.probability is None else curves(entries)
        tensors |= {f"evaluation/{head}/{name}" if head else f"evaluation/{name}": a for name, a in arrays.items()}
    return tensors
