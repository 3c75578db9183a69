"""Gradients beside central differences of the loss in float64.

The runtime has no float64 kernels of Conv, MaxPool and others, so the loss is computed by onnx's reference evaluator.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from acceptance.files.double import Reference, as_double
from ortpipe.graph.core.edit import open_initializers

WEIGHTS = 10
STEPS = 1e-6, 1e-7  # of the weight, or of 1
SMOOTH = 1e-3  # forward and backward differences are as close, relative to the gradients
DRAWS = 6  # weights of a parameter that are tried, where the loss has a kink at one


def slopes(
    loss: onnx.ModelProto,
    output: str,
    weights: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
    fed: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """Return the worst difference between gradients and (f(w + h) − f(w − h)) / 2h in float64.

    Of each parameter the weight with the largest gradient (of fewer than ten parameters several), or the next, where
    the loss has a kink: where forward and backward differences are not the same. `off` is relative to the larger of the
    two plus a hundredth of the largest gradient: below, the gradients' own rounding, of float32, is too large a part.

    Args:
        weights: the parameters, at most ten.
        gradients: of these parameters, as the runtime computes them.
        fed: inputs and label of one row or more.
    """
    doubled = {name: _double(array) for name, array in {**fed, **weights}.items()}
    opened = ir.from_proto(as_double(loss))
    open_initializers(opened, weights)
    model = ir.to_proto(opened)
    read = {i.name for i in model.graph.input}
    given = {name: array for name, array in doubled.items() if name in read}
    reference = Reference(model)

    def total(name: str, array: np.ndarray) -> float:
        return float(reference.run({**given, name: array}, output).item())

    many = -(-WEIGHTS // len(gradients))
    largest = max(float(np.abs(g).max()) for g in gradients.values())
    scale = 0.01 * largest
    first = next(iter(gradients))
    here = total(first, given[first])
    compared: list[dict[str, Any]] = []
    left = {
        name: list(np.argsort(-np.abs(g), axis=None, kind="stable")[: many * DRAWS]) for name, g in gradients.items()
    }
    found = Counter[str]()
    for most in (many, WEIGHTS):  # where one parameter gives too few, others give more
        for name, gradient in gradients.items():
            while left[name] and found[name] < most and len(compared) < WEIGHTS:
                place = tuple(int(i) for i in np.unravel_index(left[name].pop(0), gradient.shape))
                slope = _slope(lambda array, name=name: total(name, array), given[name], place, here, scale)
                if slope is not None:
                    ours = float(gradient[place])
                    off = abs(ours - slope) / (max(abs(ours), abs(slope)) + scale)
                    compared.append({"at": f"{name}{list(place)}", "gradient": ours, "slope": slope, "off": off})
                    found[name] += 1
    return {
        "off": max((c["off"] for c in compared), default=math.inf),
        "type": gradients[first].dtype.name,
        "weights": compared,
    }


def _slope(
    total: Callable[[np.ndarray], float], values: np.ndarray, place: tuple[int, ...], here: float, scale: float
) -> float | None:
    """Return the central difference where the loss is smooth."""
    for step in STEPS:
        sides, size = [], step * max(1.0, abs(float(values[place])))
        for moved in (size, -size):
            array = values.copy()
            array[place] += moved
            sides.append((total(array) - here) / float(array[place] - values[place]))
        if abs(sides[0] - sides[1]) <= SMOOTH * (max(map(abs, sides)) + scale):
            return sum(sides) / 2
    return None


def _double(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
