"""The settings that all sources of tables share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ortpipe.data.config import SplitConfig
from ortpipe.data.rows import RowSet
from ortpipe.errors import ConfigError, nearest
from ortpipe.settings import Config

Encoding = Literal["one_hot", "index", "keep"]


@dataclass(frozen=True, kw_only=True)
class TableSource(Config, ABC):
    """The roles of a table's columns.

    Attributes:
        label: the column of labels, or several.
        sample_weight: the column of row weights; null: none.
        heads: further output of the model with a loss of its own → the column of its labels, or several.
        inputs: model input → its columns, in order; a list: the columns of the input X; null: X has all other columns.
        encode: text, true/false and dictionary columns as `one_hot` (a column of 0 and 1 per value, in sorted order)
            or `index` (the value's place in that order); or `keep`: each column is an input [N] of its own name,
            without encoding (see `RawColumn`): numbers, words or dates, also missing ones. For all inputs, or by input.
        categorical: columns whose values are words even if they look like numbers or dates.
        missing: texts that mark a missing value, such as `?`; an empty text always does.
    """

    label: str | tuple[str, ...]
    sample_weight: str | None = None
    heads: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    inputs: Mapping[str, tuple[str, ...]] | tuple[str, ...] | None = None
    encode: Encoding | Mapping[str, Encoding] = "one_hot"
    categorical: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, columns in {"label": self.label, **{f"heads.{name}": c for name, c in self.heads.items()}}.items():
            if not columns:
                raise ConfigError("{key} must name at least one column.", key=key, got=columns, fix="Name one.")
        columns_by_input = self.inputs if isinstance(self.inputs, Mapping) else {"X": self.inputs or ()}
        if self.inputs is not None and (not columns_by_input or not all(columns_by_input.values())):
            raise ConfigError(
                "{key} must list at least one column for each input.",
                key="inputs",
                got=self.inputs,
                fix="Write {key}={X: [age, city]}, or null for all other columns.",
            )
        for name in self.encode if isinstance(self.encode, Mapping) else ():
            if name not in columns_by_input:
                fix = nearest(name, columns_by_input)
                raise ConfigError("{key} must name inputs.", key="encode", got=repr(name), fix=fix)
            if self.encode_of(name) == "keep" and (
                columns_by_input is not self.inputs or len(columns_by_input[name]) > 1
            ):
                raise ConfigError(
                    "An input with {key}=keep must have exactly one column.",
                    key="encode",
                    got=f"keep for {name!r}, which holds {', '.join(columns_by_input[name]) or 'all columns'}",
                    fix="Set {key}=keep for all inputs: each column becomes one; {at}inputs=[…] chooses columns.",
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
    def numeric_labels(self) -> set[str]:
        """The columns of labels that have several columns, which must be numbers."""
        several = [columns for columns in (self.label, *self.heads.values()) if not isinstance(columns, str)]
        return {name for columns in several for name in columns}

    def inputs_of(self, columns: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        """Return each input's columns; `columns` are those without labels, weights and parts."""
        if isinstance(self.inputs, Mapping):
            return self.inputs
        chosen = self.inputs or columns
        return {name: (name,) for name in chosen} if self.encode == "keep" else {"X": chosen}

    @abstractmethod
    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read the rows."""

    def encode_of(self, name: str) -> Encoding:
        """Return how an input's text becomes numbers."""
        return self.encode.get(name, "one_hot") if isinstance(self.encode, Mapping) else self.encode
