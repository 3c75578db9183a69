"""The catalogue of data sources: each is a frozen dataclass, its config, which returns the rows when called."""

from typing import Protocol

from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.settings import Catalogue


class Source(Protocol):
    """A config that returns rows when called."""

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Return all rows, with their parts if the split names a column or files."""


SOURCES: Catalogue[type] = Catalogue(
    "source of rows",
    {
        "audio": "ortpipe.data.sources.audio:Audio",
        "bundled": "ortpipe.data.sources.bundled:Bundled",
        "csv": "ortpipe.data.sources.csv:Csv",
        "excel": "ortpipe.data.sources.excel:Excel",
        "function": "ortpipe.data.sources.function:Function",
        "images": "ortpipe.data.sources.images:Images",
        "npy": "ortpipe.data.sources.npy:Npy",
        "npz": "ortpipe.data.sources.npz:Npz",
        "parquet": "ortpipe.data.sources.parquet:Parquet",
        "synthetic": "ortpipe.data.sources.synthetic:Synthetic",
    },
    open_to_own=True,
)
