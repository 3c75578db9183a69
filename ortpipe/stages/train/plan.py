"""Plan a run: the inputs of its steps, and the evaluation of validation rows."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.training import Checkpoint, Feed, Training

if TYPE_CHECKING:  # for text, and for validation rows
    from ortpipe.stages.train.preprocessing import without_preprocessing
    from ortpipe.stages.train.validation import Validation as validation
else:
    later(__name__)


def plan(
    artifact: Artifact,
    config: TrainConfig,
    data: Data,
    runtime: RuntimeConfig | None,
    report: Callable[[object], None],
    start: Checkpoint | Arrays | None,
) -> Training:
    """Return the plan of a run, whose steps read the results of the model's preprocessing."""
    facts, model, rest = artifact.facts, artifact.signature, artifact
    feed: Feed = functools.partial(feeds, model, facts)
    read = [value.type.tensor_type.elem_type for value in model.graph.input if value.name in facts.inputs]
    if data.train.head(1).kept or ir.DataType.STRING in read:  # text and raw columns of a table
        rest, feed = without_preprocessing(artifact, data.train, feed, runtime)
    rows, watched = data.validation, config.early_stop.monitor
    validate = None if rows is None else validation(rest, rows, watched, runtime, feed)
    return Training(rest, config, data, runtime, report, start, validate, feed, artifact)
