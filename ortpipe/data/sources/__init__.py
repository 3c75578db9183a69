"""The catalogue of data sources: each is a frozen dataclass (its config) that is called for its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ortpipe.data.rows import Rows
from ortpipe.data.sources.bundled import Bundled
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.function import Function
from ortpipe.data.sources.npy import Npy
from ortpipe.data.sources.npz import Npz
from ortpipe.data.sources.parquet import Parquet
from ortpipe.data.sources.synthetic import Synthetic
from ortpipe.settings import Catalogue

if TYPE_CHECKING:
    from ortpipe.data.config import SplitConfig
    from ortpipe.data.stream import Stream


class Source(Protocol):
    """A config that gives rows when called."""

    def __call__(self, split: SplitConfig | None = None) -> Rows | Stream:
        """Read every row; where the split goes by column or file, say each row's part."""


SOURCES: Catalogue[type] = Catalogue(
    "source of rows",
    {
        "bundled": Bundled,
        "csv": Csv,
        "function": Function,
        "npy": Npy,
        "npz": Npz,
        "parquet": Parquet,
        "synthetic": Synthetic,
    },
)
