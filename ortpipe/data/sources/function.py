"""Rows that a function of the user's own makes."""

import contextlib
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ortpipe.data.arrays import ArrayReader, ArraySet
from ortpipe.data.config import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.schema import lay_out
from ortpipe.data.stream import Stream
from ortpipe.data.table import TableSource
from ortpipe.data.table_reader import Group, TableReader
from ortpipe.errors import ConfigError, DataError, nearest


@dataclass(frozen=True, kw_only=True)
class Function(TableSource):
    """A function by import path, called with `params`; modules in the working folder are found.

    It returns `Rows`, a pair (X, y), a dict of arrays (`label` and `sample_weight` name theirs), or a table of pandas,
    Polars or PyArrow, of which label, sample_weight, inputs and encode say what its columns are.

    Attributes:
        function: `module:function` or `module.function`.
        params: its keywords.
    """

    function: str
    params: Mapping[str, Any] = field(default_factory=dict)
    label: str | tuple[str, ...] = "y"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(self._name):
            raise ConfigError(
                "{key} must be the import path of a function.",
                key="function",
                got=repr(self.function),
                fix="Write module:function.",
            )

    @property
    def _name(self) -> tuple[str, str]:
        module, _, name = self.function.partition(":") if ":" in self.function else self.function.rpartition(".")
        return module, name

    def __call__(self, split: SplitConfig | None = None) -> Rows:
        """Call the function; the digest of its rows covers the file that it is written in."""
        with _working_folder_first():
            function = self._function()
            origin = _source_digest(function)
            try:
                returned = function(**self.params)
            except Exception as error:
                raise DataError(
                    "data.source.function must return rows.",
                    got=f"{self.function} raised {type(error).__name__}: {error}",
                    fix="Correct the function or data.source.params.",
                ) from error
        rows = self._rows(returned, split.column if split else None)
        return rows.replace(origin=origin)

    def _function(self) -> Callable[..., Any]:
        module, name = self._name
        try:
            imported = importlib.import_module(module)
        except Exception as error:
            raise DataError(
                "The module of data.source.function must be importable.",
                got=f"{module}: {type(error).__name__}: {error}",
                fix="Install it, or run where it lies in the working folder.",
            ) from error
        function = getattr(imported, name, None)
        if not callable(function):
            names = [n for n, value in vars(imported).items() if callable(value) and not n.startswith("_")]
            what = "not there" if function is None else f"a {type(function).__name__}"
            raise DataError(
                "data.source.function must be a function of its module.",
                got=f"{module}:{name}, which is {what}",
                fix=nearest(name, names),
            )
        return function

    def _rows(self, returned: Any, column: str | None) -> Rows:
        if isinstance(returned, Rows):
            return returned
        if isinstance(returned, tuple) and len(returned) in (2, 3):
            weight = np.asarray(returned[2]) if len(returned) == 3 else None
            return Rows({"X": np.asarray(returned[0])}, np.asarray(returned[1]), weight)
        if isinstance(returned, Mapping):
            return self._arrays({str(name): np.asarray(array) for name, array in returned.items()}, column)
        if hasattr(returned, "iloc") or hasattr(returned, "__arrow_c_stream__"):
            return self._table(returned, column)
        raise DataError(
            "data.source.function must return Rows, a pair (X, y), a dict of arrays or a table.",
            got=f"{self.function} returned a {type(returned).__name__}",
            fix="Return one of them.",
        )

    def _arrays(self, arrays: dict[str, Any], column: str | None) -> Rows:
        if not isinstance(self.label, str):
            raise ConfigError("The labels of a dict of arrays are one array.", got=self.label, fix="Name one.")
        reader = ArrayReader([ArraySet(self.function, arrays, None)], self.label, self.sample_weight, column)
        return Stream(reader, window=None).rows()

    def _table(self, frame: Any, column: str | None) -> Rows:
        import pyarrow as pa

        try:
            table = pa.Table.from_pandas(frame, preserve_index=False) if hasattr(frame, "iloc") else pa.table(frame)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(
                "Every column of a table holds values of one type.",
                got=f"{self.function} returned a table with {'; '.join(map(str, error.args))}",
                fix="Make each column numbers, text or truth values.",
            ) from error
        layout = lay_out(self, {self.function: table.schema}, column)
        return Stream(TableReader(layout, [Group(self.function, 0, None, table.to_batches)]), window=None).rows()


@contextlib.contextmanager
def _working_folder_first() -> Iterator[None]:
    """Find modules of the working folder, those too that a function imports only when it is called."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def _source_digest(function: Callable[..., Any]) -> str:
    """Return the sha256 (hex) of the file that a function is written in; of nothing where it has none."""
    try:
        content = Path(inspect.getfile(function)).read_bytes()
    except (TypeError, OSError):
        content = b""
    return hashlib.sha256(content).hexdigest()
