"""Keep a model and its large weights apart, so that checks, rewrites and parsing cost by its nodes alone.

The large initializers have names, types and dimensions, but no values; these are in separate arrays.
"""

import math
from collections.abc import Mapping

import numpy as np
import onnx

from ortpipe.graph.core.protos import graphs

LARGE_WEIGHT = 2**12  # entries from which on a weight is large
TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
HEAVY = 2**20  # bytes of weights, from which on checks see the model without them
LARGE_MODEL = 2**31 - 2**20  # protobuf's limit is 2 GiB; above this, weights go to a file beside the model
Weights = Mapping[str, np.ndarray]


def is_large_weight(dtype: int, size: int) -> bool:
    """Return whether a tensor of an ONNX type and a number of entries is a large weight."""
    return dtype in TYPES and size >= LARGE_WEIGHT


def sealed(array: np.ndarray) -> np.ndarray:
    """Return a read-only array that owns its memory: a copy, unless the array is one already."""
    flags = array.flags
    base: object = array.base
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, bytes) and flags.c_contiguous and flags.aligned:
        return array
    if flags.writeable or not flags.owndata or not flags.c_contiguous or not flags.aligned:
        array = np.array(array, order="C")
        array.flags.writeable = False
    return array


def weigh(model: onnx.ModelProto) -> int:
    """Return the size of the initializers in bytes, by their dimensions; inner graphs are included."""
    tensors = (tensor for graph in graphs(model.graph) for tensor in graph.initializer)
    return sum(math.prod(t.dims) * onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in tensors)


def is_heavy(model: onnx.ModelProto) -> bool:
    """Return whether a model is checked without its weights."""
    return weigh(model) > min(HEAVY, LARGE_MODEL)


def is_large(model: onnx.ModelProto) -> bool:
    """Return whether a model needs files beside it; protobuf cannot measure one over 2 GiB, so weights are first."""
    return weigh(model) > LARGE_MODEL or model.ByteSize() > LARGE_MODEL
