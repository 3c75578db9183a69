"""Derived gradients beside central finite differences of the loss, on a few rows and a few entries."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data
from ortpipe.errors import DeriveError
from ortpipe.graph.core.edit import keep_outputs, open_initializers
from ortpipe.graph.core.operators import having
from ortpipe.graph.forms.modes import is_random
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.stage import Seeded

ROWS, LARGEST, DRAWN = 8, 4, 4
STEPS = having("rounds")
CLOSE = 0.02  # of the larger one
Run = Callable[[Arrays], list[np.ndarray]]
ROUNDING = 16.0  # of the loss, or of values of size 1 inside it


def part_of(artifact: Artifact, model: ir.Model) -> Artifact:
    """Return the part of a model, which derive has changed, that computes the outputs of an artifact."""
    copy = model.clone()
    keep_outputs(copy, [value.name for value in artifact.signature.graph.output])
    return Artifact(copy, artifact.facts)


def compare(loss: Artifact, derived: Artifact, target: Seeded, data: Data | None) -> None:
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
    rows = feeds(loss.model, loss.facts, data.train.head(ROWS))
    gradients = {**derived.facts.gradients, **derived.facts.input_gradients}
    values = {name: array for name, array in loss.initializers.items() if name in gradients}
    open_initializers(opened, values)
    forward, read = Session(ir.to_proto(opened)), {i.name for i in loss.signature.graph.input} | values.keys()

    def run(arrays: Arrays) -> list[np.ndarray]:
        return forward.run({name: array for name, array in arrays.items() if name in read}, target.outputs)

    arrays, rng = {**rows, **values}, np.random.default_rng(0)
    seeds = {seed: np.ones_like(y) for seed, y in zip(target.seeds.values(), run(arrays), strict=False)}
    for name, gradient in _computed(derived, gradients, {**rows, **seeds}).items():
        largest = np.argsort(-np.abs(gradient), axis=None, kind="stable")[:LARGEST]
        for flat in (*largest, *rng.permutation(gradient.size)[:DRAWN]):
            place = tuple(int(i) for i in np.unravel_index(flat, gradient.shape))
            if (slope := _other_slope(run, arrays, name, place, gradient[place])) is not None:
                raise DeriveError(
                    "A derived gradient is the slope of the loss ({at}check).",
                    got=f"{name}{list(place)}: derived {gradient[place]:.6g}, central difference {slope:.6g}",
                    fix=_way_out(opened),
                )


def _computed(derived: Artifact, names: Mapping[str, str], arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the derived gradients by parameter or input."""
    inputs = {i.name for i in derived.signature.graph.input} - derived.initializers.keys()
    fed = {name: array for name, array in arrays.items() if name in inputs}
    return dict(zip(names, Session(derived.model).run(fed, list(names.values())), strict=True))


def _other_slope(run: Run, arrays: Arrays, name: str, place: tuple[int, ...], gradient: float) -> float | None:
    """Return the central difference of the widest step if that of no step agrees with a gradient, else None."""

    def total(results: Sequence[np.ndarray]) -> float:
        return sum(float(y.astype(np.float64).sum()) for y in results)

    array, slopes, results = arrays[name], list[float](), run(arrays)
    rounding = ROUNDING * float(np.finfo(results[0].dtype).eps) * max(1.0, abs(total(results)))
    widest = float(np.cbrt(np.finfo(array.dtype).eps)) * max(1.0, abs(float(array[place])))
    for step in (widest, widest / 4, widest / 16):
        moves = np.zeros_like(array)
        moves[place] = step
        above, below = (total(run({**arrays, name: moved})) for moved in (array + moves, array - moves))
        slopes.append((above - below) / (2 * step))
        if abs(gradient - slopes[-1]) <= CLOSE * max(abs(gradient), abs(slopes[-1])) + rounding / step:
            return None
    return slopes[0]


def _way_out(model: ir.Model) -> str:
    rounds = next((node.outputs[0].name for node in model.graph.all_nodes() if node.op_type in STEPS), None)
    if rounds is None:
        return "Choose the other engine (derive=native or derive=ort), or freeze what is in front of it."
    return (
        f"{rounds!r} rounds: a step has no slope, and gradients pass as if it were none. To check those of a quantized "
        "file set {@convert.source.quantized}=float, or leave out {@convert.quantize}; {at}check=false trains it so."
    )
