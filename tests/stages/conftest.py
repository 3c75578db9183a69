"""What the tests of the stages share: artifacts written as ONNX text, central differences, real rows."""

from __future__ import annotations

import re

import differences
import numpy as np
import onnx
import onnx.parser
import pytest
from sklearn import datasets

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split
from ortpipe.graph.core.check import checked
from ortpipe.runtime.session import Session


def _from_text(text, *, dtype="float32", outputs=None, **facts):
    """Return a forward artifact of a graph in ONNX text; `float` becomes `double` for float64."""
    if dtype != "float32":
        text = re.sub(r"\bfloat\b", {"float64": "double", "float16": "float16"}[dtype], text)
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


def _run(model, feeds, outputs=None):
    session = Session(model)
    names = session.outputs if outputs is None else outputs
    return dict(zip(names, session.run(feeds, names), strict=True))


@pytest.fixture(scope="session")
def from_text():
    return _from_text


@pytest.fixture(scope="session")
def parameters_of():
    return differences.parameters


@pytest.fixture(scope="session")
def central_differences():
    return differences.central_differences


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
