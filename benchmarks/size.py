"""CPU seconds and memory that models of some sizes take in each stage.

    python -m benchmarks.size                  # the table, each row in a process of its own
    python -m benchmarks.size width 100000000  # ten layers of 100 million parameters
    python -m benchmarks.size depth 1000       # a thousand layers of 64 by 64

Networks of MatMul, Add and Relu. Memory is the largest resident size of the process in that stage alone, less the
size before the model was made. It includes values that stages hold for their callers, such as the given model.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ortpipe import AddLossConfig, add_loss, convert, derive, train
from ortpipe.data.rows import Data, Rows
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers.sgd import SGD

ROWS = [("width", 10**6), ("width", 10**7), ("width", 10**8), *(("depth", n) for n in (100, 300, 1000, 3000))]


def network(layers: int, width: int) -> onnx.ModelProto:
    """Return a network of so many equal layers."""
    rng, nodes, weights, h = np.random.default_rng(0), [], [], "X"
    scale = np.float32((2 / width) ** 0.5)
    for i in range(layers):
        weights.append(numpy_helper.from_array(rng.standard_normal((width, width), np.float32) * scale, f"w{i}"))
        weights.append(numpy_helper.from_array(np.full(width, i / 1e4, np.float32), f"b{i}"))
        nodes.append(helper.make_node("MatMul", [h, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [h := f"h{i}"]))
    weights.append(numpy_helper.from_array(rng.standard_normal((width, 1), np.float32) * scale, "w"))
    nodes.append(helper.make_node("MatMul", [h, "w"], ["y"]))
    x, y = (helper.make_tensor_value_info(n, 1, ["N", k]) for n, k in (("X", width), ("y", 1)))
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def peak() -> float:
    """Return the largest resident size of this process since `forget_peak`, in MB."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """Reset the largest resident size to the current one."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(kind: str, count: int) -> list[str]:
    """Return a row of the table."""
    layers, width = (10, round((count / 10) ** 0.5)) if kind == "width" else (count, 64)
    X = np.random.default_rng(1).standard_normal((96, width), np.float32)  # three batches
    data, before = Data(Rows(X, X[:, 0]), test=Rows(X, X[:, 0])), peak()
    cells = [kind, f"{count:,}", f"{4 * layers * width * (width + 1) / 2**20:,.0f}"]

    def timed(stage: Callable[[], Any]) -> Any:
        forget_peak()
        began = time.process_time()
        result = stage()
        cells.append(f"{time.process_time() - began:.2f} s, {peak() - before:,.0f}")
        return result

    artifact = timed(lambda: convert(network(layers, width), data=data))
    artifact = timed(lambda: add_loss(artifact, AddLossConfig(loss=L2())))
    artifact = timed(lambda: derive(artifact))
    timed(lambda: train(artifact, TrainConfig(epochs=2, batch_size=32, optimizer=SGD(lr=1e-6)), data=data))
    return cells


def main() -> None:
    """Print one row, or the table of all."""
    if len(sys.argv) == 3:
        print("| " + " | ".join(measure(sys.argv[1], int(sys.argv[2]))) + " |")
        return
    heads = ("", "parameters, layers", "model, MB", "convert", "add_loss", "derive", "train, two epochs of three steps")
    print("| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", sep="\n", flush=True)
    for kind, count in ROWS:
        subprocess.run([sys.executable, "-m", "benchmarks.size", kind, str(count)], check=True)


if __name__ == "__main__":
    main()
