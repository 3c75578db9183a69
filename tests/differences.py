"""The numerical checker that every gradient is held against."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph.core.edit import open_initializers
from ortpipe.runtime.session import Session


def parameters(model):
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def central_differences(model, output, feeds, name, step=1e-5):
    """Return (f(v + h) − f(v − h)) / 2h for every entry of the input or initializer `name`."""
    return slopes(model, output, feeds, [name], step)[name]


def slopes(model, output, feeds, names, step=1e-5):
    """Return the same of several inputs or initializers, by name."""
    opened = ir.from_proto(model)
    open_initializers(opened, {*names, *feeds})
    session, held = Session(ir.to_proto(opened)), {**parameters(model), **feeds}
    return {name: _slope(session, output, feeds, name, np.array(held[name]), step) for name in names}


def _slope(session, output, feeds, name, value, step):
    gradient = np.zeros(value.shape)
    for place in np.ndindex(value.shape):
        moved = []
        for sign in (1, -1):
            other = value.copy()
            other[place] += sign * step
            [y] = session.run({**feeds, name: other}, [output])
            moved.append(y.item())
        gradient[place] = (moved[0] - moved[1]) / (2 * step)
    return gradient
