"""The settings that all sources of tables share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.written import is_setting
from ortpipe.errors import ConfigError
from ortpipe.graph.core.selection import matches
from ortpipe.settings import Config, Fix, Must

COLUMN_FIX = (
    "Use number, money, percent, date, time, boolean, category or ignore; a form of numbers, such as 1.234,5; or a "
    "format of dates, such as %d.%m.%Y."
)
ColumnSetting = Annotated[str, Must("a way to read a column", is_setting), Fix(COLUMN_FIX)]


@dataclass(frozen=True, kw_only=True)
class TableSource(Config, ABC):
    """The roles of a table's columns.

    Each column is an input [N] of its own (see `RawColumn`), which the model encodes: numbers, words or dates, also
    missing ones. For a model whose input holds several columns, `inputs` lists them by input; these are numbers.

    A source of files also has `path`, `endings` (a class attribute: the endings of their names) and
    `new_rows(columns)`. With these, `ortpipe predict` reads files without labels. `new_rows` returns the schema and the
    `Group` of rows of the file at `path`; `columns` are the columns that the model reads. See `sources/parquet.py`.

    Attributes:
        label: the column of labels, or several.
        sample_weight: the column of row weights; null: none.
        heads: further output of the model with a loss of its own → the column of its labels, or several.
        inputs: the columns that are inputs; null: all other columns; or a mapping of model inputs to their columns, in
            order, which become one array [N, columns] of numbers ({X: null}: all other columns), except that
            {age: [age]} is the column age by itself.
        categorical: columns whose values are words even if they look like numbers or dates.
        missing: texts that mark a missing value, such as `?`; an empty text always does.
        columns: column → how its text is read: `number`, `money`, `percent`, `date`, `time` (of day, in hours),
            `boolean`; a form of numbers, such as `1.234,5`; a format of dates, such as `%d.%m.%Y`; `category`, words;
            or `ignore`, not at all. Others follow from all of a column's values; null: all of them.
        exclude: columns that are no inputs, by name or glob.
        identifiers: whether columns that identify rows are left out if `inputs` is null: unique text, and unique whole
            numbers in a column named id, customer_id, index, ….
        unlabeled: whether rows without a label are an error or are left out.
    """

    label: str | tuple[str, ...]
    sample_weight: str | None = None
    heads: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    inputs: Mapping[str, tuple[str, ...] | None] | tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    columns: Mapping[str, ColumnSetting] | None = None
    exclude: tuple[str, ...] = ()
    identifiers: Literal["drop", "keep"] = "drop"
    unlabeled: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, columns in {"label": self.label, **{f"heads.{name}": c for name, c in self.heads.items()}}.items():
            if not columns:
                raise ConfigError("{key} must name at least one column.", key=key, got=columns, fix="Name one.")
        chosen = self.inputs.values() if isinstance(self.inputs, Mapping) else [self.inputs]
        if not chosen or any(columns is not None and not columns for columns in chosen):
            raise ConfigError(
                "{key} must list at least one column for each input.",
                key="inputs",
                got=self.inputs,
                fix="Write {key}=[age, city], {key}={X: [age, height]}, or null for all other columns.",
            )

    def labels_of(self, head: str) -> tuple[str, ...]:
        """Return the columns of a head's labels; "" is the prediction."""
        columns = self.heads[head] if head else self.label
        return (columns,) if isinstance(columns, str) else columns

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of all labels, each once."""
        return tuple(dict.fromkeys(name for head in ("", *self.heads) for name in self.labels_of(head)))

    @property
    def readings(self) -> Mapping[str, str]:
        """Column → how its text is read."""
        return self.columns or {}

    @property
    def words(self) -> set[str]:
        """The columns whose values are words by the settings."""
        return {*self.categorical, *(name for name, setting in self.readings.items() if setting == "category")}

    @property
    def patterns(self) -> tuple[str, ...]:
        """The names and globs of columns that are no inputs."""
        return (*self.exclude, *(name for name, setting in self.readings.items() if setting == "ignore"))

    def excluded(self, names: Sequence[str]) -> set[str]:
        """Return which of a table's columns the settings exclude from its inputs."""
        return {name for pattern in self.patterns for name in matches(pattern, names)}

    @property
    def numeric_labels(self) -> set[str]:
        """The columns of labels that have several columns, which must be numbers."""
        several = [columns for columns in (self.label, *self.heads.values()) if not isinstance(columns, str)]
        return {name for columns in several for name in columns}

    def inputs_of(self, columns: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        """Return each input's columns; `columns` are those without labels, weights and parts."""
        if isinstance(self.inputs, Mapping):
            return {name: columns if chosen is None else chosen for name, chosen in self.inputs.items()}
        return {name: (name,) for name in self.inputs or columns}

    @abstractmethod
    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read the rows."""
