"""Memory that chunks of batches are written to, again and again."""

import math

import numpy as np

ALIGNED = 64  # bytes; the start of an aligned array is a multiple


class Memory:
    """Arrays by name, each written over the one before, and aligned so that compiled functions need no copy."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def take(self, array: np.ndarray, index: np.ndarray, name: str) -> np.ndarray:
        """Return array[index] in the memory of this name."""
        if array.dtype.hasobject:
            return array.take(index, axis=0)
        shape = (*index.shape, *array.shape[1:])
        rows = self._arrays.get(name)
        if rows is None or rows.shape != shape:
            size = array.itemsize * math.prod(shape)
            block = rows.base if rows is not None else None  # all that was allocated
            if block is None or block.size < size + ALIGNED:
                block = np.empty(size + ALIGNED, np.uint8)
            first = -block.ctypes.data % ALIGNED
            rows = self._arrays[name] = block[first : first + size].view(array.dtype).reshape(shape)
        return array.take(index, axis=0, out=rows, mode="clip")  # every index is valid; mode="raise" would copy
