"""An .onnx model as a teacher: the values or the shares of classes that it predicts for rows."""

from pathlib import Path

import numpy as np
import onnx

from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Rows
from ortpipe.errors import ModelError
from ortpipe.facts import Facts
from ortpipe.facts_json import read_metadata
from ortpipe.graph.files.serial import read_apart
from ortpipe.runtime.session import Session

PIECE = 1024  # rows per run
FLOATS = [onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16]


class OnnxRegressor:
    """A model whose prediction is a value or several per row; its inputs are those of the rows, by name.

    Args:
        path: the file.
        output: the prediction; by default that of a model of ortpipe, or the only output of floats.
    """

    reads_rows = True

    def __init__(self, path: str, output: str | None = None) -> None:
        self._model, weights = read_apart(Path(path))
        self._facts = read_metadata(self._model)
        self._output = self._output_of(output)
        self._session = Session(self._model, weights=weights)

    def predict(self, rows: Rows) -> np.ndarray:
        """Return the output [N, …] for rows, float64."""
        stored = {tensor.name for tensor in self._model.graph.initializer}
        names = tuple(entry.name for entry in self._model.graph.input if entry.name not in stored)
        facts = Facts("regression", names, (self._output,), self._output, ())
        feeds = (feed_inputs(self._model, facts, piece) for piece in rows.pieces(PIECE))
        arrays = [self._session.run(feed, [self._output])[0] for feed in feeds]
        return np.concatenate(arrays).astype(np.float64)

    def _output_of(self, name: str | None) -> str:
        floats = [o.name for o in self._model.graph.output if o.type.tensor_type.elem_type in FLOATS]
        name = name or self._facts.get("prediction") or (floats[0] if len(floats) == 1 else None)
        if name not in floats:
            fix = f"Set {{at}}params.output to one of {', '.join(floats) or 'none'}."
            raise ModelError("A teacher must have one output of floats, or name it.", got=name, fix=fix)
        return str(name)


class OnnxClassifier(OnnxRegressor):
    """A model whose output has a column per class, or one for two classes: probabilities, or else scores.

    A model of ortpipe knows its classes. Those of other models are the labels' classes in ascending order.
    """

    def __init__(self, path: str, output: str | None = None) -> None:
        super().__init__(path, output)
        if self._facts.get("classes"):
            self.classes_ = np.array(self._facts["classes"])

    def predict_proba(self, rows: Rows) -> np.ndarray:
        """Return the shares of classes [N, K]."""
        return shares(self.predict(rows))


def shares(scores: np.ndarray) -> np.ndarray:
    """Return probabilities as they are, and scores by softmax, or by the logistic function if there is one column.

    >>> shares(np.array([[0.25, 0.75]])), shares(np.array([[0.0, 0.0]])), shares(np.array([[0.25], [0.5]]))
    (array([[0.25, 0.75]]), array([[0.5, 0.5]]), array([[0.75, 0.25],
           [0.5 , 0.5 ]]))
    """
    if scores.ndim == 1 or scores.shape[1] == 1:
        p = scores.reshape(-1, 1)
        p = p if ((p >= 0) & (p <= 1)).all() else 1 / (1 + np.exp(-np.clip(p, -700, 700)))
        return np.hstack([1 - p, p])
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return scores
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
