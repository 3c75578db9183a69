"""An .onnx file without rows: its inputs with their roles, its outputs, random rows, and predictions of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.errors import ConvertError, ModelError, NoRowsError, under
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import attach
from ortpipe.graph.core.inference import parsed
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.protos import Weights
from ortpipe.graph.core.reach import uses_behind
from ortpipe.graph.files import serial
from ortpipe.graph.importing.batch import plain_dimensions
from ortpipe.graph.importing.lower import lowered
from ortpipe.graph.pictures.draw import type_of
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.dialects.standardize import check_trees, without_zip_map
from ortpipe.stages.convert.inspection.roles import UNREAD, Role, results_of, roles_of
from ortpipe.stages.convert.sources import OnnxFile
from ortpipe.stages.convert.stage import convert

COUNT = 6  # random rows
SIZES = (64, 16, 32, 96, 128, 224, 320, 512, 576, 640, 1024, 2048, 16000)  # tried for dimensions that are free
CHANNELS = 3
SAME = having("view", "layout")  # operators that keep indices


@dataclass(frozen=True)
class Examined:
    """An .onnx file.

    Attributes:
        path: the file itself.
        model: the file at an opset that the runtime loads.
        weights: its large weights.
        values: the inputs that must be fed.
        roles: the role of each of them, by name.
        outputs: the type of each output, by name.
        results: the float outputs; the first one is the likeliest prediction.
    """

    path: Path
    model: onnx.ModelProto
    weights: Weights
    values: Sequence[ir.Value]
    roles: Mapping[str, Role]
    outputs: Mapping[str, str]
    results: Sequence[str]

    @property
    def inputs(self) -> dict[str, str]:
        """The type of each input that must be fed, by name."""
        return {str(value.name): type_of(value) for value in self.values}

    @property
    def fixed(self) -> dict[str, Any]:
        """The value of each input that holds no data and that a node reads, for convert.source.fixed."""
        return {name: value for name, value in self._constants.items() if self.roles[name] is not UNREAD}

    @property
    def size(self) -> int | None:
        """The size of free dimensions in `rows`; None: only the number of rows is free."""
        first, other = (shapes_of(self.values, self._constants, size) for size in SIZES[:2])
        return None if first == other else self._ran[0]

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """Random rows of the inputs that hold data."""
        names = [name for name in self._rows[0] if name not in self._constants]
        return {name: np.concatenate([row[name] for row in self._rows]) for name in names}

    def prediction(self, output: str) -> np.ndarray:
        """Return an output of the file for each of `rows`: [N, …].

        Raises:
            ModelError: the file runs on rows of none of `SIZES`.
            ConvertError: the file does not load or run, and convert rejects it, as it does graph networks; or
                predictions are not finite.
        """
        results = [self._ran[1].run(row, [output])[0] for row in self._rows]
        if not all(np.isfinite(result).all() for result in results):
            raise ConvertError(
                "Random numbers must give finite predictions, so that a trial is possible.",
                got=f"nan or infinite values of {output!r}",
                fix="Train with rows of your own: the config of --config is not tried, and needs no change.",
            )
        axis = next((axis for axis, length in enumerate(results[0].shape) if length == 1), None)
        return np.stack(results if axis is None else [result.squeeze(axis) for result in results])

    @cached_property
    def _constants(self) -> dict[str, Any]:
        return {name: role.constant for name, role in self.roles.items() if role.constant is not None}

    @cached_property
    def _rows(self) -> list[dict[str, np.ndarray]]:
        """Random rows of all inputs, constants included."""
        return [feeds(self.values, self._constants, self._ran[0], seed) for seed in range(COUNT)]

    @cached_property
    def _ran(self) -> tuple[int, Session]:
        """The first of `SIZES` with which the file runs, and its session."""
        try:
            session, first = Session(self.model, weights=self.weights), None
        except ModelError as error:
            raise self.obstacle() or error from error
        for size in SIZES:
            try:
                session.run(feeds(self.values, self._constants, size, 0), [self.model.graph.output[0].name])
            except ModelError as error:
                first = first or error
            else:
                return size, session
        assert first is not None
        raise self.obstacle() or first

    def obstacle(self) -> ConvertError | None:
        """Return convert's reason to reject the file without rows; None if it has none, or needs rows to decide."""
        try:
            with under("convert"):
                convert(None, ConvertConfig(OnnxFile(str(self.path))))
        except NoRowsError:
            return None
        except ConvertError as reason:
            return reason
        return None


def examine(path: Path) -> Examined:
    """Return the inputs and outputs of an .onnx file with their roles.

    Raises:
        ConvertError: the file holds trees, and no weights.
        ModelError: the file is missing or damaged.
    """
    model, weights = serial.read_apart(path)
    check_trees(model)
    low, _ = without_zip_map(lowered(plain_dimensions(model), weights, []))
    file = parsed(low)
    attach(file, weights)
    graph = file.graph
    outputs = {str(value.name): type_of(value) for value in graph.outputs}
    return Examined(path, low, weights, query.data_inputs(graph), roles_of(graph), outputs, results_of(graph))


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
        numbers = rng.normal(scale=0.5, size=shape).astype(dtype)
        return np.abs(numbers) if len(shape) == 1 else numbers  # one per row is often a scale, or a time
    if (entries := entries_of(value)) is not None:
        return rng.integers(0, entries, shape).astype(dtype)
    return np.full(shape, longest if len(shape) == 1 else 1, dtype)


def entries_of(value: ir.Value) -> int | None:
    """Return the number of entries of the table that a Gather picks from by an input; None if no node does."""
    for node, place in uses_behind(value, SAME):
        if node.op_type == "Gather" and place == 1 and (table := query.constant(node.inputs[0])) is not None:
            return int(table.shape[node.attributes.get_int("axis", 0)])
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
