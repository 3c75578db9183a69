"""Random rows that fit the inputs of a file, and labels that fit its prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.operators import having

SIZES = (64, 16, 32, 96, 128, 224, 320, 512, 576, 640, 1024, 2048, 16000)  # tried for dimensions that are free
CHANNELS = 3
SAME = having("view", "layout")  # operators that keep indices


def feeds(inputs: Sequence[ir.Value], constants: Mapping[str, Any], size: int, seed: int) -> dict[str, np.ndarray]:
    """Return one row for each input, with a size for its free dimensions."""
    rng = np.random.default_rng(seed)
    shapes = shapes_of(inputs, constants, size)
    longest = max((dim for shape in shapes.values() for dim in shape[1:2]), default=1)
    return {
        str(v.name): np.full(shapes[str(v.name)], constants[str(v.name)], _dtype(v))
        if v.name in constants
        else _values(v, shapes[str(v.name)], longest, rng)
        for v in inputs
    }


def shapes_of(inputs: Sequence[ir.Value], constants: Mapping[str, Any], size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of one row of each input; free dimensions of constants are 1."""
    return {str(v.name): tuple(_dims(v, 1 if v.name in constants else size)) for v in inputs}


def _dims(value: ir.Value, size: int) -> Iterator[int]:
    dims = query.sizes(value)
    for axis, dim in enumerate([None, None] if dims is None else dims):
        is_channel = axis == 1 and dims is not None and len(dims) == 4 and dims[3] not in (1, 3)  # of images
        yield dim if dim else 1 if axis == 0 else CHANNELS if is_channel else size


def _dtype(value: ir.Value) -> Any:
    return np.str_ if value.dtype == ir.DataType.STRING else value.dtype.numpy() if value.dtype else np.float32


def _values(value: ir.Value, shape: tuple[int, ...], longest: int, rng: np.random.Generator) -> np.ndarray:
    """Return random numbers; indices of a table of weights are below its length, lengths the longest one, masks 1."""
    dtype = np.dtype(_dtype(value))
    if dtype.kind == "U":
        return np.full(shape, "word")
    if dtype.kind == "f":
        return rng.normal(scale=0.5, size=shape).astype(dtype)
    if (entries := entries_of(value)) is not None:
        return rng.integers(0, entries, shape).astype(dtype)
    return np.full(shape, longest if len(shape) == 1 else 1, dtype)


def entries_of(value: ir.Value) -> int | None:
    """Return the number of entries of the table that a Gather picks from by an input; None if no node does."""
    for node, place in value.uses():
        if node.op_type == "Gather" and place == 1 and (table := query.constant(node.inputs[0])) is not None:
            return int(table.shape[node.attributes.get_int("axis", 0)])
        if place == 0 and node.op_type in SAME and (entries := entries_of(node.outputs[0])) is not None:
            return entries
    return None


def labels_of(prediction: np.ndarray) -> list[tuple[np.ndarray, dict[str, Any]]]:
    """Return labels of each kind that predictions [N, …] may have, the likeliest first, with their settings."""
    shape, rng = prediction.shape, np.random.default_rng(0)
    numbers = prediction + rng.normal(scale=0.1, size=shape).astype(prediction.dtype)
    axes = [axis for axis in range(len(shape) - 1, 0, -1) if shape[axis] > 1]
    axes = [axis for axis in axes if np.allclose(prediction.sum(axis=axis), 1, atol=1e-3)] or axes[:1]
    classes = [_indices(np.delete(shape, axis), shape[axis]) for axis in axes]
    is_share = prediction.min() >= 0 and prediction.max() <= 1
    kinds = [*classes, _indices(shape, 2), numbers] if is_share else [numbers, *classes]
    return [*((labels, {}) for labels in kinds), (numbers, {"task": "regression"})]


def _indices(shape: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    """Return 0 to `count` − 1 in turn, so that every part of the rows has several."""
    return (np.arange(np.prod(shape)) % count).reshape(shape)
