"""An .onnx file without rows: its inputs with their roles, its outputs, and predictions of random rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from ortpipe.graph.core.protos import Weights
from ortpipe.graph.files import serial
from ortpipe.graph.importing.batch import plain_dimensions
from ortpipe.graph.importing.lower import lowered
from ortpipe.graph.pictures.draw import type_of
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.dialects.standardize import without_zip_map
from ortpipe.stages.convert.inspection.roles import UNREAD, Role, results_of, roles_of
from ortpipe.stages.convert.inspection.rows import SIZES, feeds, shapes_of
from ortpipe.stages.convert.sources import OnnxFile
from ortpipe.stages.convert.stage import convert

COUNT = 6  # random rows


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
            ConvertError: the file does not load, and convert rejects it, as it does trees.
        """
        results = [self._ran[1].run(row, [output])[0] for row in self._rows]
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
        raise first

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
        ModelError: the file is missing or damaged.
    """
    model, weights = serial.read_apart(path)
    low, _ = without_zip_map(lowered(plain_dimensions(model), weights, []))
    file = parsed(low)
    attach(file, weights)
    graph = file.graph
    outputs = {str(value.name): type_of(value) for value in graph.outputs}
    return Examined(path, low, weights, query.data_inputs(graph), roles_of(graph), outputs, results_of(graph))
