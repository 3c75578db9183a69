"""The catalogue of data sources: each is a frozen dataclass (its config) that is called for its rows."""

from typing import Protocol

from ortpipe.data.rows import Rows
from ortpipe.data.sources.bundled import Bundled
from ortpipe.data.sources.npz import Npz
from ortpipe.data.sources.synthetic import Synthetic


class Source(Protocol):
    """A config that gives rows when called."""

    def __call__(self) -> Rows:
        """Read every row."""


SOURCES: dict[str, type] = {
    "bundled": Bundled,
    "npz": Npz,
    "synthetic": Synthetic,
}
