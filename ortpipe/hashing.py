"""Hash by sha256 over tagged, length-prefixed parts, so that different contents never hash the same bytes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

_JSON = json.JSONEncoder(separators=(",", ":"))


class Hasher:
    """An incremental sha256 over strings, bytes, arrays and other plain JSON values.

    >>> digest_of("rows", "ab", "c") == digest_of("rows", "a", "bc")
    False
    """

    def __init__(self, tag: str) -> None:
        self._sha = hashlib.sha256()
        self.add(tag)

    def add(self, *parts: Any) -> Hasher:
        """Hash some parts; an array's memory order, byte order and string encoding do not matter."""
        for part in parts:
            if isinstance(part, str):
                self._put(b"s", part.encode())
            elif isinstance(part, bytes):
                self._put(b"b", part)
            elif isinstance(part, np.ndarray):
                self._array(part)
            else:
                self._put(b"j", _JSON.encode(part).encode())
        return self

    def hexdigest(self) -> str:
        """Return the sha256 (hex) of the parts added so far."""
        return self._sha.hexdigest()

    def _array(self, array: np.ndarray) -> None:
        if array.dtype.kind in "OU":
            texts = [s.decode() if isinstance(s, bytes) else str(s) for s in array.ravel().tolist()]
            self.add("text", list(array.shape), texts)
            return
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        self.add(little.dtype.name, list(array.shape))
        self._put(b"a", little.reshape(-1).view(np.uint8).data)

    def _put(self, kind: bytes, data: bytes | memoryview) -> None:
        self._sha.update(kind + len(data).to_bytes(8, "little"))
        self._sha.update(data)


def digest_of(tag: str, *parts: Any) -> str:
    """Return the sha256 (hex) of some parts and a tag, which separates different uses."""
    return Hasher(tag).add(*parts).hexdigest()
