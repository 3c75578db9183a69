"""Read the folder of a bundle, which may come from another user."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortpipe.bounded import MOST_BYTES, parse_json, read_below
from ortpipe.errors import ModelError

FORMAT = 1
DESCRIPTION, STATE = "bundle.json", "state.bin"
GRAPHS = ("train", "step", "predict", "validate")
PARTS = {"parameters": list, "carried": list, "rows": list, "scalars": list, "graphs": dict, "state": dict}
PARTS |= {"weights": list, "predictions": list, "files": dict, "origin": dict, "optimizer": dict, "onnxruntime": str}


def read_bundle(folder: Path) -> dict[str, Any]:
    """Return the description of a bundle.

    Raises:
        ModelError: bundle.json is missing or damaged, or is of another format.
    """
    try:
        description = parse_json(read_below(folder, DESCRIPTION))
        wrong = [name for name, kind in PARTS.items() if not isinstance(description[name], kind)]
        wrong += [f"predictions: {one}" for one in description["predictions"] if not isinstance(one, dict)]
        if description["format"] != FORMAT or wrong or not {*GRAPHS} <= {*description["graphs"]}:
            raise ValueError(f"format {description['format']!r:.20}, wrong entries: {', '.join(wrong) or 'none'}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, DESCRIPTION, error) from error
    return dict(description)


def read_state(folder: Path, description: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of state.bin by name; those in float16 are cast to float32, in which the graphs compute.

    Raises:
        ModelError: state.bin is missing, or shorter than bundle.json says.
    """
    try:
        raw, arrays = read_below(folder, STATE, MOST_BYTES), dict[str, np.ndarray]()
        for tensor in description["state"]["tensors"]:
            dtype, shape = np.dtype(str(tensor["dtype"])).newbyteorder("<"), tensor["shape"]
            if not all(isinstance(size, int) and size >= 0 for size in shape):
                raise ValueError(f"{tensor['name']} of shape {shape}")
            array = np.frombuffer(raw, dtype, math.prod(shape), tensor["offset"]).reshape(shape)
            arrays[tensor["name"]] = array.astype(np.float32 if dtype.itemsize == 2 else dtype.newbyteorder("="))
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged(folder, STATE, error) from error
    return arrays


def scalars_at(scalars: Mapping[str, np.ndarray], first: int, count: int) -> dict[str, np.ndarray]:
    """Return the optimizer's numbers for some steps; after the last step that has numbers, those of the last."""
    steps = np.arange(first, first + count)
    return {name: array[np.minimum(steps, len(array) - 1)] for name, array in scalars.items()}


def changed_files(folder: Path, description: dict[str, Any]) -> list[str]:
    """Return the files that are missing, or whose SHA-256 is not the one in bundle.json."""
    return [name for name, digest in description["files"].items() if _digest(folder, name) != digest]


def _digest(folder: Path, name: str) -> str | None:
    try:
        return hashlib.sha256(read_below(folder, name, MOST_BYTES)).hexdigest()
    except (OSError, ValueError):
        return None


def _damaged(folder: Path, name: str, error: Exception) -> ModelError:
    got = f"{folder / name}: {error or type(error).__name__}"
    return ModelError("A bundle must have the files that ortpipe export writes.", got=got, fix="Export it again.")
