"""An .onnx model as a teacher: the values or the shares of classes that it predicts for rows."""

from pathlib import Path

import numpy as np
import onnx

from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Rows
from ortpipe.errors import ModelError
from ortpipe.facts import Facts
from ortpipe.facts_json import read_facts, read_metadata
from ortpipe.graph.files.serial import read_apart
from ortpipe.metrics.predictions import predicted
from ortpipe.runtime.session import Session

FLOATS = [onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16]


class OnnxRegressor:
    """A model whose prediction is a value or several per row; its inputs are those of the rows, by name.

    Facts in the file's metadata give values the label's form: a model of log μ teaches μ.

    Args:
        path: the file.
        output: the prediction; by default that of a model of ortpipe, or the only output of floats.

    Raises:
        ModelError: the file names no such output, or says that it predicts something else than the label.
    """

    reads_rows = True
    kinds: tuple[str, ...] = ("regression",)

    def __init__(self, path: str, output: str | None = None) -> None:
        self._model, weights = read_apart(Path(path))
        written = read_metadata(self._model)
        of_file = read_facts(written).predictions.values() if "prediction" in written else ()
        name = self._output_of(output or written.get("prediction"))
        self._facts = next((facts for facts in of_file if facts.prediction == name), None)
        if self._facts is not None and self._facts.measured_as not in self.kinds:
            rule = f"An {type(self).__name__} must be a model of these kinds: {', '.join(self.kinds)}."
            got, fix = f"output {name!r} of kind {self._facts.measured_as}", "Choose a model that predicts the label."
            raise ModelError(rule, got=got, fix=fix)
        stored = {tensor.name for tensor in self._model.graph.initializer}
        inputs = tuple(entry.name for entry in self._model.graph.input if entry.name not in stored)
        self._read = self._facts or Facts("regression", inputs, (name,), name, ())
        self._session = Session(self._model, weights=weights)

    def predict(self, rows: Rows) -> np.ndarray:
        """Return the values [N, …] for rows, float64."""
        return predicted(self._read, self._outputs(rows))[0]

    def _outputs(self, rows: Rows) -> np.ndarray:
        feeds = (feed_inputs(self._model, self._read, piece) for piece in rows.pieces())
        return np.concatenate([self._session.predict(feed, [self._read.prediction])[0] for feed in feeds])

    def _output_of(self, name: str | None) -> str:
        floats = [o.name for o in self._model.graph.output if o.type.tensor_type.elem_type in FLOATS]
        name = name or (floats[0] if len(floats) == 1 else None)
        if name not in floats:
            fix = f"Set {{at}}params.output to one of {', '.join(floats) or 'none'}."
            raise ModelError("A teacher must have one output of floats, or name it.", got=name, fix=fix)
        return str(name)


class OnnxClassifier(OnnxRegressor):
    """A model whose output has a column per class, or one for two classes: probabilities, or else scores.

    A model of ortpipe knows its classes, and whether it predicts scores. The classes of other models are the labels'
    classes in ascending order.
    """

    kinds = ("binary", "multiclass")

    def __init__(self, path: str, output: str | None = None) -> None:
        super().__init__(path, output)
        if self._facts is not None and self._facts.classes:
            self.classes_ = np.array(self._facts.classes)

    def predict_proba(self, rows: Rows) -> np.ndarray:
        """Return the shares of classes [N, K]."""
        outputs = self._outputs(rows)
        if self._facts is None:
            return shares(outputs.astype(np.float64))
        return np.asarray(predicted(self._facts, outputs)[1])


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
