"""The weights that training starts from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

SHIFTS = {"Add", "Sub", "Gemm", "Conv", "ConvTranspose"}  # operators whose vector operand is added


def random_parameters(graph: ir.Graph, parameters: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return new weights of the same shapes and types.

    Matrices and kernels are Glorot-uniform, U(±√(6 / (fan_in + fan_out))) (Glorot and Bengio, 2010), as in
    scikit-learn's MLP; vectors and scalars that are added are 0, those that scale are 1.
    """
    rng = np.random.default_rng(seed)
    return {name: _random(graph, name, old, rng) for name, old in parameters.items()}


def _random(graph: ir.Graph, name: str, old: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if old.ndim >= 2 and max(old.shape) > 1:
        field = int(np.prod(old.shape[2:]))
        fan_in, fan_out = old.shape[0] * field, old.shape[1] * field
        bound = np.sqrt(6.0 / (fan_in + fan_out))
        return rng.uniform(-bound, bound, old.shape).astype(old.dtype)
    value = next(v for v in (*graph.inputs, *graph.initializers.values()) if v.name == name)
    added = any(
        node.op_type in SHIFTS or (node.op_type.endswith("Normalization") and i == 2) for node, i in value.uses()
    )
    return np.zeros_like(old) if added else np.ones_like(old)
