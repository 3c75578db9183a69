"""The times of epochs in a record: few however many epochs there are, and none out of order."""

from __future__ import annotations

import numpy as np

from ortpipe.app.run.clock import MOST_TIMES, Clock, times_of


def test_of_many_epochs_evenly_spaced_times_are_kept() -> None:
    times: list[list[int]] = []
    clock = Clock(times)
    for epoch in range(1, 5001):
        clock(epoch)
    numbers = [number for number, _ in times]
    assert MOST_TIMES // 2 <= len(numbers) <= MOST_TIMES
    assert len(set(np.diff(numbers))) == 1
    between = times_of(np.arange(1, 5001), times, otherwise=0)
    assert (np.diff(between) >= 0).all()


def test_epochs_of_another_run_happened_when_their_stage_ended() -> None:
    assert times_of(np.arange(3), [], otherwise=7).tolist() == [7, 7, 7]
