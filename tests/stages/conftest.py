"""What the tests of the stages share: artifacts written as ONNX text, central differences, real rows."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.parser
import pytest
from sklearn import datasets

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.config import SplitConfig
from ortpipe.data.rows import Rows, split
from ortpipe.graph.check import checked
from ortpipe.runtime.session import Session


def _from_text(text, *, dtype="float32", outputs=None, **facts):
    """Return a forward artifact of a graph in ONNX text; `float` becomes `double` for float64."""
    if dtype == "float64":
        text = re.sub(r"\bfloat\b", "double", text)
    model = checked(onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text))
    graph = model.graph
    values = {t.name for t in graph.initializer}
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    known = {
        "task": "regression",
        "inputs": tuple(i.name for i in graph.input if i.name not in values),
        "outputs": tuple(o.name for o in graph.output),
        "prediction": graph.output[0].name,
        "parameters": tuple(t.name for t in graph.initializer if t.dims and t.data_type in floats),
    }
    return Artifact(model, Facts(**{**known, **facts}))


def _parameters(model):
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def _opened(model, names):
    """Return the model with these initializers as inputs too, so that other values can be fed."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    present = {i.name for i in own.graph.input}
    for tensor in own.graph.initializer:
        if tensor.name in names and tensor.name not in present:
            own.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return own


def _central_differences(model, output, feeds, name, step=1e-5):
    """Return (f(v + h) − f(v − h)) / 2h for every entry of the input or initializer `name`."""
    session = Session(_opened(model, {name}))
    value = np.array(feeds[name] if name in feeds else _parameters(model)[name])
    gradient = np.zeros(value.shape)
    for place in np.ndindex(value.shape):
        moved = []
        for sign in (1, -1):
            other = value.copy()
            other[place] += sign * step
            [y] = session.run({**feeds, name: other}, [output])
            moved.append(float(y))
        gradient[place] = (moved[0] - moved[1]) / (2 * step)
    return gradient


def _run(model, feeds, outputs=None):
    session = Session(model)
    names = session.outputs if outputs is None else outputs
    return dict(zip(names, session.run(feeds, names), strict=True))


@pytest.fixture(scope="session")
def from_text():
    return _from_text


@pytest.fixture(scope="session")
def parameters_of():
    return _parameters


@pytest.fixture(scope="session")
def central_differences():
    return _central_differences


@pytest.fixture(scope="session")
def run():
    return _run


@pytest.fixture(scope="session")
def diabetes():
    bunch = datasets.load_diabetes()
    index = np.arange(90)
    features = (bunch.data / bunch.data.std(axis=0))[index]
    target = (bunch.target / 100)[index]
    return split(Rows({"X": features}, target), SplitConfig(test=0.2, validation=0.2))


@pytest.fixture(scope="session")
def breast_cancer():
    bunch = datasets.load_breast_cancer()
    rows = Rows({"X": bunch.data[:120]}, bunch.target_names[bunch.target[:120]])
    return split(rows, SplitConfig(test=0.25, stratify=True))


@pytest.fixture(scope="session")
def iris():
    bunch = datasets.load_iris()
    return split(Rows({"X": bunch.data}, bunch.target_names[bunch.target]), SplitConfig(test=0.25, validation=0.2))


@pytest.fixture(scope="session")
def linnerud():
    bunch = datasets.load_linnerud()
    scaled = (bunch.data - bunch.data.mean(axis=0)) / bunch.data.std(axis=0)
    return split(Rows({"X": scaled}, bunch.target / 100), SplitConfig(test=0.25))
