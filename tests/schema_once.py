"""MLflow makes a new database by migrations, which take seconds: the first one's tables are written into the others."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

VARIABLE = "ORTPIPE_TESTS_SCHEMA"  # the file that the tests of one session share


def patch() -> None:
    """Make `mlflow.store.db.utils`, where it is imported, copy what MLflow itself made before."""
    utils = sys.modules.get("mlflow.store.db.utils")
    if utils is None or VARIABLE not in os.environ or hasattr(utils._initialize_tables, "by_mlflow"):
        return
    by_mlflow, script = utils._initialize_tables, Path(os.environ[VARIABLE])

    def initialize(engine: Any) -> None:
        database = engine.url.database
        if engine.dialect.name != "sqlite" or database in (None, "", ":memory:"):
            by_mlflow(engine)
        elif script.exists():
            with engine.connect() as connection:
                connection.connection.executescript(script.read_text(encoding="utf-8"))
        else:
            by_mlflow(engine)
            with contextlib.closing(sqlite3.connect(database)) as made:
                text = "\n".join(made.iterdump())
            beside = script.with_name(f"{script.name}.{os.getpid()}")
            beside.write_text(text, encoding="utf-8")
            beside.replace(script)

    initialize.by_mlflow = by_mlflow  # type: ignore[attr-defined]
    utils._initialize_tables = initialize
    registry = sys.modules.get("mlflow.store.model_registry.sqlalchemy_store")
    if registry is not None:
        registry._initialize_tables = initialize
