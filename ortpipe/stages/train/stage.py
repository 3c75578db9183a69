"""train: a gradient model and rows → a trained model, its state and its losses.

The tensors of the result are `parameter/…` and `initial/…` by parameter, running statistic and weight with merged
adapters; `optimizer/…` by slot and parameter (`optimizer/iterate/…` has the weights if `parameter/…` has their
averages); and the losses: `losses/step` and (except lbfgs) `losses/rate` [steps], `losses/train` and
`losses/validation` [epochs] (per row; nan in epochs without validation), and `monitor/…` [epochs] if a metric is
monitored.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, in_folder
from ortpipe.data.rows import Data, check_data
from ortpipe.doors import later
from ortpipe.errors import ModelError, TrainError
from ortpipe.graph.core.edit import set_initializers
from ortpipe.graph.core.protos import sealed
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.settings import typed
from ortpipe.stages.train import mini_batch
from ortpipe.stages.train.config import VERSION, TrainConfig
from ortpipe.stages.train.training import Checkpoint, Training, check_settings, plan

if TYPE_CHECKING:  # for models, settings and results beyond a plain training
    from ortpipe.graph.forms.modes import to_inference
    from ortpipe.stages.train.compiled import with_engine
    from ortpipe.stages.train.diagnosis import check_elements
    from ortpipe.stages.train.full_batch import solve as solve_full_batch
    from ortpipe.stages.train.outcome import merge_adapters, outcome_of
else:
    later(__name__)

STILL = 1e-6  # losses with a smaller relative difference count as equal: float32 sums in another order differ by less


@typed
def train(
    artifact: Artifact,
    config: TrainConfig | None = None,
    *,
    data: Data,
    runtime: RuntimeConfig | None = None,
    report: Callable[[object], None] = lambda event: None,
    start: Checkpoint | Mapping[str, np.ndarray] | None = None,
) -> Artifact:
    """Return the forward model with trained weights.

    Args:
        artifact: a gradient model with its forward outputs.
        config: optimizer, schedule, epochs, …
        data: training rows, and validation rows if there are any.
        runtime: threads.
        report: called with an `Epoch` after each epoch, and with a `Checkpoint` if one is due or on a signal.
        start: a checkpoint of this training, or the tensors of an earlier result, to continue from. Their epochs count:
            training that is interrupted and continued is byte-identical to training without interruption.

    Returns:
        An artifact with the tensors listed at the top of this file. The same artifact, config and data give a
        byte-identical result.

    Raises:
        ConvergenceError: the loss became nan or infinite.
        DataError: the rows do not fit the model.
        EvaluateError: the monitored metric does not fit the task or has no value on the validation rows.
        TrainError: the model has no gradients or forward outputs.
    """
    config = config or TrainConfig()
    _check_inputs(artifact, config, data)
    training, record = plan(artifact, config, data, runtime, report, start), dict[str, str]()
    if runtime is not None and runtime.engine == "auto":
        training, record = with_engine(training)
    tensors = _solve(training, artifact)
    forward, tensors = _trained_model(artifact, tensors)
    return artifact.next("train", VERSION, model=forward, **_facts(training, forward, tensors, record))


def _check_inputs(artifact: Artifact, config: TrainConfig, data: Data) -> None:
    """Reject a model, settings or rows that do not fit each other."""
    check_data(data)
    facts = artifact.facts
    if not facts.gradients or not facts.outputs:
        raise TrainError(
            "train needs a gradient model with its forward outputs.",
            got=f"{len(facts.gradients)} gradients, {len(facts.outputs)} forward outputs",
            fix="Run derive first, with {@derive.forward_outputs}=true.",
        )
    check_settings(config, facts, data, artifact.initializers)


def _solve(training: Training, artifact: Artifact) -> dict[str, np.ndarray]:
    """Return the trained tensors."""
    solve = solve_full_batch if training.config.optimizer.solver == "lbfgs" else mini_batch.solve
    try:
        tensors: Arrays = solve(training)
    except ModelError:
        check_elements(artifact, training.data)
        raise
    return {name: sealed(array) for name, array in tensors.items()}  # once: the model and its artifact share them


def _trained_model(artifact: Artifact, tensors: Arrays) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """Return the forward model with trained weights, and the tensors with those of adapted weights."""
    forward = artifact.ir_model(artifact.facts.outputs)
    merged = merge_adapters(artifact, forward, tensors) if artifact.facts.adapters else {}
    tensors = {**tensors, **merged}
    set_initializers(forward, in_folder("parameter", tensors))
    if any(node.op_type in ("BatchNormalization", "Dropout") for node in forward.graph.all_nodes()):
        to_inference(forward)
    return forward, tensors


def _facts(training: Training, forward: ir.Model, tensors: Arrays, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about the trained model."""
    artifact, config = training.whole, training.config
    facts, source = artifact.facts, {k: v for k, v in artifact.tensors.items() if k.startswith("source/")}
    losses = tensors["losses/train"]
    still = bool(np.ptp(losses) <= STILL * np.abs(losses).max())
    half = any(artifact.initializers[name].dtype.itemsize == 2 for name in facts.gradients)
    if still or half or config.early_stop.patience is not None:
        notes, outcome = outcome_of(training, tensors, still=still)
    else:
        notes, outcome = [], {}
    return {
        "tensors": {**source, **tensors},
        "parameters": (*(name for name in facts.parameters if name in forward.graph.initializers), *facts.adapters),
        "constants": tuple(name for name in facts.constants if name not in facts.adapters),
        "loss": None,
        "label": None,
        "heads": {name: dataclasses.replace(head, label=None) for name, head in facts.heads.items()},
        "sample_weight": None,
        "gradients": {},
        "input_gradients": {},
        "statistics": {},
        "notes": notes,
        "record": {**record, **outcome},
    }
