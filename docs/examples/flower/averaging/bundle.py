"""A bundle of ortpipe in onnxruntime: weights in, weights out."""

import json
from pathlib import Path

import numpy as np
import onnxruntime


class Bundle:
    """The graphs and the state of a bundle whose state is its parameters, as with SGD."""

    def __init__(self, folder: str) -> None:
        """Read the description and the arrays."""
        self.folder = Path(folder)
        self.description = json.loads((self.folder / "bundle.json").read_text())
        if self.description["carried"] != ["parameters"] or self.description["scalars"] != ["rate"]:
            raise ValueError(f"{folder} must be a bundle of SGD without running statistics.")
        raw = (self.folder / "state.bin").read_bytes()
        self.arrays = {
            t["name"]: np.frombuffer(raw, t["dtype"], int(np.prod(t["shape"])), t["offset"])
            for t in self.description["state"]["tensors"]
        }

    def fit(self, weights: np.ndarray, *rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights after one step per batch, and the losses; rows are [batches, rows, …]."""
        steps = np.minimum(np.arange(len(rows[0])), len(self.arrays["scalars/rate"]) - 1)
        session = onnxruntime.InferenceSession(self.folder / "train.onnx")
        named = dict(zip(self.description["rows"], rows, strict=True))
        feeds = {"parameters": weights, "rate": self.arrays["scalars/rate"][steps], **named}
        after, losses = session.run(None, feeds)
        return after, losses
