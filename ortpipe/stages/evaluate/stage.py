"""evaluate: a trained model and held-out rows → the same model with metrics and those of its baselines."""

import dataclasses
import itertools

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, Facts, under
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data, Rows, check_data, concatenate
from ortpipe.data.slices import check_columns
from ortpipe.errors import DeriveError, EvaluateError
from ortpipe.graph.core import sound
from ortpipe.graph.core.apart import Weights
from ortpipe.graph.core.check import proto_apart
from ortpipe.graph.core.edit import set_initializers
from ortpipe.graph.forms.int8 import is_quantized, to_int8
from ortpipe.metrics import METRICS, UNWEIGHTED, check_fits, part_of, shown
from ortpipe.metrics.curves import curves
from ortpipe.metrics.predictions import Compared, compared, rows_at_most, truth
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.settings import typed
from ortpipe.stages.evaluate.answers import Answers, answers, measured
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.importance import MOST, importance
from ortpipe.stages.evaluate.parts import by_value, check_one_per_row, intervals
from ortpipe.stages.evaluate.sensitivity import sensitivity

VERSION = 5
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
) -> Artifact:
    """Return the artifact with metrics on the test rows: before training, trained, and with the source's weights.

    For a fake-quantized model, `int8` is the trained model computed with integers. A model without the weights of a
    state, such as a bare file, has no metrics of that state.
    If rows have weights, each metric uses them, and the same name with `_unweighted` counts each row once.
    Its tensors gain `evaluation/label` and `evaluation/prediction` (class indices, or values [N, K]). If rows have
    elements (steps, pixels), each element counts as a row, with the weight of its row; above fifty million scores, only
    evenly spaced rows count. For sequences they are class indices [N, …], −1 after the end. The metrics of a head have
    its name in front, `digit_1/accuracy`, and its tensors likewise, `evaluation/digit_1/…`. Models with probabilities
    also get the curves of `metrics.curves`. The lineage records the trained model's metrics on the `validation` rows,
    by which searches choose. If the config sets them, it records the `intervals` of its test metrics, these metrics by
    `slices`, and the `importance` and `sensitivity` of columns.

    Raises:
        EvaluateError: there are no test rows, a metric does not fit the task, or a configured one has no value.
    """
    check_data(data)
    config = config or EvaluateConfig()
    facts, model = artifact.facts, artifact.signature
    check(facts, config, data=data)
    assert data.test is not None
    names = config.metrics or shown(facts)
    folder_by_state = {
        state: folder for state, folder in STATES.items() if state == "trained" or under(folder, artifact.tensors)
    }
    folder_by_state |= {INT8: "parameter"} if is_quantized(model) else {}
    graph_model = artifact.ir_model()
    is_large = sum(array.nbytes for array in artifact.initializers.values()) > sound.LARGE
    parts = facts.predictions
    most = min(config.rows, *(rows_at_most(part, data.test.of(head)) for head, part in parts.items()))
    tested: dict[str, Answers] = {}
    validation: dict[str, float] = {}
    for states in (
        [[state] for state in folder_by_state] if is_large else [list(folder_by_state)]
    ):  # of a large model, only one in memory
        sessions = {
            state: Session(to_int8(artifact.model), runtime)
            if state == INT8
            else _session(graph_model, under(folder_by_state[state], artifact.tensors), runtime)
            for state in states
        }
        tested |= answers(sessions, model, facts, data.test, most, config.by)
        if data.validation is not None and "trained" in sessions:
            trained_session = {"trained": sessions["trained"]}
            validation = measured(
                answers(trained_session, model, facts, data.validation, most)["trained"], facts, names
            )
        sessions.clear()
    columns, weight = tested["trained"].columns, tested["trained"].weight
    kinds = ("",) if weight is None else ("", UNWEIGHTED)
    table: dict[str, dict[str, float]] = {f"{name}{kind}": {} for name in names for kind in kinds}
    final: dict[str, np.ndarray] = {}
    interval_by_metric: dict[str, list[float]] = {}
    slices: dict[str, dict[str, dict[str, float]]] = {}
    for state, (head, head_facts) in itertools.product(folder_by_state, parts.items()):
        # the source predicts values, not scores, whatever loss its network is then trained with
        state_facts = dataclasses.replace(head_facts, link=None) if state == "source" else head_facts
        entries = tested[state].compared(head, state_facts)
        for name in (name for name in names if part_of(name)[0] == head):
            for kind in kinds:
                weighs = None if kind else entries.weight
                table[f"{name}{kind}"][state] = METRICS[name](*entries._replace(weight=weighs))
        if state == "trained":
            folder = f"evaluation/{head}/" if head else "evaluation/"
            final |= {f"{folder}label": entries.truth, f"{folder}prediction": entries.label}
            final |= {f"{folder}{name}": curve for name, curve in curves(entries).items()}
            head_metrics = {name: METRICS[name] for name in names if part_of(name)[0] == head}
            if config.bootstrap or columns:
                check_one_per_row(entries, len(tested[state].labels[head]))
            interval_by_metric |= (
                intervals(head_metrics, entries, config.bootstrap, config.seed) if config.bootstrap else {}
            )
            for column, values in columns.items():
                for value, values_there in by_value(head_metrics, entries, values).items():
                    slices.setdefault(column, {}).setdefault(value, {}).update(values_there)
    # ROC AUC of one class or R² of one row have no value: they are left out unless the config names them
    undefined = [name for name, row in table.items() if not np.isfinite(list(row.values())).all()]
    if config.metrics is not None and undefined:
        raise EvaluateError(
            "A metric that is set must have a value on the test rows.",
            got=f"{undefined[0]} = {table[undefined[0]]}",
            fix="Give more test rows, of every class ({@data.split.stratify}=true), or leave it out of {at}metrics.",
        )
    importance_by_metric: dict[str, dict[str, list[float]]] = {}
    sensitivity_by_column: dict[str, float] = {}
    notes = [] if weight is None else [WEIGHTED_NOTE]
    if config.importance or config.sensitivity:
        trained = _proto(graph_model, under(folder_by_state["trained"], artifact.tensors))
        sample = concatenate(list(data.test.pieces(min(MOST, most))))
    if config.sensitivity:
        try:
            sensitivity_by_column, maps, without = sensitivity(*trained, facts, sample, runtime)
            if without:
                notes.append(f"sensitivity needs numbers that the score depends on: none for {', '.join(without[:20])}")
            final |= {f"evaluation/sensitivity/{name}": array for name, array in maps.items()}
        except DeriveError as error:  # the trained result must not be lost
            notes.append(f"no sensitivity: {error.rule} Got: {error.got}")
    if config.importance:
        session = Session(trained[0], runtime, weights=trained[1])
        true = truth(facts, sample)

        def predict(rows: Rows) -> Compared:
            [prediction] = session.run(feed_inputs(model, facts, rows), [facts.prediction])
            return compared(facts, true, prediction, sample.sample_weight)

        head_metrics = {name: METRICS[name] for name in names if not part_of(name)[0] and name not in undefined}
        importance_by_metric = importance(head_metrics, sample, predict, config.importance, config.seed)
    details = {
        "validation": validation,
        "intervals": interval_by_metric,
        "slices": slices,
        "importance": importance_by_metric,
        "sensitivity": sensitivity_by_column,
    }
    return artifact.next(
        "evaluate",
        VERSION,
        tensors={**artifact.tensors, **final},
        metrics={name: row for name, row in table.items() if name not in undefined},
        notes=notes,
        record={key: values for key, values in details.items() if values},
    )


def check(facts: Facts, config: EvaluateConfig, *, data: Data, runtime: RuntimeConfig | None = None) -> None:
    """Raise EvaluateError for a metric that does not fit the task, and for data without test rows."""
    if data.test is None:
        raise EvaluateError("evaluate needs test rows.", got="none", fix="Set {@data.split.test}=0.25.")
    for name in config.metrics or ():
        check_fits(name, facts, "metrics")
    check_columns(data.test.head(1), config.by, "by")


def _proto(model: ir.Model, weights: Arrays) -> tuple[onnx.ModelProto, Weights]:
    """Return a copy of the model with these weights, and the large ones separately."""
    copy = model.clone()
    set_initializers(copy, weights)
    return proto_apart(copy, deep=True)


def _session(model: ir.Model, weights: Arrays, runtime: RuntimeConfig | None) -> Session:
    """Return a session of the model with these weights."""
    proto, weights = _proto(model, weights)
    return Session(proto, runtime, weights=weights)
