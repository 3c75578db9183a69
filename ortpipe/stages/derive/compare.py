"""Derived gradients beside central finite differences of the loss, on a few rows and a few entries."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Artifact
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data
from ortpipe.errors import DeriveError
from ortpipe.graph.core.edit import open_initializers
from ortpipe.graph.core.operators import having
from ortpipe.graph.forms.modes import is_random
from ortpipe.runtime.session import Session

ROWS, LARGEST, DRAWN = 8, 4, 4
STEPS = having("rounds")
CLOSE = 0.02  # of the larger one
ROUNDING = 16.0  # of the loss, or of values of size 1 inside it


def compare(loss: Artifact, derived: Artifact, outputs: Sequence[str], seeds: Sequence[str], data: Data | None) -> None:
    """Raise where a derived gradient is not (f(w + h) − f(w − h)) / 2h, f being the loss or the sum of the outputs.

    On the first 8 training rows and 8 entries of each parameter and differentiated input: 4 with the largest
    gradients, 4 drawn with seed 0. Three steps h are tried, for the sake of kinks: ∛ε · max(1, |w|) with the type's
    ε, a quarter and a sixteenth of it. Values agree when they differ by less than 2 % and sixteen roundings,
    16 · ε · max(1, |f|) / h; a float64 model (convert.dtype) leaves the least to those.

    Raises:
        DeriveError: names the parameter, its entry, and both values; or there are no rows, or the graph draws.
    """
    opened = loss.ir_model()
    if data is None or is_random(opened):
        raise DeriveError(
            "{at}check compares gradients on rows, for a graph that gives the same loss twice.",
            got="no rows" if data is None else "a graph that draws at random (Dropout in training mode)",
            fix="Give data, or set {at}check=false.",
        )
    model = loss.model
    rows = feeds(model, loss.facts, data.train.head(ROWS))
    gradients = {**derived.facts.gradients, **derived.facts.input_gradients}
    values = {name: array for name, array in loss.initializers.items() if name in gradients}
    open_initializers(opened, values)
    forward = Session(ir.to_proto(opened))
    read = {i.name for i in model.graph.input} | values.keys()

    def total(arrays: Mapping[str, np.ndarray]) -> float:
        computed = forward.run({name: array for name, array in arrays.items() if name in read}, outputs)
        return sum(float(y.astype(np.float64).sum()) for y in computed)

    arrays = {**rows, **values}
    ys = forward.run({name: array for name, array in arrays.items() if name in read}, outputs)
    gradient_model = derived.model
    graph_inputs = {i.name for i in gradient_model.graph.input} - derived.initializers.keys()
    fed = {name: array for name, array in rows.items() if name in graph_inputs}
    fed |= {seed: np.ones_like(y) for seed, y in zip(seeds, ys, strict=False) if seed in graph_inputs}
    computed = dict(zip(gradients, Session(gradient_model).run(fed, list(gradients.values())), strict=True))
    rng, size = np.random.default_rng(0), max(1.0, abs(total(arrays)))
    for name, gradient in computed.items():
        array = arrays[name]
        largest = np.argsort(-np.abs(gradient), axis=None, kind="stable")[:LARGEST]
        for flat in (*largest, *rng.permutation(gradient.size)[:DRAWN]):
            place = tuple(int(i) for i in np.unravel_index(flat, gradient.shape))
            slopes, widest = [], float(np.cbrt(np.finfo(array.dtype).eps)) * max(1.0, abs(float(array[place])))
            for step in (widest, widest / 4, widest / 16):
                moves = np.zeros_like(array)
                moves[place] = step
                slopes.append(
                    (total({**arrays, name: array + moves}) - total({**arrays, name: array - moves})) / (2 * step)
                )
                noise = ROUNDING * float(np.finfo(ys[0].dtype).eps) * size / step
                if abs(gradient[place] - slopes[-1]) <= CLOSE * max(abs(gradient[place]), abs(slopes[-1])) + noise:
                    break
            else:
                raise DeriveError(
                    "A derived gradient is the slope of the loss ({at}check).",
                    got=f"{name}{list(place)}: derived {gradient[place]:.6g}, central difference {slopes[0]:.6g}",
                    fix=_way_out(opened),
                )


def _way_out(model: ir.Model) -> str:
    rounds = next((node.outputs[0].name for node in model.graph.all_nodes() if node.op_type in STEPS), None)
    if rounds is None:
        return "Choose the other engine (derive=native or derive=ort), or freeze what is in front of it."
    return (
        f"{rounds!r} rounds: a step has no slope, and gradients pass as if it were none. To check those of a quantized "
        "file set {@convert.source.quantized}=float, or leave out {@convert.quantize}; {at}check=false trains it so."
    )
