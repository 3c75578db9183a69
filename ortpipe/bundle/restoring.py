"""Put the weights that a program trained in a bundle back into a model of ortpipe."""

import math
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from ortpipe.artifact import Artifact
from ortpipe.bounded import MOST_BYTES, read_below
from ortpipe.bundle.reading import read_bundle, read_state
from ortpipe.errors import ModelError
from ortpipe.graph import set_initializers


def restored(artifact: Artifact, folder: Path, saved: Path | None = None) -> Artifact:
    """Return an artifact with the weights of a bundle, or of a state that was saved while it trained.

    Args:
        artifact: a model with the parameters of the bundle, such as the trained model of its run.
        folder: the bundle.
        saved: a .safetensors file with the state, such as that of `save()` in JavaScript; None: state.bin.

    Raises:
        ModelError: the file is not a state of this bundle, or the artifact has other parameters.
    """
    description = read_bundle(folder)
    try:
        arrays = (
            read_state(folder, description) if saved is None else load(read_below(saved.parent, saved.name, MOST_BYTES))
        )
        vector = arrays[description["weights"][0]]
        weights = {name: arrays[name] for name in description["weights"][1:]}
        for part in description["parameters"]:
            end = part["offset"] + math.prod(part["shape"])
            weights[part["name"]] = vector[part["offset"] : end].reshape(part["shape"])
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        rule, fix = "A saved state must be one of this bundle.", "Name the bundle that it was saved from."
        raise ModelError(rule, got=f"{saved}: {error}", fix=fix) from error
    shapes = {name: array.shape for name, array in artifact.initializers.items()}
    if wrong := [name for name, array in weights.items() if shapes.get(name) != array.shape]:
        rule, fix = "The model must have the parameters of the bundle.", "Name the model that was exported."
        raise ModelError(rule, got=f"no {wrong[0]} of shape {weights[wrong[0]].shape}", fix=fix)
    model = artifact.ir_model()
    set_initializers(model, {n: np.asarray(a, artifact.initializers[n].dtype) for n, a in weights.items()})
    return Artifact(model, artifact.facts, artifact.tensors)


def _bytes(file: Path) -> bytes:
    return read_below(file.parent, file.name, MOST_BYTES)
