"""Put the weights that a program trained in a bundle back into a model of ortpipe."""

import math
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from ortpipe.artifact import Artifact
from ortpipe.bounded import file_below
from ortpipe.bundle.reading import read_bundle, read_state
from ortpipe.errors import ModelError
from ortpipe.graph import set_initializers
from ortpipe.graph.files.tensors import read_tensors


def restored(artifact: Artifact, folder: str | Path, saved: str | Path | None = None) -> Artifact:
    """Return an artifact with the weights of a bundle, or of a state that was saved while it trained.

    Args:
        artifact: a model with the parameters of the bundle, such as the trained model of its run.
        folder: the bundle.
        saved: a .safetensors file with the state, such as that of `save()` in JavaScript; None: state.bin. Its metadata
            have the SHA-256 of the bundle's train.onnx as `bundle`.

    Raises:
        ModelError: the file is not a state of this bundle, it has a number that is not finite, or the artifact has
            other parameters.
    """
    description = read_bundle(Path(folder))
    exact = read_state(Path(folder), description)
    arrays = exact if saved is None else _saved(Path(saved), description["files"]["train.onnx"])
    names = [str(name) for name in description["weights"]]
    if wrong := [name for name in names if name not in arrays or arrays[name].shape != exact[name].shape]:
        raise _foreign(saved, f"another {wrong[0]}")
    if wrong := [name for name in names if not np.isfinite(arrays[name]).all()]:
        raise _foreign(saved, f"numbers in {wrong[0]} that are not finite")
    vector, weights = arrays[names[0]], {name: arrays[name] for name in names[1:]}
    for part in description["parameters"]:
        end = part["offset"] + math.prod(part["shape"])
        weights[part["name"]] = vector[part["offset"] : end].reshape(part["shape"])
    shapes = {name: array.shape for name, array in artifact.initializers.items()}
    if wrong := [name for name, array in weights.items() if shapes.get(name) != array.shape]:
        rule, fix = "The model must have the parameters of the bundle.", "Name the model that was exported."
        raise ModelError(rule, got=f"no {wrong[0]} of shape {weights[wrong[0]].shape}", fix=fix)
    model = artifact.ir_model()
    set_initializers(model, {n: np.asarray(a, artifact.initializers[n].dtype) for n, a in weights.items()})
    return Artifact(model, artifact.facts, artifact.tensors)


def _saved(file: Path, train: str) -> dict[str, np.ndarray]:
    """Return the arrays of a state that was saved from the bundle with this train.onnx."""
    try:
        arrays, metadata = read_tensors(file_below(file.parent, file.name))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _foreign(file, str(error)) from error
    if metadata.get("bundle") != train:
        raise _foreign(file, f"train.onnx of SHA-256 {metadata.get('bundle')}")
    return arrays


def _foreign(saved: str | Path | None, got: str) -> ModelError:
    rule, fix = "A saved state must be one of this bundle.", "Name the bundle that it was saved from."
    return ModelError(rule, got=f"{'state.bin' if saved is None else saved}: {got}", fix=fix)
