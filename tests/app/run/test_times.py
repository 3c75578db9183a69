"""The times of epochs in a record: few however many epochs there are, and none out of order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortpipe.app.run.record import MOST_TIMES, RunRecord
from ortpipe.app.tracking.metrics import times_of


@pytest.mark.parametrize("first", [1, 51])  # a run that continues begins later
def test_of_many_epochs_evenly_spaced_times_are_kept(first: int, tmp_path: Path) -> None:
    record = RunRecord(tmp_path, "run", {})
    for epoch in range(first, 5001):
        record.tick(epoch)
    numbers = [number for number, _ in record.epochs]
    assert MOST_TIMES // 2 <= len(numbers) <= MOST_TIMES
    assert len(set(np.diff(numbers))) == 1
    between = times_of(np.arange(1, 5001), record.epochs, otherwise=0)
    assert (np.diff(between) >= 0).all()


def test_epochs_of_another_run_happened_when_their_stage_ended() -> None:
    assert times_of(np.arange(3), [], otherwise=7).tolist() == [7, 7, 7]
