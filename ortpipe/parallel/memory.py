"""Messages between processes, whose arrays are in shared memory if the system has it."""

import itertools
import mmap
import os
import pickle
from typing import IO, Any

ALIGNMENT = 64  # bytes; onnxruntime reads aligned arrays without a copy


def shared_file() -> int:
    """Return the descriptor of a new file in memory; −1 on systems without such files."""
    return os.memfd_create("ortpipe") if hasattr(os, "memfd_create") else -1


class Messages:
    """One message at a time; arrays of a loaded message change with the next one. Only one process writes.

    Args:
        file: that of `shared_file`; −1: arrays are in the message.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._map: mmap.mmap | bytearray = bytearray()

    def dump(self, value: Any) -> bytes:
        """Return the message for a value."""
        buffers = list[pickle.PickleBuffer]()
        content = pickle.dumps(value, protocol=5, buffer_callback=None if self.file < 0 else buffers.append)
        views = [buffer.raw() for buffer in buffers]
        firsts = itertools.accumulate((-(-view.nbytes // ALIGNMENT) * ALIGNMENT for view in views), initial=0)
        places = [(first, first + view.nbytes) for first, view in zip(firsts, views, strict=False)]
        end = max(places)[1] if places else 0
        if end > len(self._map):
            os.ftruncate(self.file, end)
        shared = self._mapped(end)
        for (first, last), view in zip(places, views, strict=True):
            shared[first:last] = view
        return pickle.dumps((content, places))

    def load(self, messages: IO[bytes]) -> Any:
        """Return the value of the next message."""
        content, places = pickle.load(messages)
        shared = self._mapped(max(places)[1] if places else 0)
        return pickle.loads(content, buffers=[shared[first:last] for first, last in places])

    def close(self) -> None:
        """Close the file; arrays stay."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def _mapped(self, size: int) -> memoryview:
        if size > len(self._map):
            self._map = mmap.mmap(self.file, os.fstat(self.file).st_size)
        return memoryview(self._map)
