"""Rows that a run's folder keeps to try its model on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ortpipe.app.run.folder import EXAMPLE, LARGEST_EXAMPLE, read_example, write_example


def test_rows_are_read_as_they_were_written_and_fewer_where_they_are_large(tmp_path: Path) -> None:
    rows = {"X": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([1, 2])}
    write_example(rows, tmp_path)
    back = read_example(tmp_path)
    assert {name: array.tolist() for name, array in back.items()} == {n: a.tolist() for n, a in rows.items()}
    write_example({"X": np.zeros((2, LARGEST_EXAMPLE // 4 - 1), np.float32)}, tmp_path)
    assert read_example(tmp_path)["X"].shape[0] == 1


def test_text_huge_rows_and_damaged_files_are_no_example(tmp_path: Path) -> None:
    write_example({"X": np.array(["a"])}, tmp_path)
    write_example({"X": np.zeros((1, LARGEST_EXAMPLE), np.float32)}, tmp_path)
    assert not (tmp_path / EXAMPLE).exists()
    (tmp_path / EXAMPLE).write_bytes(b"PK\3\4 no archive")
    assert read_example(tmp_path) == {}
