"""Messages hold arrays in shared memory, or in themselves on systems without it."""

import io

import numpy as np
import pytest

from ortpipe.parallel.memory import Messages, shared_file


@pytest.mark.parametrize("shared", [True, False])
def test_a_message_returns_its_value_and_grows(shared):
    file = shared_file() if shared else -1
    writer, reader = Messages(file), Messages(file)
    for size in (0, 3, 100_000, 5):
        value = {"a": np.arange(size, dtype=np.float32), "b": [np.float64(1.5), np.array(2), np.ones((2, size)).T]}
        message = writer.dump(value)
        result = reader.load(io.BytesIO(message))
        assert (len(message) > 400_000) == (size == 100_000 and not shared)
        np.testing.assert_equal(result, value)
    writer.close()
    writer.close()  # no other file has been closed
    np.testing.assert_equal(result, value)
