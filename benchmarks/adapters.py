"""A Transformer encoder trained on the digits 0 to 4, then on 5 to 9: all of it, its new last layer, with adapters.

    python -m benchmarks.adapters              # the table, each row in a process of its own
    python -m benchmarks.adapters --epochs 2   # shows that it runs

The rows of scikit-learn's digits are sequences of 8 steps of 8 numbers. Each way begins with the same encoder and the
same new last layer, and has its own rate, the best of three on validation rows. Memory is the largest resident size in
train, less the size before.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from sklearn.datasets import load_digits

from benchmarks.size import network
from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    Artifact,
    ConvertConfig,
    Data,
    DeriveConfig,
    Rows,
    SplitConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    evaluate,
    split,
    train,
)
from ortpipe.artifact import in_folder
from ortpipe.graph.forms.adapters import Adapter, apart, to_bytes
from ortpipe.stages.convert.changes.config import NewHead
from ortpipe.stages.convert.sources.networks.transformer import Transformer
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.derive.lora import Lora

ENCODER = Transformer(width=192, heads=6, blocks=3, inner=768, dropout=0.0)
HEAD = ("head/*",)
WAYS = {
    "all weights": DeriveConfig(),
    "the last layer": DeriveConfig(parameters=HEAD),
    "LoRA, rank 4": DeriveConfig(parameters=HEAD, adapters=Lora(rank=4)),
    "LoRA, rank 16": DeriveConfig(parameters=HEAD, adapters=Lora(rank=16)),
}
WIDE = {"all weights": DeriveConfig(), "LoRA, rank 8": DeriveConfig(adapters=Lora(rank=8))}
RATES = (3e-4, 1e-3, 3e-3)


def settled() -> float:
    """Return the resident size of this process in MB, and let `peak` start again from it (on Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    """Return the largest resident size of this process since `settled`, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def digits(first: int, rows: int) -> Data:
    """Return some rows of five digits: 100 of the others are validated, the rest is held out."""
    X, y = load_digits(return_X_y=True)
    chosen = (first <= y) & (y < first + 5)
    X, y = (X[chosen] / 16).reshape(-1, 8, 8).astype(np.float32), y[chosen] - first
    shares = SplitConfig(test=1 - (rows + 100) / len(y), validation=100 / len(y), stratify=True)
    return split(Rows({"X": X}, y), shares)


def trained(source: Artifact, way: DeriveConfig, data: Data, rate: float, epochs: int) -> tuple[Artifact, float, float]:
    """Return what train gives, its CPU seconds, and its memory."""
    gradient = derive(add_loss(source, AddLossConfig(LOSSES["cross_entropy"]())), way)
    config = TrainConfig(OPTIMIZERS["adam"](lr=rate), epochs=epochs, batch_size=32)
    before, began = settled(), time.process_time()
    result = train(gradient, config, data=data)
    return result, time.process_time() - began, peak() - before


def first(file: Path, epochs: int) -> None:
    """Train the encoder on the digits 0 to 4."""
    data = digits(0, 600)
    result, _, _ = trained(convert(None, ConvertConfig(ENCODER), data=data), DeriveConfig(), data, 3e-4, epochs)
    onnx.save(result.model, str(file))


def measure(way: str, file: Path, rate: float, epochs: int) -> dict[str, float]:
    """Train a way on the digits 5 to 9, and return the measurements."""
    data = digits(5, 200)
    nodes = onnx.load(str(file)).graph.node
    cut = next(node.input[0] for node in nodes if "output.weight" in node.input)
    config = ConvertConfig(OnnxFile(str(file)), head=NewHead(({"linear": 5}, "softmax"), cut))
    result, seconds, memory = trained(convert(None, config, data=data), WAYS[way], data, rate, epochs)
    moved, shipped = in_folder("optimizer/mean", result.tensors) or in_folder("parameter", result.tensors), 0
    if result.facts.adapters:
        adapters = {name: Adapter.of(fact) for name, fact in result.facts.adapters.items()}
        shipped = len(to_bytes(apart(result.ir_model(), adapters, result.tensors)))
    return {
        "validation": float(np.nanmin(result.tensors["losses/validation"])),
        "accuracy": evaluate(result, data=data).facts.metrics["accuracy"]["trained"],
        "numbers": sum(array.size for array in moved.values()),
        "seconds": seconds / epochs,
        "memory": memory,
        "file": (shipped or sum(array.nbytes for array in result.initializers.values())) / 2**20,
    }


def wide(way: str) -> dict[str, float]:
    """Return the memory and the seconds of two Adam steps of ten layers of 25 million parameters."""
    model = network(10, 1581)
    X = np.random.default_rng(1).standard_normal((64, 1581), np.float32)
    data = Data(Rows({"X": X}, X[:, 0]))
    gradient = derive(add_loss(convert(model, data=data), AddLossConfig(LOSSES["l2"]())), WIDE[way])
    config = TrainConfig(OPTIMIZERS["adam"](lr=1e-6), epochs=1, batch_size=32)
    before, began = settled(), time.process_time()
    result = train(gradient, config, data=data)
    numbers = sum(result.tensors[name].size for name in result.tensors if name.startswith("optimizer/")) // 2
    return {"numbers": numbers, "seconds": time.process_time() - began, "memory": peak() - before, "before": before}


def main() -> None:
    """Print the table, or measure one row of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--row", nargs=3, metavar=("WAY", "MODEL.onnx", "RATE"), help=argparse.SUPPRESS)
    parser.add_argument("--wide", metavar="WAY", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.wide:
        print(json.dumps(wide(given.wide)))
        return
    if given.row:
        way, file, rate = given.row
        print(json.dumps(measure(way, Path(file), float(rate), given.epochs)))
        return
    print(
        "| trained | accuracy | numbers | CPU seconds an epoch | train, MB | file, MB | rate |",
        "|---" * 7 + "|",
        sep="\n",
    )
    with tempfile.TemporaryDirectory() as folder:
        first(file := Path(folder, "encoder.onnx"), given.epochs)
        for way in WAYS:
            rows = {}
            for rate in RATES:
                command = [sys.executable, "-m", "benchmarks.adapters", f"--epochs={given.epochs}"]
                done = subprocess.run([*command, "--row", way, file, str(rate)], check=True, stdout=subprocess.PIPE)
                rows[rate] = json.loads(done.stdout.splitlines()[-1])
            rate = min(rows, key=lambda rate: rows[rate]["validation"])
            row = rows[rate]
            cells = [way, f"{row['accuracy']:.3f}", f"{row['numbers']:,}", f"{row['seconds']:.2f}"]
            cells += [f"{row['memory']:.0f}", f"{row['file']:.2f}", f"{rate:g}"]
            print("| " + " | ".join(cells) + " |", flush=True)

    print("\n| ten layers, 25 million numbers | numbers | CPU seconds | train, MB |", "|---" * 4 + "|", sep="\n")
    for way in WIDE:
        command = [sys.executable, "-m", "benchmarks.adapters", "--wide", way]
        row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        print(f"| {way} | {row['numbers']:,} | {row['seconds']:.1f} | {row['memory']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
