"""What takes long is made once in a session of tests: the other processes take it from a folder that they share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any


def once(shared: Path, key: bytes, make: Callable[[], Any]) -> Any:
    """Return what the folder holds under a key, or else make it and leave it there whole."""
    place = shared / hashlib.sha256(key).hexdigest()
    with contextlib.suppress(OSError):
        return pickle.loads(place.read_bytes())
    made = make()
    beside = place.with_name(f"{place.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        shared.mkdir(exist_ok=True)
        beside.write_bytes(pickle.dumps(made))
        beside.replace(place)
    return made
