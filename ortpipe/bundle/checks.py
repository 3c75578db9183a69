"""Checks of a bundle's graphs: they run, agree with each other, and with ONNX's reference implementation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ortpipe.artifact import Arrays, Facts
from ortpipe.bundle.graphs import BundleGraphs
from ortpipe.bundle.reading import read_bundle, read_state, scalars_at
from ortpipe.errors import ModelError, TrainError
from ortpipe.graph import all_nodes, having
from ortpipe.runtime.session import Session

STEPS, ROWS = 3, 4
FREE = 8  # the size of a free dimension in random rows
MOST_REFERENCE = 2**22  # bytes of parameters up to which the reference, which is slow, computes a step, too
TOLERANCE = {"float32": 1e-3, "float64": 1e-9}
RANDOM = having("random")


def check(folder: Path, graphs: BundleGraphs, facts: Facts, example: Arrays) -> float:
    """Return the loss of some rows; raise TrainError if a written graph does not run, or if graphs differ.

    Three steps of `train` and `step`, from the state of state.bin, must agree with each other, and with the reference
    implementation where it is fast enough. Graphs that draw random numbers are only run.
    """
    models = {name: onnx.load(folder / f"{name}.onnx") for name in graphs.models}
    arrays = read_state(folder, read_bundle(folder))
    state = {name: arrays[name] for name in graphs.state}
    try:
        sessions = {name: Session(model) for name, model in models.items()}
        data = rows_of(graphs, facts, example)
        scalars = scalars_at(graphs.scalars, 0, STEPS)
        epoch = sessions["train"].run({**state, **data, **scalars})
        feeds = [{n: np.asarray(a[place]) for n, a in (*data.items(), *scalars.items())} for place in range(STEPS)]
        steps = _steps(sessions["step"].run, state, feeds)
        [loss] = sessions["validate"].run(_of_rows(graphs, state, data))
    except ModelError as error:
        rule, fix = (
            "The graphs of a bundle must run.",
            "Train it with ortpipe first; report this if it trains.",
        )
        raise TrainError(rule, got=str(error.got), fix=fix) from error
    if any(node.op_type in RANDOM for node in all_nodes(models["step"].graph)):
        return float(loss)
    _compare("step", steps, epoch)
    if state[graphs.weights[0]].nbytes <= MOST_REFERENCE:
        # The reference lacks some operators, and warns of overflows that the graphs expect.
        with contextlib.suppress(NotImplementedError, RuntimeError), np.errstate(all="ignore"):
            reference = ReferenceEvaluator(models["step"])
            _compare("the reference of ONNX", _steps(lambda fed: reference.run(None, dict(fed)), state, feeds), epoch)
    return float(loss)


def loss_of_rows(graphs: BundleGraphs, facts: Facts, example: Arrays) -> float:
    """Return the loss of the rows that `check` uses."""
    [loss] = Session(graphs.models["validate"]).run(_of_rows(graphs, graphs.state, rows_of(graphs, facts, example)))
    return float(loss)


def _of_rows(graphs: BundleGraphs, state: Arrays, data: Arrays) -> dict[str, np.ndarray]:
    """Return the inputs of `validate` for the first batch."""
    return {**{name: state[name] for name in graphs.weights}, **{name: array[0] for name, array in data.items()}}


def _steps(run: Callable[[Arrays], Sequence[np.ndarray]], state: Arrays, feeds: Sequence[Arrays]) -> list[np.ndarray]:
    """Return the state and the losses after some steps, each in one call."""
    values, losses = [*state.values()], []
    for fed in feeds:
        *values, loss = run({**dict(zip(state, values, strict=True)), **fed})
        losses.append(loss)
    return [*values, np.array(losses)]


def _compare(name: str, actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for one, other in zip(actual, expected, strict=True):
        tolerance = TOLERANCE.get(other.dtype.name, 1e-2)
        scale = max(1.0, float(np.abs(other).max(initial=0)))
        difference = float(np.abs(one.astype(np.float64) - other).max(initial=0))
        if not difference <= tolerance * scale:
            rule, fix = "The graphs of a bundle must agree.", "Report this, with the model."
            raise TrainError(rule, got=f"{name} differs from train by {difference:.2g} after {STEPS} steps", fix=fix)


def rows_of(graphs: BundleGraphs, facts: Facts, example: Arrays, batch: int = ROWS) -> dict[str, np.ndarray]:
    """Return rows of every input of the epoch, [STEPS, batch, …]: those of the example, or random ones, and labels."""
    rng, rows = np.random.default_rng(0), dict[str, np.ndarray]()
    declared = {value.name: value.type.tensor_type for value in graphs.models["step"].graph.input}
    for name in graphs.rows:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(declared[name].elem_type))
        sizes = [d.dim_value or FREE for d in declared[name].shape.dim][1:]
        count = STEPS * batch
        if name in example:
            array = np.resize(example[name], (count, *example[name].shape[1:]))
        elif name == facts.label and dtype.kind in "iu":
            array = rng.integers(0, len(facts.classes or (0, 1)), (count, *sizes))
        else:
            array = rng.random((count, *sizes)) if dtype.kind == "f" else rng.integers(0, 2, (count, *sizes))
            array = array.astype(str) if dtype.kind == "O" else array
        rows[name] = array.astype(dtype).reshape(STEPS, batch, *array.shape[1:])
    return rows
