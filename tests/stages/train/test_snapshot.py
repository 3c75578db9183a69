import contextlib
import io
import os
import tempfile

import ml_dtypes
import numpy as np
import pytest

from ortpipe.stages.train.large_model import Snapshot


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "rows": rng.normal(size=(3, 4)).astype(np.float32),
        "columns": np.asfortranarray(rng.normal(size=(3, 4))),
        "half": rng.normal(size=5).astype(ml_dtypes.bfloat16),
        "scalar": np.array(7, np.int64),
        "none": np.zeros((0, 3), np.float32),
    }


def open_files(folder):
    """Return the open files below a folder; a collection may close those of other tests at any time."""
    links = []
    for handle in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it listed the folder
            links.append(os.readlink(f"/proc/self/fd/{handle}"))
    return [link for link in links if link.startswith(f"{folder}/")]


def test_arrays_come_back_from_the_disk_as_they_were_as_often_as_they_are_read(arrays):
    snapshot = Snapshot(arrays)
    assert all(snapshot[name] is array for name, array in arrays.items())
    snapshot.move_to_disk()
    snapshot.move_to_disk()
    for _ in range(2):
        read = dict(snapshot)
        assert [*read] == [*arrays]
        for name, array in arrays.items():
            assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
            assert read[name].tobytes() == array.tobytes()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of open files here")
def test_the_file_has_no_name_and_goes_with_the_snapshot(arrays, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    snapshot = Snapshot(arrays)
    snapshot.move_to_disk()
    assert len(open_files(tmp_path)) == 1
    assert not [*tmp_path.iterdir()]
    del snapshot
    assert open_files(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk here")
def test_where_the_disk_is_full_the_arrays_stay_in_memory(arrays, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: io.FileIO("/dev/full", "r+"))
    snapshot = Snapshot(arrays)
    snapshot.move_to_disk()
    assert all(snapshot[name] is array for name, array in arrays.items())
