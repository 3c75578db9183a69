"""A user's model as the stages want it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import DeriveError, nearest
from ortpipe.graph import query
from ortpipe.graph.batch import name_batch
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import finish, parsed
from ortpipe.graph.compose import with_named_dimensions
from ortpipe.graph.lower import lowered
from ortpipe.stages.convert.standardize import standardize, without_zip_map
from ortpipe.stages.derive.walk import active


def prepared(onx: onnx.ModelProto, *, one_batch: bool = True) -> onnx.ModelProto:
    """Return a copy in an opset that the runtime loads, in standard operators, with named dimensions.

    With `one_batch` the rows of every input are N; without, nothing says that two nameless dimensions are equal.

    Raises:
        ModelError: the model is not valid, or has no form in such an opset.
    """
    plain, _ = without_zip_map(lowered(onx))
    model = parsed(plain if one_batch else with_named_dimensions(plain))
    standardize(model.graph)
    return finish(name_batch(model) if one_batch else model)


def artifact_of(model: onnx.ModelProto, parameters: Iterable[str], **facts: Any) -> Artifact:
    """Return a model as the stages take it, by default with all its inputs as data and all outputs but the loss."""
    graph = ir.from_proto(model).graph
    defaults = {
        "task": "regression",
        "inputs": tuple(str(v.name) for v in query.data_inputs(graph)),
        "outputs": (outputs := tuple(str(o.name) for o in graph.outputs if o.name != facts.get("loss"))),
        "prediction": outputs[0] if outputs else facts.get("loss"),
    }
    return Artifact(model, Facts(**{**defaults, **facts, "parameters": tuple(parameters)}))


def reaching(graph: ir.Graph, values: Iterable[ir.Value], outputs: Collection[ir.Value]) -> list[str]:
    """Return the names of the float values that one of the outputs depends on through floats."""
    return [str(v.name) for v in values if v.dtype in query.FLOATS and not active(graph, [v]).isdisjoint(outputs)]


def exact(names: Iterable[str], choices: Collection[str], kind: str) -> tuple[str, ...]:
    """Return these names, none of which is a pattern.

    Raises:
        DeriveError: one is not among the choices.
    """
    given = tuple(names)
    for name in given:
        if name not in choices:
            rule = f"A name of an {kind} is exact."
            raise DeriveError(rule, got=repr(name), fix=nearest(name, choices))
    return given


def as_one_element(model: ir.Model, loss: str) -> None:
    """Give a scalar loss the shape [1, 1] under which users of the originals read it."""
    scalar = query.value(model.graph, loss)
    op = Builder(model.graph, "loss")
    made = op.Reshape(scalar, op.const(np.array([1, 1])))
    made.type, made.shape = scalar.type, ir.Shape([1, 1])
    model.graph.outputs[model.graph.outputs.index(scalar)] = made
    op.rename(scalar, f"{loss}/scalar")
    made.name = loss
