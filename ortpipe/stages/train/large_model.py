"""Models with so many carried bytes that a run computes one step, and their copies go to the disk."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from ortpipe.artifact import Arrays
from ortpipe.data.spill import Place, SpillFile
from ortpipe.runtime.session import Session
from ortpipe.stages.train.mini_batch import EpochLoop
from ortpipe.stages.train.training import Epoch


class LargeLoop(EpochLoop):
    """Runs the epochs of a large model step by step."""

    single = True

    def epochs(self) -> Iterator[Epoch]:
        """Yield after each epoch; in the next one, the values of complete epochs are on the disk."""
        for result in super().epochs():
            self.whole = snapshot = Snapshot(self.whole)
            yield result
            if result.number < result.epochs:  # the initial values are in the caller's memory in any case
                snapshot.move_to_disk()

    def _results(self, number: int, size: int, feeds: Arrays, count: int) -> Sequence[np.ndarray]:
        """Return the carried values and the losses in arrays that are freed when they are no longer used."""
        session, before = cast(Session, self.load(number, size)), [self.values[name] for name in self.step.carried]
        arrays = [np.empty(array.shape, array.dtype) for array in before]  # in C order, unlike perhaps the start's
        arrays.append(np.empty(count, self.step.dtype))
        session.run_into(feeds, dict(zip(session.outputs, arrays, strict=False)))
        for array in arrays:
            array.flags.writeable = False  # so that an artifact needs no copy
        return arrays


class Snapshot(Mapping[str, np.ndarray]):
    """Arrays in memory or, after `move_to_disk`, in an unnamed temporary file, which is deleted with this object.

    >>> import numpy as np
    >>> snapshot = Snapshot({"w": np.array([1.0, 2.0])})
    >>> snapshot.move_to_disk()
    >>> snapshot["w"]
    array([1., 2.])
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays: Arrays = arrays
        self._file: SpillFile | None = None
        self._places = dict[str, Place]()

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name] if self._file is None else self._file.get(self._places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays if self._file is None else self._places)

    def __len__(self) -> int:
        return len(self._arrays if self._file is None else self._places)

    def move_to_disk(self) -> None:
        """Free the memory; if the disk is full, keep the arrays in memory."""
        if self._file is not None:
            return
        with contextlib.suppress(OSError):
            file = SpillFile()
            self._places = {name: file.put(array) for name, array in self._arrays.items()}
            self._arrays, self._file = {}, file
