"""The weights that training starts from."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Artifact
from ortpipe.stages.train.config import TrainConfig

THIRD_IS_ADDED = ("Gemm", "Conv", "ConvTranspose", "Normalization")  # operators whose third operand is a bias


def first_values(artifact: Artifact, config: TrainConfig) -> dict[str, np.ndarray]:
    """Return the parameters, the model's own or random ones, and the running statistics."""
    trained, moved = artifact.facts.gradients, artifact.facts.statistics
    parameters, statistics = ({name: artifact.initializers[name] for name in names} for names in (trained, moved))
    if config.init == "random":
        parameters = random_parameters(artifact.ir_model().graph, parameters, config.seed)
    return {**{name: _master(array) for name, array in parameters.items()}, **statistics}


def _master(array: np.ndarray) -> np.ndarray:
    """Return a parameter of halves in float32, in which it is trained."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


def random_parameters(graph: ir.Graph, parameters: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return new weights of the same shapes and types.

    Matrices and kernels are Glorot-uniform, U(±√(6 / (fan_in + fan_out))) (Glorot and Bengio, 2010), as in
    scikit-learn's MLP; vectors and scalars that are added are 0, those that scale are 1.
    """
    rng = np.random.default_rng(seed)
    return {name: _random(graph, name, old, rng) for name, old in parameters.items()}


def _random(graph: ir.Graph, name: str, old: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    value = next(v for v in (*graph.inputs, *graph.initializers.values()) if v.name == name)
    added = any(_is_added(node, i) for node, i in value.uses())
    if old.ndim >= 2 and not (added and old.size == max(old.shape)):  # [1, K] that is added is a bias all the same
        field = int(np.prod(old.shape[2:]))
        fan_in, fan_out = old.shape[0] * field, old.shape[1] * field
        bound = np.sqrt(6.0 / (fan_in + fan_out))
        return rng.uniform(-bound, bound, old.shape).astype(old.dtype)
    return np.zeros_like(old) if added else np.ones_like(old)


def _is_added(node: ir.Node, place: int) -> bool:
    return node.op_type in ("Add", "Sub") or (place == 2 and node.op_type.endswith(THIRD_IS_ADDED))
