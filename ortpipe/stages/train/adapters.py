"""Adapters of a trained model: they are merged into the weights that they adapt."""

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, under
from ortpipe.graph.forms.adapters import Adapter, merged, without_adapters


def merge_adapters(artifact: Artifact, forward: ir.Model, tensors: Arrays) -> dict[str, np.ndarray]:
    """Remove the adapters from a forward model; return the initial and final values of the weights they adapt.

    `tensors` are train's, with the factors of the adapters.
    """
    adapters = {name: Adapter(**fact) for name, fact in artifact.facts.adapters.items()}
    without_adapters(forward, adapters)
    weights = artifact.initializers
    trained = {**weights, **under("parameter", tensors)}  # some have no gradient
    return {f"initial/{name}": weights[name] for name in adapters} | {
        f"parameter/{name}": merged(weights[name], trained[left_factor], trained[right_factor], scale)
        for name, (left_factor, right_factor, scale) in adapters.items()
    }
