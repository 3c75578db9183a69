"""evaluate: a trained model and held-out rows → the same model with metrics beside its baselines."""

import dataclasses
import itertools

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, Facts, under
from ortpipe.data.feeds import about, feed_inputs
from ortpipe.data.rows import Data, Rows, check_data, joined
from ortpipe.data.slices import check_columns, column_of
from ortpipe.errors import DeriveError, EvaluateError
from ortpipe.graph import sound
from ortpipe.graph.apart import Weights
from ortpipe.graph.check import proto_apart
from ortpipe.graph.edit import set_initializers
from ortpipe.graph.int8 import is_quantized, to_int8
from ortpipe.metrics import METRICS, UNWEIGHTED, check_fits, part_of, shown
from ortpipe.metrics.curves import curves
from ortpipe.metrics.predictions import Compared, compared, rows_at_most, truth
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.settings import typed
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.importance import MOST, importance
from ortpipe.stages.evaluate.parts import by_value, intervals, whole_rows
from ortpipe.stages.evaluate.sensitivity import sensitivity

VERSION = 4
BOTH = f"test rows have weights: a metric weighs each row by its own, and {UNWEIGHTED} counts each row once"
STATES = {"before": "initial", "trained": "parameter", "source": "source"}  # state → the folder of its weights
INT8 = "int8"  # of a fake-quantized model: the trained one as integers


@typed
def evaluate(
    artifact: Artifact,
    config: EvaluateConfig | None = None,
    *,
    data: Data,
    runtime: RuntimeConfig | None = None,
) -> Artifact:
    """Return the artifact with metrics on the test rows: before training, trained, and the source's own weights.

    Of a fake-quantized model, `int8` is the trained one computed with integers. A model that comes without the weights
    of a state, such as a bare file, has no metrics of that state.
    Where rows have weights, each metric counts them, and the same name with `_unweighted` counts each row once.
    Its tensors gain `evaluation/label` and `evaluation/prediction` (class indices, or values [N, K]). Where rows have
    elements (steps, pixels), each element counts as a row, with the weight of its own; where they have more than fifty
    million scores, only those of evenly spaced rows do. Of sequences they are class indices [N, …], −1 behind the end.
    The metrics of a head have its name in front, `digit_1/accuracy`, and its tensors likewise, `evaluation/digit_1/…`.
    Of probabilities, what is drawn of them is there too (see `metrics.curves`). The lineage has the `intervals` of the
    trained model's metrics, its metrics by `slices`, and the `importance` and `sensitivity` of columns, where they are
    asked for.

    Raises:
        EvaluateError: there are no test rows, a metric does not fit the task, or one that was asked for has no value.
    """
    check_data(data)
    config = config or EvaluateConfig()
    facts, model = artifact.facts, artifact.signature
    check(facts, config, data=data)
    assert data.test is not None
    names = config.metrics or shown(facts)
    known = {state: folder for state, folder in STATES.items() if state == "trained" or under(folder, artifact.tensors)}
    known |= {INT8: "parameter"} if is_quantized(model) else {}
    whole = artifact.ir_model()
    is_large = sum(array.nbytes for array in artifact.initializers.values()) > sound.LARGE
    parts = facts.predictions
    wanted = [own.prediction for own in parts.values()]
    labels: dict[str, list[np.ndarray]] = {head: [] for head in parts}
    weights: list[np.ndarray] = []
    columns: dict[str, list[np.ndarray]] = {name: [] for name in config.by}
    predictions: dict[str, dict[str, list[np.ndarray]]] = {state: {head: [] for head in parts} for state in known}
    most = min(config.rows, *(rows_at_most(own, data.test.of(head)) for head, own in parts.items()))
    for states in [[state] for state in known] if is_large else [list(known)]:  # of a large one, one in memory
        sessions = {
            state: Session(to_int8(artifact.model), runtime)
            if state == INT8
            else _session(whole, under(known[state], artifact.tensors), runtime)
            for state in states
        }
        for piece in data.test.pieces(most):
            rows = feed_inputs(model, facts, piece)
            if "trained" in states:
                for name, values in columns.items():
                    values.append(column_of(piece, name, "by"))
                for head, own in parts.items():
                    labels[head].append(truth(own, piece.of(head)))
                weights += [] if piece.sample_weight is None else [piece.sample_weight]
            for state, session in sessions.items():
                for head, made in zip(parts, session.run(rows, wanted), strict=True):
                    predictions[state][head].append(made)
        sessions.clear()
    weight = np.concatenate(weights) if weights else None
    kinds = ("",) if weight is None else ("", UNWEIGHTED)
    table: dict[str, dict[str, float]] = {f"{name}{kind}": {} for name in names for kind in kinds}
    final: dict[str, np.ndarray] = {}
    spread: dict[str, list[float]] = {}
    slices: dict[str, dict[str, dict[str, float]]] = {}
    for state, (head, own) in itertools.product(known, parts.items()):
        # what the source predicts are the values themselves, whatever its network was then trained for
        said = dataclasses.replace(own, link=None) if state == "source" else own
        with about(head):
            entries = compared(said, np.concatenate(labels[head]), np.concatenate(predictions[state][head]), weight)
        for name in (name for name in names if part_of(name)[0] == head):
            for kind in kinds:
                weighs = None if kind else entries.weight
                table[f"{name}{kind}"][state] = METRICS[name](*entries._replace(weight=weighs))
        if state == "trained":
            folder = f"evaluation/{head}/" if head else "evaluation/"
            final |= {f"{folder}label": entries.truth, f"{folder}prediction": entries.label}
            final |= {f"{folder}{name}": curve for name, curve in curves(entries).items()}
            mine = {name: METRICS[name] for name in names if part_of(name)[0] == head}
            if config.bootstrap or columns:
                whole_rows(entries, sum(map(len, labels[head])))
            spread |= intervals(mine, entries, config.bootstrap, config.seed) if config.bootstrap else {}
            for column, values in columns.items():
                for part, measured in by_value(mine, entries, np.concatenate(values)).items():
                    slices.setdefault(column, {}).setdefault(part, {}).update(measured)
    # ROC AUC of one class or R² of one row have no value: they are left out, unless they were asked for
    undefined = [name for name, row in table.items() if not np.isfinite(list(row.values())).all()]
    if config.metrics is not None and undefined:
        raise EvaluateError(
            "A metric that is asked for must have a value on the test rows.",
            got=f"{undefined[0]} = {table[undefined[0]]}",
            fix="Give more test rows, of every class (data.split.stratify=true), or leave it out of evaluate.metrics.",
        )
    needed: dict[str, dict[str, list[float]]] = {}
    moved: dict[str, float] = {}
    notes = [] if weight is None else [BOTH]
    if config.importance or config.sensitivity:
        trained = _proto(whole, under(known["trained"], artifact.tensors))
        some = joined(list(data.test.pieces(min(MOST, most))))
    if config.sensitivity:
        try:
            moved, maps, without = sensitivity(*trained, facts, some, runtime)
            if without:
                notes.append(f"sensitivity is of numbers that the score depends on: none of {', '.join(without[:20])}")
            final |= {f"evaluation/sensitivity/{name}": array for name, array in maps.items()}
        except DeriveError as error:  # training is done: its result must not be lost
            notes.append(f"no sensitivity: {error.rule} Got: {error.got}")
    if config.importance:
        session = Session(trained[0], runtime, weights=trained[1])
        true = truth(facts, some)

        def predict(rows: Rows) -> Compared:
            [made] = session.run(feed_inputs(model, facts, rows), [facts.prediction])
            return compared(facts, true, made, some.sample_weight)

        mine = {name: METRICS[name] for name in names if not part_of(name)[0] and name not in undefined}
        needed = importance(mine, some, predict, config.importance, config.seed)
    asked = {"intervals": spread, "slices": slices, "importance": needed, "sensitivity": moved}
    return artifact.next(
        "evaluate",
        VERSION,
        tensors={**artifact.tensors, **final},
        metrics={name: row for name, row in table.items() if name not in undefined},
        notes=notes,
        record={key: found for key, found in asked.items() if found},
    )


def check(facts: Facts, config: EvaluateConfig, *, data: Data, runtime: RuntimeConfig | None = None) -> None:
    """Refuse a metric that does not fit the task, and data without test rows."""
    if data.test is None:
        raise EvaluateError("evaluate needs test rows.", got="data.split.test=0", fix="Set data.split.test=0.25.")
    for name in config.metrics or ():
        check_fits(name, facts, "metrics")
    check_columns(data.test.head(1), config.by, "by")


def _proto(model: ir.Model, weights: Arrays) -> tuple[onnx.ModelProto, Weights]:
    """Return the model with these weights, the large ones apart."""
    own = model.clone()
    set_initializers(own, weights)
    return proto_apart(own, deep=True)


def _session(model: ir.Model, weights: Arrays, runtime: RuntimeConfig | None) -> Session:
    """Return the model with these weights, loaded."""
    proto, weights = _proto(model, weights)
    return Session(proto, runtime, weights=weights)
