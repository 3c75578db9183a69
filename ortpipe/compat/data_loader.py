"""OrtDataLoader: rows in batches, as arrays or as OrtValues."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ortpipe.compat.devices import cpu, get_ort_device, numpy_to_ort_value
from ortpipe.data import order
from ortpipe.errors import DataError


class OrtDataLoader:
    """Yields batches of rows; every row occurs once per pass.

    Row i of every array belongs together. With N rows a pass has ⌈N / batch_size⌉ batches, the last of which may be
    smaller; each pass has its own order, which follows from the attribute `seed` (0) and the pass's number.
    The original sampled with replacement, never used the last row, and flattened labels of several columns.

    Args:
        X: features [N, …].
        y: labels [N] or [N, K]; [N] becomes [N, 1].
        sample_weight: row weights [N] or [N, 1], or None.
        batch_size: rows per batch; 0 or less gives all rows at once.
        device: `cpu`.
        random_iter: shuffle; otherwise rows keep their order.

    Raises:
        DataError: arrays of different lengths.
        ConfigError: an unknown device.

    >>> import numpy as np
    >>> loader = OrtDataLoader(np.arange(10.0).reshape(5, 2), np.arange(5), batch_size=2, random_iter=False)
    >>> [y.ravel().tolist() for _, y in loader.iter_numpy()]
    [[0, 1], [2, 3], [4]]

    Source: name, arguments and methods of onnxcustom's class.
    """

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray,
        sample_weight: np.ndarray | None = None,
        batch_size: int = 20,
        device: Any = "cpu",
        random_iter: bool = True,
    ) -> None:
        self.batch_size, self.random_iter = batch_size, random_iter
        cpu(device)
        self.seed, self._passes = 0, 0
        self.X_np, self.y_np = np.ascontiguousarray(X), np.ascontiguousarray(y)
        self.y_np = self.y_np.reshape(-1, 1) if self.y_np.ndim == 1 else self.y_np
        self.w_np = None if sample_weight is None else np.ascontiguousarray(sample_weight).reshape(-1)
        for array in self.data_np:
            if len(array) != len(self.X_np):
                rule, fix = "Features, labels and weights must have one entry per row.", "Give arrays of equal length."
                raise DataError(rule, got=", ".join(str(a.shape) for a in self.data_np), fix=fix)

    @property
    def device(self) -> Any:
        """The runtime's device, which is the CPU."""
        return get_ort_device("cpu")

    @property
    def X_ort(self) -> Any:
        """Features as the runtime's C++ OrtValue."""
        return self.data_ort[0]

    @property
    def y_ort(self) -> Any:
        """Labels as the runtime's C++ OrtValue."""
        return self.data_ort[1]

    @property
    def w_ort(self) -> Any:
        """Weights as the runtime's C++ OrtValue, or None."""
        return None if self.w_np is None else self.data_ort[2]

    @property
    def data_np(self) -> tuple[np.ndarray, ...]:
        """Features, labels and, if given, weights."""
        return (self.X_np, self.y_np) if self.w_np is None else (self.X_np, self.y_np, self.w_np)

    @property
    def data_ort(self) -> tuple[Any, ...]:
        """`data_np` as the runtime's C++ OrtValues."""
        return tuple(numpy_to_ort_value(array) for array in self.data_np)

    @property
    def desc(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shape and type of each array."""
        return [(array.shape, array.dtype) for array in self.data_np]

    def __len__(self) -> int:
        return len(self.X_np)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(..., ..., batch_size={self.batch_size!r}, device='cpu')"

    def iter_numpy(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield batches (features, labels[, weights]) as copies."""
        self._passes += 1
        count = len(self)
        index = order(count, seed=self.seed, number=self._passes) if self.random_iter else np.arange(count)
        size = self.batch_size if self.batch_size > 0 else count
        for first in range(0, count, size):
            yield tuple(array[index[first : first + size]] for array in self.data_np)

    def iter_ortvalue(self) -> Iterator[tuple[Any, ...]]:
        """Yield batches as the runtime's C++ OrtValues, which own their memory."""
        for batch in self.iter_numpy():
            yield tuple(numpy_to_ort_value(array) for array in batch)

    def iter_bind(self, bind: Any, names: Sequence[str]) -> Iterator[int]:
        """Bind each batch to a session's inputs and yield its number of rows.

        Args:
            bind: an onnxruntime.IOBinding, or the runtime's SessionIOBinding inside one.
            names: the inputs for features, labels and, if given, weights; further ones stay unbound.
        """
        if len(names) < len(self.data_np):
            rule, fix = "Every array of a batch needs an input.", "Name the inputs of features, labels and weights."
            raise DataError(rule, got=f"inputs {', '.join(names)} for {len(self.data_np)} arrays", fix=fix)
        binding = getattr(bind, "_iobinding", bind)
        for batch in self.iter_ortvalue():
            for name, value in zip(names, batch, strict=False):
                binding.bind_ortvalue_input(name, value)
            yield batch[0].shape()[0]
