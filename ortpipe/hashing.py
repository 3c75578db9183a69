"""One way to hash: sha256 over parts that each say their kind and length, so that no two contents share their bytes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

SMALL = 4096  # bytes
_JSON = json.JSONEncoder(separators=(",", ":"))


class Hasher:
    """A sha256 that grows by parts: text, bytes, arrays, and any other plain JSON value.

    >>> digest_of("rows", "ab", "c") == digest_of("rows", "a", "bc")
    False
    """

    def __init__(self, tag: str) -> None:
        self._sha, self._small = hashlib.sha256(), bytearray()  # what is not yet hashed: many parts are a few bytes
        self.add(tag)

    def add(self, *parts: Any) -> Hasher:
        """Hash some parts; the memory order, byte order and text encoding of an array do not count."""
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
        """Return the sha256 of what was added so far."""
        self._hash_small()
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
        self._small += kind + len(data).to_bytes(8, "little")
        if len(data) < SMALL:
            self._small += data
        if len(self._small) >= SMALL or len(data) >= SMALL:
            self._hash_small()
        if len(data) >= SMALL:
            self._sha.update(data)

    def _hash_small(self) -> None:
        self._sha.update(self._small)
        self._small.clear()


def digest_of(tag: str, *parts: Any) -> str:
    """Return the sha256 (hex) of some parts under a tag, which tells uses of the same parts apart."""
    return Hasher(tag).add(*parts).hexdigest()
