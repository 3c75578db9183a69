"""The work that every peer does: networks, rows and first weights, written so that any interpreter reads them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortpipe import Rows, SplitConfig, split

SEED = 0
EPOCHS = 20  # of a whole job
OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class Work:
    """One training problem.

    Attributes:
        name: as the table writes it.
        sizes: features, hidden layers, outputs; of a cnn, channels instead of hidden layers.
        batch: rows per step; it divides `rows`.
        rows: to train on.
        turn: epochs that are timed at once, so that a turn is long against the clock's and the caches' noise.
        lr: the rate of SGD; Adam's is 0.001.
        classes: 0 for one number per row.
        kind: `mlp` or `cnn`.
    """

    name: str
    sizes: tuple[int, ...]
    batch: int
    rows: int
    turn: int
    lr: float
    classes: int = 0
    kind: str = "mlp"


MODELS = {
    "linear": Work("linear 10→1", (10, 1), 32, 8192, 12, 0.01),
    "mlp": Work("MLP 10→50→20→1", (10, 50, 20, 1), 32, 8192, 6, 0.05),
    "digits": Work("digits MLP 64→100→10", (64, 100, 10), 64, 1536, 24, 0.1, classes=10),
    "large": Work("MLP 100→256→128→1", (100, 256, 128, 1), 256, 8192, 4, 0.05),
    "cnn": Work("digits CNN 8c3-p2-16c3-10", (64, 8, 16, 10), 64, 1536, 6, 0.1, classes=10, kind="cnn"),
}
BASE = Work("base: 8192 rows, 32→64→64→1", (32, 64, 64, 1), 64, 8192, 4, 0.05)
GROWTH = (
    BASE,
    *(dataclasses.replace(BASE, name=f"rows × {k}", rows=BASE.rows * k) for k in (2, 4)),
    *(dataclasses.replace(BASE, name=f"features × {k}", sizes=(32 * k, 64, 64, 1)) for k in (2, 4)),
    *(dataclasses.replace(BASE, name=f"hidden units × {k}", sizes=(32, 64 * k, 64 * k, 1)) for k in (2, 4)),
)


def weights_of(work: Work) -> dict[str, np.ndarray]:
    """Return the first weights: Glorot's uniform ones, biases 0."""
    rng, arrays = np.random.default_rng(SEED), {}
    if work.kind == "cnn":
        _, first, second, outputs = work.sizes
        shapes: list[tuple[int, ...]] = [(first, 1, 3, 3), (second, first, 3, 3), (second * 16, outputs)]
    else:
        shapes = list(zip(work.sizes, work.sizes[1:], strict=False))
    for i, shape in enumerate(shapes):
        fans = (shape[0] + shape[1]) * int(np.prod(shape[2:]))
        bound = (6 / fans) ** 0.5
        arrays[f"weight{i}"] = rng.uniform(-bound, bound, shape).astype(np.float32)
        arrays[f"bias{i}"] = np.zeros(shape[0 if len(shape) == 4 else 1], np.float32)
    return arrays


def model_of(work: Work, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return the network as ONNX: raw scores, IR 8 and opset 17, which onnxruntime-training loads."""
    nodes, value = [], "X"
    shape: list[str | int] = ["N", 1, 8, 8] if work.kind == "cnn" else ["N", work.sizes[0]]
    layers = len(weights) // 2
    for i in range(layers):
        made, last = f"layer{i}", i == layers - 1
        inputs = [value, f"weight{i}", f"bias{i}"]
        if weights[f"weight{i}"].ndim == 4:
            nodes.append(helper.make_node("Conv", inputs, [made], pads=[1, 1, 1, 1]))
        else:
            nodes.append(helper.make_node("Gemm", inputs, ["scores" if last else made]))
        if not last:
            nodes.append(helper.make_node("Relu", [made], [value := f"relu{i}"]))
        if work.kind == "cnn" and i == 0:
            nodes.append(helper.make_node("MaxPool", [value], ["pool"], kernel_shape=[2, 2], strides=[2, 2]))
            value = "pool"
        if work.kind == "cnn" and i == 1:
            nodes.append(helper.make_node("Flatten", [value], ["flat"]))
            value = "flat"
    graph = helper.make_graph(
        nodes,
        work.kind,
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", work.sizes[-1]])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def rows_of(work: Work) -> tuple[np.ndarray, np.ndarray, int]:
    """Return X, y and how many rows of them are for testing: made-up rows, or scikit-learn's digits, scaled to 0…1."""
    if work.classes:
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        return (X / 16).astype(np.float32), y.astype(np.int64), len(y) - work.rows
    rng, test = np.random.default_rng(SEED + 1), work.rows // 8
    X = rng.normal(size=(work.rows + test, work.sizes[0])).astype(np.float32)
    y = np.tanh(X @ rng.normal(size=work.sizes[0]) / 3) + 0.1 * rng.normal(size=len(X))
    return X, y.astype(np.float32), test


def prepare(folder: Path, work: Work, optimizer: str) -> list[str]:
    """Write the problem into a folder; return the arguments of the `ortpipe` command that trains it.

    The command splits off its test rows itself; the peers get its training rows.
    """
    (folder / "job").mkdir(parents=True, exist_ok=True)
    X, y, test = rows_of(work)
    fraction = test / len(X)
    train = split(Rows({"X": X}, y), SplitConfig(test=fraction)).train
    assert len(train) == work.rows
    assert work.rows % work.batch == 0
    weights = weights_of(work)
    onnx.save(model_of(work, weights), folder / "model.onnx")
    np.savez(folder / "rows.npz", X=X, y=y)
    np.savez(folder / "train.npz", X=train.inputs["X"], y=train.label)
    np.savez(folder / "weights.npz", **weights)
    lr = work.lr if optimizer == "sgd" else 0.001
    problem = {**dataclasses.asdict(work), "optimizer": optimizer, "lr": lr, "seed": SEED, "epochs": EPOCHS}
    (folder / "problem.json").write_text(json.dumps(problem))
    return [
        "~experiment",
        "data=npz",
        f"data.source.path={folder / 'rows.npz'}",
        f"data.split.test={fraction!r}",
        "convert=onnx",
        f"convert.source.path={folder / 'model.onnx'}",
        *(["convert.source.task=multiclass"] if work.classes else ["add_loss=l2"]),
        f"train/optimizer={optimizer}",
        f"train.optimizer.lr={lr!r}",
        f"train.epochs={EPOCHS}",
        f"train.batch_size={work.batch}",
        "recorder=none",
        f"paths.outputs={folder / 'job'}",
    ]
