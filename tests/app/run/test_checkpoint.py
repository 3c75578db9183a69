"""A checkpoint that is replaced while files fail: there is one at every moment, the old or the new."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ortpipe.app.run.checkpoint import FILE, read_checkpoint, write_checkpoint
from ortpipe.errors import ConfigError
from ortpipe.stages.train.training import Checkpoint

OPERATIONS = ("open", "mkdir", "fsync", "chmod", "rename", "replace")


def state(epochs: int) -> Checkpoint:
    tensors = {
        "parameter/w": np.full((2, 3), epochs, np.float32),
        "losses/step": np.zeros(0),
        "count": np.array(epochs),
    }
    return Checkpoint(epochs, "a key", tensors)


def test_a_checkpoint_comes_back_as_it_was_and_equal_ones_have_equal_bytes(tmp_path: Path) -> None:
    contents = []
    for _ in range(2):
        write_checkpoint(state(3), tmp_path)
        contents.append((tmp_path / FILE).read_bytes())
    assert contents[0] == contents[1]
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert (found.epochs, found.key, sorted(found.tensors)) == (3, "a key", sorted(state(3).tensors))
    for name, tensor in state(3).tensors.items():
        np.testing.assert_array_equal(found.tensors[name], tensor, strict=True)


def test_wherever_writing_ends_there_is_a_whole_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(state(1), tmp_path)
    failed = 0
    while True:
        left = failed
        with monkeypatch.context() as context:
            for name in OPERATIONS:

                def fail(*arguments: object, real: object = getattr(os, name), **named: object) -> object:
                    nonlocal left
                    left -= 1
                    if left == -1:
                        raise KeyboardInterrupt
                    return real(*arguments, **named)  # type: ignore[operator]

                context.setattr(os, name, fail)
            try:
                write_checkpoint(state(2), tmp_path)
            except KeyboardInterrupt:
                failed += 1
        found = read_checkpoint(tmp_path)
        assert found is not None
        assert found.epochs == int(found.tensors["count"]) == found.tensors["parameter/w"][0, 0]
        assert [path.name for path in tmp_path.iterdir()] == [FILE]
        if left >= 0:
            break
        write_checkpoint(state(1), tmp_path)
    assert failed >= 4
    assert found.epochs == 2


@pytest.mark.parametrize("how", ["cut", "emptied", "no metadata", "no tensors"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path, how: str) -> None:
    write_checkpoint(state(1), tmp_path)
    content = (tmp_path / FILE).read_bytes()
    damaged = {
        "cut": content[:-1],
        "emptied": b"",
        "no metadata": content.replace(b"__metadata__", b"__metadatum_"),
        "no tensors": b"no tensors",
    }
    (tmp_path / FILE).write_bytes(damaged[how])
    with pytest.raises(ConfigError, match=r"A checkpoint must be intact.[^$]*Remove "):
        read_checkpoint(tmp_path)


def test_a_checkpoint_that_cannot_be_read_now_is_neither_missing_nor_damaged(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(OSError, match=FILE):
        read_checkpoint(tmp_path)
