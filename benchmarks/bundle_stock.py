"""Train bundles in plain onnxruntime: losses of the first steps, and µs per step. Needs onnxruntime and NumPy alone.

python benchmarks/bundle_stock.py FOLDER prints JSON; `benchmarks.bundle` writes the folder.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


class Bundle:
    """A bundle with its rows, in memory."""

    def __init__(self, folder: Path) -> None:
        self.about, raw = json.loads((folder / "bundle.json").read_text()), (folder / "state.bin").read_bytes()
        self.arrays = {
            t["name"]: np.frombuffer(raw, t["dtype"], int(np.prod(t["shape"])), t["offset"]).reshape(t["shape"])
            for t in self.about["state"]["tensors"]
        }
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(str(folder / "train.onnx"), options, providers)
        given = json.loads(folder.with_suffix(".json").read_text())
        values = {**given["rows"], given["label"]: [given["classes"].index(label) for label in given["labels"]]}
        kinds = {i["name"]: i for i in self.about["graphs"]["step"]["inputs"]}
        self.rows = {name: self._array(values[name], kinds[name]) for name in self.about["rows"]}
        self.state, self.done, self.epochs = {name: self.arrays[name] for name in self.about["carried"]}, 0, 0

    @staticmethod
    def _array(values: list[Any], kind: dict[str, Any]) -> np.ndarray:
        dtype = {"string": object}.get(kind["dtype"], kind["dtype"])
        missing = [np.nan if value is None else value for value in values]
        return np.array(missing, dtype).reshape(-1, *kind["shape"][1:])

    def epoch(self) -> np.ndarray:
        """Train on all rows once; return the loss of each step."""
        size, self.epochs = self.about["batch_size"], self.epochs + 1
        order = np.random.default_rng([self.about["seed"], self.epochs]).permutation(
            len(next(iter(self.rows.values())))
        )
        batches = order[: len(order) // size * size].reshape(-1, size)
        steps = np.arange(self.done, self.done + len(batches))
        numbers = {name: self.arrays[f"scalars/{name}"] for name in self.about["scalars"]}
        scalars = {name: values[np.minimum(steps, len(values) - 1)] for name, values in numbers.items()}
        rows = {name: array[batches] for name, array in self.rows.items()}
        *values, losses = self.session.run(None, {**self.state, **scalars, **rows})
        self.state, self.done = dict(zip(self.about["carried"], values, strict=True)), self.done + len(batches)
        return losses


def measure(folder: Path, epochs: int, more: int) -> dict[str, Any]:
    """Return losses of some epochs, and the time of a step in the fastest of more epochs."""
    bundle = Bundle(folder)
    losses = np.concatenate([bundle.epoch() for _ in range(epochs)])
    times = []
    for _ in range(more):
        started = time.perf_counter()
        steps = len(bundle.epoch())
        times.append((time.perf_counter() - started) / steps)
    return {"losses": losses.tolist(), "us": min(times) * 1e6}


if __name__ == "__main__":
    place, epochs, more = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    names = sorted(path.stem for path in place.glob("*.json"))
    found = {name: measure(place / name, epochs, more) for name in names}
    print(json.dumps({"version": onnxruntime.__version__, "results": found}))
