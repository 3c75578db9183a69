"""A calibrated model, and one with a tuned decision threshold: both are fitted on the validation rows.

`start` and `ortpipe retrain` read the results of earlier stages, so that no training sees them.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from ortpipe.artifact import Artifact
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Data
from ortpipe.facts import Facts
from ortpipe.graph.core import query
from ortpipe.metrics import shown
from ortpipe.metrics.predictions import Compared, predicted
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.evaluate.adjusted_graph import LABELS, with_labels
from ortpipe.stages.evaluate.calibration import calibrated
from ortpipe.stages.evaluate.config import VERSION, EvaluateConfig
from ortpipe.stages.evaluate.stage import answers, measure
from ortpipe.stages.evaluate.threshold import tuned

FIRST = 1000  # validation rows that show which outputs are labels, unless all are of one class
PROPER = ("log_loss", "brier_score", "calibration_error")  # metrics of probabilities, which calibration is for


class Adjusted(NamedTuple):
    """A model after a step, what the user should know, and entries of the lineage record."""

    artifact: Artifact
    notes: list[str]
    record: dict[str, Any]


def evaluate_adjusted(
    artifact: Artifact,
    config: EvaluateConfig,
    data: Data,
    runtime: RuntimeConfig | None,
    report: Callable[[object], None],
) -> Artifact:
    """Return the adjusted model with its metrics on the test rows; the state `unadjusted` is the model as trained."""
    chosen = [*(PROPER if config.calibration is not None else ()), *filter(None, [config.threshold])]
    names = config.metrics or tuple(dict.fromkeys([*shown(artifact.facts), *chosen]))
    plain = dataclasses.replace(config, baseline=None, by=(), bootstrap=0, importance=0, sensitivity=False)
    before = measure(artifact, plain, names, data, runtime, report)
    adjusted = _adjusted(artifact, config, data, runtime)
    after = measure(_without_states(adjusted.artifact), config, names, data, runtime, report)
    metrics = {
        name: {**before.facts.metrics[name], "unadjusted": before.facts.metrics[name]["trained"], **values}
        for name, values in after.facts.metrics.items()
        if name in before.facts.metrics
    }
    tensors = {**artifact.tensors, **{n: a for n, a in after.tensors.items() if n.startswith("evaluation/")}}
    if config.calibration is not None and "evaluation/reliability" in before.tensors:
        tensors["evaluation/reliability_before"] = before.tensors["evaluation/reliability"]
    record = {k: v for k, v in after.facts.lineage[-1].items() if k not in ("stage", "version", "input", "notes")}
    return adjusted.artifact.next(
        "evaluate",
        VERSION,
        tensors=tensors,
        metrics=metrics,
        notes=[*adjusted.notes, *after.facts.lineage[-1].get("notes", ())],
        record={**record, **adjusted.record, "input": artifact.digest()},
    )


def _without_states(artifact: Artifact) -> Artifact:
    """Return a model without initial and source weights, which are evaluated unadjusted."""
    return artifact.with_tensors(
        {n: a for n, a in artifact.tensors.items() if not n.startswith(("initial/", "source/"))}
    )


def _adjusted(artifact: Artifact, config: EvaluateConfig, data: Data, runtime: RuntimeConfig | None) -> Adjusted:
    """Return the model after calibration, then with a threshold of its calibrated probabilities."""
    rows, facts = data.validation, artifact.facts
    assert rows is not None

    def entries(of: Artifact, facts: Facts) -> Compared:
        session, single = Session(of.ir_model([facts.prediction]), runtime), dataclasses.replace(facts, heads={})
        [answer] = answers({"": session}, of.signature, single, rows, config.rows).values()
        return answer.compared(single)[""]

    width, labels = _width_and_labels(artifact, rows, runtime)
    result, notes, record = artifact, list[str](), dict[str, Any]()
    if config.calibration is not None:
        result, note, record["calibration"] = calibrated(artifact, config.calibration, entries, width)
        notes += [note, *_uncalibrated(artifact)]
    if config.threshold is not None:
        value, note, record["threshold"] = tuned(entries(result, result.facts), config.threshold, facts)
        result = Artifact(result.ir_model(), dataclasses.replace(result.facts, threshold=value), result.tensors)
        notes.append(note)
    if result.facts.threshold is not None or config.calibration == "isotonic":
        result = with_labels(result, labels, width)
    return Adjusted(result, notes, record)


def _uncalibrated(artifact: Artifact) -> list[str]:
    """Return a note about each output of floats, besides the prediction, that is computed from it or its logits."""
    facts, graph = artifact.facts, artifact.ir_model().graph
    changed = {v for name, v in query.values(graph).items() if name in (facts.prediction, facts.logits)}
    others = [v for v in graph.outputs if v.name != facts.prediction and v.dtype not in LABELS]
    names = [str(v.name) for v in others if changed & query.ancestors([v])]
    return [f"calibration: only output {facts.prediction!r} is calibrated, {name!r} is not" for name in names]


def _width_and_labels(
    artifact: Artifact, rows: RowSet, runtime: RuntimeConfig | None
) -> tuple[int, dict[str, tuple[Any, ...]]]:
    """Return the columns of the prediction, and each output that is the rows' class, with its two classes."""
    facts, graph = artifact.facts, artifact.ir_model().graph
    binary = facts.task == "binary"
    names = [str(output.name) for output in graph.outputs if binary and output.dtype in LABELS]
    session = Session(artifact.ir_model([facts.prediction, *names]), runtime)
    kinds = list(dict.fromkeys([(facts.classes or (0, 1))[:2], (0, 1)]))
    width, fitting = 0, dict.fromkeys(names, kinds)
    for piece in itertools.chain([rows.head(FIRST)], rows.pieces()):
        prediction, *outputs = session.predict(
            feed_inputs(artifact.signature, facts, piece), [facts.prediction, *names]
        )
        label, _ = predicted(facts, prediction)
        width = prediction.shape[-1]
        for name, output in zip(names, outputs, strict=True):
            values = output.reshape(-1).tolist()
            fitting[name] = [classes for classes in fitting[name] if values == [classes[k] for k in label]]
        if all(len(fits) < 2 for fits in fitting.values()):  # rows of one class may fit both kinds
            break
    return width, {name: fits[0] for name, fits in fitting.items() if fits}
