"""Rows that were laid in a file without a name come back as they were, and leave nothing behind."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from command import Popen

from ortpipe.data import spill
from ortpipe.data.pieces import concatenate
from ortpipe.data.rows import Rows
from ortpipe.data.spill import Spill, SpillFile

RNG = np.random.default_rng(0)
COUNT = 200


def rows(label, **fields):
    inputs = {
        "X": RNG.normal(size=(COUNT, 3)).astype(np.float32),
        "image": RNG.integers(0, 255, (COUNT, 2, 2), np.uint8),
        "none": np.empty((COUNT, 0)),
    }
    return Rows(inputs, label, **fields)


LABELS = {
    "floats": RNG.normal(size=COUNT),
    "several": RNG.normal(size=(COUNT, 2)),
    "words": np.array(["no", "yes", "perhaps"])[np.arange(COUNT) % 3],
    "truth": np.arange(COUNT) % 2 == 0,
    "empty words": np.array(["", "é\n"])[np.arange(COUNT) % 2],
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(spill, "PIECE", 500)


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("cut", [7, COUNT])
def test_rows_come_back_as_they_were(label, cut):
    words = np.array(["a", "", "ü\0x", 'q"'], object)[np.arange(COUNT) % 4]
    first = rows(
        label, sample_weight=RNG.random(COUNT), heads={"other": np.arange(COUNT)}, columns={"X": ("a", "b", "c")}
    )
    given = first.replace(inputs={**first.inputs, "word": words})
    written = Spill(SpillFile())
    for at in range(0, COUNT, cut):
        written.write(given.take(slice(at, at + cut)))
    written.flush()
    for _ in range(2):
        back = concatenate(list(written.read()))
        assert back.digest() == given.digest()
        for name, array in given.inputs.items():
            assert back.inputs[name].dtype == array.dtype
        assert back.label.dtype == label.dtype
        assert back.columns == given.columns


def test_two_sets_of_rows_lie_in_one_file():
    file = SpillFile()
    written, given = [Spill(file), Spill(file)], [rows(LABELS[name]) for name in ("floats", "words")]
    for at in range(0, COUNT, 30):
        for one, other in zip(written, given, strict=True):
            one.write(other.take(slice(at, at + 30)))
    for one, other in zip(written, given, strict=True):
        one.flush()
        assert concatenate(list(one.read())).digest() == other.digest()


def test_the_file_has_no_name_and_is_closed_with_its_object(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    file = SpillFile()
    file.put(np.arange(1000))
    assert list(tmp_path.iterdir()) == []
    number = file._file.fileno()
    assert os.fstat(number).st_size >= 8000
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


KILLED = """
import numpy as np, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
from ortpipe.data.spill import SpillFile
file = SpillFile()
file.put(np.zeros(10**6))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_killed_leaves_nothing_behind(number, tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    child = Popen([sys.executable, "-c", KILLED], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        assert child.wait(timeout=30) != 0
    finally:
        child.kill()
        child.communicate()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_that_of_the_environment_or_one_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert spill.folder() == str(tmp_path)
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(spill, "LARGE_FILES", tmp_path)
    assert spill.folder() == str(tmp_path)


def test_a_temporary_folder_that_is_not_there_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "LARGE_FILES", tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    assert spill.folder() == str(tmp_path)
    assert spill.fits(1)
    file = SpillFile()
    assert file.get(file.put(np.arange(3))).tolist() == [0, 1, 2]
