"""Hydra composes a config twice: to read `hydra.mode`, then to run. The second time is enough for most commands."""

from __future__ import annotations

import sys
from typing import Any

SETS_THE_MODE = ("hparams_search", "hydra.mode", "hydra.searchpath", "--config")  # or may lead to a file that does


def patch() -> None:
    """Make Hydra, if it is imported, compose for the mode only if the command line can set it."""
    hydra = sys.modules.get("hydra._internal.hydra")
    if hydra is None or hasattr(hydra.Hydra.get_mode, "by_hydra"):
        return
    by_hydra = hydra.Hydra.get_mode

    def get_mode(self: Any, config_name: str | None, overrides: list[str]) -> Any:
        sets_it = any(word in argument for argument in sys.argv for word in SETS_THE_MODE)
        return by_hydra(self, config_name, overrides) if sets_it else None

    get_mode.by_hydra = by_hydra  # type: ignore[attr-defined]
    hydra.Hydra.get_mode = get_mode
