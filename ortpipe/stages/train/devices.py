"""Training on several devices of one machine: XLA computes the slices of each batch on all of them."""

import numpy as np

from ortpipe.artifact import Arrays
from ortpipe.parallel import ParallelConfig, slice_bounds
from ortpipe.runtime import xla
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.mini_batch import EpochLoop
from ortpipe.stages.train.remark import Remark
from ortpipe.stages.train.sliced import SEED, SHARE, seeds
from ortpipe.stages.train.step import TrainStep
from ortpipe.stages.train.training import Training, steps_per_epoch


class DeviceLoop(EpochLoop):
    """Runs epochs on batches that are cut into slices, in the order of `slice_places`."""

    def __init__(self, training: Training, step: TrainStep, initial: Arrays, values: Arrays) -> None:
        super().__init__(training, step, initial, values)
        assert training.config.parallel is not None and training.runtime is not None
        count = device_count(training.config.parallel, training.runtime)
        training.report(Remark(f"devices: {count}, slices: {training.config.parallel.slices}"))

    def _results(self, number: int, size: int, feeds: Arrays, count: int) -> list[np.ndarray]:
        """Return the carried values and the losses after some batches."""
        config, cut = self.training.config, dict[str, np.ndarray]()
        assert config.parallel is not None
        places = slice_places(size, config.parallel.slices)
        for name in {*self.step.batch} - {SEED, SHARE}:
            array = feeds[name]
            cut[name] = np.zeros((count, len(places), places[-1][2], *array.shape[2:]), array.dtype)
            for place, (_, first, rows) in enumerate(places):
                cut[name][:, place, :rows] = array[:, first : first + rows]
        shares = np.array([rows / size for _, _, rows in places], self.step.dtype)
        cut[SHARE] = np.tile(shares, (count, 1))
        if SEED in self.step.batch:
            first = self.done - (number - 1) * steps_per_epoch(config, self._batches.count)
            batches = range(first, first + count)
            cut[SEED] = np.stack([seeds(config.seed, number, batches, which) for which, _, _ in places], axis=1)
        return list(super()._results(number, size, {**feeds, **cut}, count))


def slice_places(size: int, slices: int) -> list[tuple[int, int, int]]:
    """Return each slice's number, first row and number of rows, those with fewer rows first.

    A batch with fewer rows than slices has slices without rows.

    >>> slice_places(5, 2), slice_places(1, 2)
    ([(0, 0, 2), (1, 2, 3)], [(1, 0, 0), (0, 0, 1)])
    """
    places = [(number, first, end - first) for number, (first, end) in enumerate(slice_bounds(size, slices))]
    empty = [(number, 0, 0) for number in range(len(places), slices)]
    return sorted(empty + places, key=lambda place: place[2])


def device_count(parallel: ParallelConfig, runtime: RuntimeConfig) -> int:
    """Return the number of devices that train; raise if the machine has not as many as configured."""
    xla.check_client(runtime, parallel.workers)
    return min(parallel.workers or len(xla.devices(runtime)), parallel.slices)
