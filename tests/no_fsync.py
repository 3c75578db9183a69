"""Nothing that tests write is to survive a power cut: a run with MLflow waited 400 times for the disk, for seconds."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from typing import Any


def patch() -> None:
    """Let files, and the SQLite databases of SQLAlchemy where that is imported, be written without waiting."""
    os.fsync = lambda file: None  # type: ignore[assignment]
    if "sqlalchemy" in sys.modules:
        from sqlalchemy import event
        from sqlalchemy.engine import Engine

        if not event.contains(Engine, "connect", _without_waiting):
            event.listen(Engine, "connect", _without_waiting)


def _without_waiting(connection: Any, _: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        with contextlib.suppress(sqlite3.DatabaseError):  # it is locked, or no database: who connects hears of it later
            connection.execute("PRAGMA synchronous = OFF")
