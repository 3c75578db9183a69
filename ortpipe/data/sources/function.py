"""Rows that a function of the user's own makes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.data.rows import Rows
from ortpipe.data.table import TableSource, lay_out
from ortpipe.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from ortpipe.data.config import SplitConfig


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
                made = function(**self.params)
            except Exception as error:
                raise DataError(
                    "data.source.function must return rows.",
                    got=f"{self.function} raised {type(error).__name__}: {error}",
                    fix="Correct the function or data.source.params.",
                ) from error
        rows = self._rows(made, split.column if split else None)
        return dataclasses.replace(rows, origin=origin)

    def _function(self) -> Callable[..., Any]:
        module, name = self._name
        try:
            found = importlib.import_module(module)
        except Exception as error:
            raise DataError(
                "The module of data.source.function must be importable.",
                got=f"{module}: {type(error).__name__}: {error}",
                fix="Install it, or run where it lies in the working folder.",
            ) from error
        function = getattr(found, name, None)
        if not callable(function):
            names = [n for n, value in vars(found).items() if callable(value) and not n.startswith("_")]
            what = "not there" if function is None else f"a {type(function).__name__}"
            raise DataError(
                "data.source.function must be a function of its module.",
                got=f"{module}:{name}, which is {what}",
                fix=nearest(name, names),
            )
        return function

    def _rows(self, made: Any, column: str | None) -> Rows:
        import numpy as np

        if isinstance(made, Rows):
            return made
        if isinstance(made, tuple) and len(made) in (2, 3):
            weight = np.asarray(made[2]) if len(made) == 3 else None
            return Rows({"X": np.asarray(made[0])}, np.asarray(made[1]), weight)
        if isinstance(made, Mapping):
            return self._arrays({str(name): np.asarray(array) for name, array in made.items()}, column)
        if hasattr(made, "iloc") or hasattr(made, "__arrow_c_stream__"):
            return self._table(made, column)
        raise DataError(
            "data.source.function must return Rows, a pair (X, y), a dict of arrays or a table.",
            got=f"{self.function} returned a {type(made).__name__}",
            fix="Return one of them.",
        )

    def _arrays(self, arrays: dict[str, Any], column: str | None) -> Rows:
        from ortpipe.data.arrays import ArraySet, rows_of

        if not isinstance(self.label, str):
            raise ConfigError("The labels of a dict of arrays are one array.", got=self.label, fix="Name one.")
        made = rows_of([ArraySet(self.function, arrays, None)], self.label, self.sample_weight, column, stream=False)
        assert isinstance(made, Rows)
        return made

    def _table(self, made: Any, column: str | None) -> Rows:
        import pyarrow as pa

        from ortpipe.data.stream import Stream
        from ortpipe.data.table_reader import Group, TableReader

        try:
            table = pa.Table.from_pandas(made, preserve_index=False) if hasattr(made, "iloc") else pa.table(made)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(
                "Every column of a table holds values of one type.",
                got=f"{self.function} returned a table with {'; '.join(map(str, error.args))}",
                fix="Make each column numbers, text or truth values.",
            ) from error
        layout = lay_out(self, {self.function: table.schema}, column)
        return Stream(TableReader(layout, [Group(self.function, 0, None, table.to_batches)])).rows()


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
