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
        kind: `mlp`, `cnn`, `table` (an MLP of numbers and embedded words) or `tabm` (an ensemble in one network).
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
    "table": Work("MLP of 10 numbers and 8 words", (74, 64, 64, 1), 64, 8192, 6, 0.02, kind="table"),
    "tabm": Work("TabM 10→64→64→1, 8 members", (10, 64, 64, 1), 64, 8192, 3, 0.02, kind="tabm"),
}
NUMBERS, WORDS, VOCABULARY, MEMBERS = 10, 8, 20, 8  # of tables and of TabM; a word has a vector of 8 numbers
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
    if work.kind == "table":
        arrays |= {f"words{i}": rng.normal(size=(VOCABULARY, 8)).astype(np.float32) for i in range(WORDS)}
    if work.kind == "tabm":
        for i, width in enumerate(work.sizes[:-1]):  # each member's scales: of inputs, random in the first layer
            first = rng.choice([-1.0, 1.0], (MEMBERS, width)) if i == 0 else np.ones((MEMBERS, width))
            arrays[f"scale{i}"] = first.astype(np.float32)
    return arrays


def model_of(work: Work, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return the network as ONNX: raw scores, IR 8 and opset 17, which onnxruntime-training loads."""
    nodes, value = [], "X"
    layers = sum(name.startswith("weight") for name in weights)
    if work.kind == "table":
        value = _embedded(nodes, weights)
    if work.kind == "tabm":
        nodes.append(helper.make_node("Unsqueeze", ["X", "axis"], [value := "members"]))
        weights["axis"] = np.array([1], np.int64)
    for i in range(layers):
        made, last = f"layer{i}", i == layers - 1
        inputs = [value, f"weight{i}", f"bias{i}"]
        if work.kind == "tabm":
            result = "of_members" if last else made
            nodes.append(helper.make_node("Mul", [value, f"scale{i}"], [f"scaled{i}"]))
            nodes.append(helper.make_node("MatMul", [f"scaled{i}", f"weight{i}"], [f"product{i}"]))
            nodes.append(helper.make_node("Add", [f"product{i}", f"bias{i}"], [result]))
        elif weights[f"weight{i}"].ndim == 4:
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
    if work.kind == "tabm":
        nodes.append(helper.make_node("ReduceMean", ["of_members"], ["scores"], axes=[1], keepdims=0))
    columns = NUMBERS + WORDS if work.kind == "table" else work.sizes[0]
    shape: list[str | int] = ["N", 1, 8, 8] if work.kind == "cnn" else ["N", columns]
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


def _embedded(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> str:
    """Append the nodes that read numbers and the codes of words; return the name of their vector."""
    weights["sizes"] = np.array([NUMBERS, *[1] * WORDS], np.int64)
    weights["axis"] = np.array([1], np.int64)
    codes = [f"code{i}" for i in range(WORDS)]
    nodes.append(helper.make_node("Split", ["X", "sizes"], ["numbers", *codes], axis=1))
    for i, code in enumerate(codes):
        nodes.append(helper.make_node("Squeeze", [code, "axis"], [f"flat{i}"]))
        nodes.append(helper.make_node("Cast", [f"flat{i}"], [f"place{i}"], to=TensorProto.INT64))
        nodes.append(helper.make_node("Gather", [f"words{i}", f"place{i}"], [f"vector{i}"]))
    nodes.append(helper.make_node("Concat", ["numbers", *(f"vector{i}" for i in range(WORDS))], ["row"], axis=1))
    return "row"


def rows_of(work: Work) -> tuple[np.ndarray, np.ndarray, int]:
    """Return X, y and how many rows of them are for testing: made-up rows, or scikit-learn's digits, scaled to 0…1."""
    if work.classes:
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        return (X / 16).astype(np.float32), y.astype(np.int64), len(y) - work.rows
    rng, test = np.random.default_rng(SEED + 1), work.rows // 8
    columns = NUMBERS if work.kind == "table" else work.sizes[0]
    X = rng.normal(size=(work.rows + test, columns)).astype(np.float32)
    y = np.tanh(X @ rng.normal(size=columns) / 3) + 0.1 * rng.normal(size=len(X))
    if work.kind == "table":
        X = np.hstack([X, rng.integers(0, VOCABULARY, (len(X), WORDS)).astype(np.float32)])
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
    onnx.save(model_of(work, dict(weights)), folder / "model.onnx")
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
