"""New rows: each is a training row with some of its columns from similar training rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn import neighbors

from ortpipe.data.rows import Rows
from ortpipe.data.teacher.config import TeacherConfig
from ortpipe.data.teacher.features import Features

MOST_CANDIDATES = 10_000  # rows among which similar ones are looked for


def places_of(rows: Rows, config: TeacherConfig) -> np.ndarray:
    """Return the training row that each column of each new row comes from, int32 [M, columns + 1].

    The last column is the base of the new row; similar rows are the nearest by standardized numbers and one-hot words.
    """
    count, rng = round(config.augment * len(rows)), np.random.default_rng(config.seed)
    columns = max(place.stop for _, place in _columns(rows))
    base = np.concatenate([rng.permutation(len(rows)) for _ in range(-(-count // len(rows)))] or [np.zeros(0, int)])
    base = base[:count].astype(np.int32)
    if not count or len(rows) < 2:
        return np.repeat(base[:, None], columns + 1, axis=1)
    features = np.nan_to_num(Features(None, rows)(rows))
    candidates = np.sort(rng.permutation(len(rows))[:MOST_CANDIDATES])
    most = min(config.neighbors + 1, len(candidates))  # the nearest one is usually the row itself
    nearest = neighbors.NearestNeighbors(n_neighbors=most).fit(features[candidates])
    similar = candidates[nearest.kneighbors(features[base], return_distance=False)]
    chosen = similar[np.arange(count), rng.integers(0, most, count)]
    from_base = np.pad(rng.random((count, columns)) >= config.mix, ((0, 0), (0, 1)), constant_values=True)
    return np.where(from_base, base[:, None], chosen[:, None]).astype(np.int32)


def mixed(rows: Rows, places: np.ndarray) -> Rows:
    """Return the new rows; each has the label and weight of its base."""
    inputs = {}
    for name, columns in _columns(rows):
        array = rows.inputs[name]
        flat = array.reshape(len(array), -1)
        chosen = flat[places[:, columns], np.arange(flat.shape[1])]
        inputs[name] = chosen.reshape(len(places), *array.shape[1:])
    return rows.take(places[:, -1]).replace(inputs=inputs)


def _columns(rows: Rows) -> Iterator[tuple[str, slice]]:
    """Yield each input with its columns among those of all inputs."""
    start = 0
    for name, array in rows.inputs.items():
        width = int(np.prod(array.shape[1:]))
        yield name, slice(start, start + width)
        start += width
