"""Rows from a user's function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortpipe import own_code
from ortpipe.data.arrays import ArrayReader, ArraySet
from ortpipe.data.frames import arrow_table
from ortpipe.data.groups import group_of
from ortpipe.data.parts import SplitConfig
from ortpipe.data.reader import Reader
from ortpipe.data.rows import Rows
from ortpipe.data.stream import Stream
from ortpipe.data.table import TableSource
from ortpipe.data.table_reader import TableReader
from ortpipe.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class Function(TableSource):
    """A function by import path, called with `params`; it may be in a module of the working folder.

    It returns `Rows`, a pair (X, y), a dict of arrays (`label` and `sample_weight` name two of them), or a table of
    pandas, Polars or PyArrow, whose columns label, sample_weight and inputs describe.

    Attributes:
        function: `module:function` or `module.function`.
        params: its keyword arguments.
    """

    function: str
    params: Mapping[str, Any] = field(default_factory=dict)
    label: str | tuple[str, ...] = "y"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(self._name):
            rule, fix = "{key} must be the import path of a function.", "Write module:function."
            raise ConfigError(rule, key="function", got=repr(self.function), fix=fix)

    @property
    def _name(self) -> tuple[str, str]:
        module, _, name = self.function.partition(":") if ":" in self.function else self.function.rpartition(".")
        return module, name

    def __call__(self, split: SplitConfig | None = None) -> Rows:
        """Call the function; the digest of its rows covers the function's file."""
        with own_code.working_folder_first():
            function = own_code.load(":".join(self._name), "function", DataError)
            origin = own_code.code(function)
            try:
                returned = function(**self.params)
            except Exception as error:
                rule, actual = "{key} must return rows.", f"{self.function} raised {type(error).__name__}: {error}"
                raise DataError(rule, key="function", got=actual, fix="Correct the function or {at}params.") from error
        return self._rows(returned, split).replace(origin=origin)

    def _rows(self, returned: Any, split: SplitConfig | None) -> Rows:
        if isinstance(returned, Rows | tuple) and self.heads:
            raise DataError(
                "{key} must name columns of a table, or arrays of a dict.",
                key="heads",
                got=f"{self.function} returned {'Rows' if isinstance(returned, Rows) else 'a pair'}",
                fix="Return a dict of arrays; or remove {key}, and return Rows with each output's labels in `heads`.",
            )
        if isinstance(returned, Rows):
            return returned
        if isinstance(returned, tuple) and len(returned) in (2, 3):
            inputs, label, *weight = map(np.asarray, returned)
            return Rows({"X": inputs}, label, weight[0] if weight else None)
        if isinstance(returned, Mapping):
            heads = {head: name for head, name in self.heads.items() if isinstance(name, str)}
            if not isinstance(self.label, str) or len(heads) < len(self.heads):
                rule = "In a dict of arrays, the labels and those of each head must be one array each."
                raise ConfigError(rule, key="label", got=[self.label, self.heads], fix="Name one.")
            arrays = {str(name): np.asarray(array) for name, array in returned.items()}
            sets = [ArraySet(self.function, arrays, None)]
            reader: Reader = ArrayReader(sets, self.label, self.sample_weight, split.column if split else None, heads)
        elif hasattr(returned, "iloc") or hasattr(returned, "__arrow_c_stream__"):
            reader = self._table(returned, split)
        else:
            rule, fix = "{key} must return Rows, a pair (X, y), a dict of arrays or a table.", "Return one of them."
            raise DataError(rule, key="function", got=f"{self.function} returned a {type(returned).__name__}", fix=fix)
        return Stream(reader, window=None).rows()

    def _table(self, frame: Any, split: SplitConfig | None) -> TableReader:
        table = arrow_table(frame, self.function)
        return TableReader(self, {self.function: table.schema}, [group_of(table, self.function)], split)
