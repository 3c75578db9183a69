"""The arrays of an epoch's end, which a training keeps to go back to."""

import contextlib
import math
import tempfile
import weakref
from typing import IO

import numpy as np

from ortpipe.artifact import Arrays
from ortpipe.graph.apart import bytes_of


class Snapshot:
    """Arrays in memory or, once they are moved, in a temporary file without a name, which goes with this object.

    >>> snapshot = Snapshot({"w": np.array([1.0, 2.0])})
    >>> snapshot.move_to_disk()
    >>> snapshot.arrays["w"]
    array([1., 2.])
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays: Arrays | None = arrays
        self._file: IO[bytes] | None = None
        self._kinds = {name: (array.dtype, array.shape) for name, array in arrays.items()}

    @property
    def arrays(self) -> Arrays:
        """The arrays, read anew each time where they are in a file."""
        if self._arrays is not None:
            return self._arrays
        assert self._file is not None
        self._file.seek(0)
        return {
            name: np.frombuffer(self._file.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
            for name, (dtype, shape) in self._kinds.items()
        }

    def move_to_disk(self) -> None:
        """Leave memory; where the disk is full the arrays stay, for they matter more than memory does."""
        if self._arrays is None:
            return
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115 -- it is open for as long as this object is
        except OSError:
            return
        try:
            for array in self._arrays.values():
                file.write(bytes_of(array))
            file.flush()
        except OSError:
            with contextlib.suppress(OSError):  # of what is still in its buffer
                file.close()
            return
        weakref.finalize(self, file.close)
        self._arrays, self._file = None, file
