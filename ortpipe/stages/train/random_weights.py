"""Random initial weights."""

import math

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.graph.core import query
from ortpipe.graph.core.operators import having

THIRD_IS_ADDED = having("bias")


def random_parameters(graph: ir.Graph, parameters: Arrays, seed: int) -> dict[str, np.ndarray]:
    """Return new weights of the same shapes and types.

    Matrices and kernels are Glorot-uniform, U(±√(6 / (fan_in + fan_out))) (Glorot and Bengio, 2010), as in
    scikit-learn's MLP; vectors and scalars that are added are 0, those that scale are 1.
    """
    rng, random = np.random.default_rng(seed), dict[str, np.ndarray]()
    for name, old in parameters.items():
        added = any(
            node.op_type in ("Add", "Sub") or (place == 2 and node.op_type in THIRD_IS_ADDED)
            for node, place in query.value(graph, name).uses()
        )
        if old.ndim < 2 or (added and old.size == max(old.shape)):  # a [1, K] array that is added is also a bias
            random[name] = np.zeros_like(old) if added else np.ones_like(old)
        else:
            bound = np.sqrt(6.0 / (sum(old.shape[:2]) * math.prod(old.shape[2:])))
            random[name] = rng.uniform(-bound, bound, old.shape).astype(old.dtype)
    return random
