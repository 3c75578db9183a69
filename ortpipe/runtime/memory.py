"""The number of rows that a model runs on at once, so that its values fit in memory."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

MOST = 2**27  # bytes of the largest value; a few values of such a size exist at the same time


class Shapes:
    """The shapes of a graph's inputs and values, as far as they are known."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._inputs = {entry.name: _dims(entry) for entry in graph.input}
        self._values = [
            (tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type).itemsize, _dims(entry))
            for entry in (*graph.value_info, *graph.output)
            if entry.type.tensor_type.elem_type
        ]

    def rows_at_once(self, feeds: Mapping[str, np.ndarray]) -> int:
        """Return the number of rows with which no value has more than MOST bytes, at least 1.

        A value has rows if its first size is that of an input. Other free sizes are those of `feeds`, or else 1.
        """
        rows = {dims[0] for name, dims in self._inputs.items() if name in feeds and dims}
        sizes = dict[int | str, int]()
        for name in feeds.keys() & self._inputs.keys():
            sizes |= zip(self._inputs[name][1:], feeds[name].shape[1:], strict=False)
        values = (size * _count(dims[1:], sizes) for size, dims in self._values if dims and dims[0] in rows)
        return max(1, MOST // max(values, default=1))


def _dims(entry: onnx.ValueInfoProto) -> list[int | str]:
    shape = entry.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in shape]


def _count(dims: Iterable[int | str], sizes: Mapping[int | str, int]) -> int:
    return math.prod(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in dims)
