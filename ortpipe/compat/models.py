"""A user's model as the stages want it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.errors import DeriveError, nearest
from ortpipe.graph import query
from ortpipe.graph.batch import name_batch
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import finish, parsed
from ortpipe.graph.serial import lowered
from ortpipe.stages.convert.standardize import standardize


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in an opset that the runtime loads, in standard operators, its batch dimension named N.

    Raises:
        ModelError: the model is not valid, or has no form in such an opset.
    """
    own = parsed(lowered(model))
    standardize(own.graph)
    return finish(name_batch(own))


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
