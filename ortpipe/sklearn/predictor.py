"""A trained model as a function of rows."""

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Rows
from ortpipe.facts import Facts, read_metadata
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.sklearn.frames import FrameInputs

ROWS = 2**14  # per call: a row's activations take many times its memory


class Predictor:
    """Runs a model that is described by its metadata."""

    def __init__(self, model: bytes, threads: int) -> None:
        self._proto = onnx.ModelProto.FromString(model)
        self.facts = Facts.from_json(read_metadata(self._proto))
        inner = ir.from_proto(self._proto)
        keep_outputs(inner, list(dict.fromkeys([self.facts.prediction, self.facts.logits or self.facts.prediction])))
        self._session = Session(inner, RuntimeConfig(threads))

    def __call__(self, inputs: FrameInputs, output: str) -> np.ndarray:
        """Return the prediction for rows, or its logits."""
        count = len(next(iter(inputs.arrays.values())))
        fed = feed_inputs(
            self._proto, self.facts, Rows(inputs.arrays, np.zeros(count, np.int8), kept=inputs.raw_columns)
        )
        cuts = (slice(first, first + ROWS) for first in range(0, count, ROWS))
        outputs = [self._session.run({name: a[cut] for name, a in fed.items()}, [output])[0] for cut in cuts]
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)
