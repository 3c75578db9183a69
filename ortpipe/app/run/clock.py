"""The times at which epochs ended; of many, evenly spaced ones, so that a record stays small."""

from collections.abc import Sequence

import numpy as np

from ortpipe.app.run.record import now

MOST_TIMES = 400  # times that are kept


class Clock:
    """Appends the times of epochs to a list of [number, milliseconds], and drops every second one when it is full."""

    def __init__(self, times: list[list[int]]) -> None:
        self._times, self._every = times, 1

    def __call__(self, epoch: int) -> None:
        """Append the present time as the end of an epoch."""
        if epoch % self._every:
            return
        self._times.append([epoch, now()])
        if len(self._times) > MOST_TIMES:
            self._every *= 2
            self._times[:] = [entry for entry in self._times if entry[0] % self._every == 0]


def times_of(places: np.ndarray, times: Sequence[Sequence[int]], otherwise: int) -> np.ndarray:
    """Return the times at which epochs, or fractions of them, ended, in int64 milliseconds, by linear interpolation.

    >>> times_of(np.array([1.0, 1.5, 2.0, 9.0]), [[1, 1000], [2, 1200]], otherwise=0).tolist()
    [1000, 1100, 1200, 1200]
    """
    if not times:
        return np.full(len(places), otherwise, np.int64)
    numbers, moments = np.array(times, np.float64).T
    return np.interp(places, numbers, moments).astype(np.int64)
