"""The arrays at the end of an epoch, which training can return to."""

import contextlib

from ortpipe.artifact import Arrays
from ortpipe.data.spill import Place, SpillFile


class Snapshot:
    """Arrays in memory or, after `move_to_disk`, in an unnamed temporary file, which is deleted with this object.

    >>> import numpy as np
    >>> snapshot = Snapshot({"w": np.array([1.0, 2.0])})
    >>> snapshot.move_to_disk()
    >>> snapshot.arrays["w"]
    array([1., 2.])
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays: Arrays | None = arrays
        self._file: SpillFile | None = None
        self._places = dict[str, Place]()

    @property
    def arrays(self) -> Arrays:
        """The arrays, read each time if they are in a file."""
        if self._arrays is not None:
            return self._arrays
        assert self._file is not None
        return {name: self._file.get(place) for name, place in self._places.items()}

    def move_to_disk(self) -> None:
        """Free the memory; if the disk is full, keep the arrays in memory."""
        if self._arrays is None:
            return
        with contextlib.suppress(OSError):
            file = SpillFile()
            self._places = {name: file.put(array) for name, array in self._arrays.items()}
            self._arrays, self._file = None, file
