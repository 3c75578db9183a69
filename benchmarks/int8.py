"""Float, int8 after training (onnxruntime's quantize_static) and int8 in training (convert.quantize=qdq), side by side.

    python -m benchmarks.int8 [--stock /path/to/python]   # that has a stock onnxruntime and onnx; by default this one

The metric on test rows as that runtime computes it, the file's bytes, and how many products it computes by kernels of
integers; means of three splits and first weights. Networks are trained in float, and go on for a quarter as many epochs
either in float or rounded. quantize_static is per channel, otherwise as it is by default, and sees the rows that
convert.quantize measures ranges on.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from sklearn import datasets

from ortpipe import (
    AddLossConfig,
    ConvertConfig,
    Rows,
    SplitConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    evaluate,
    save_artifact,
    split,
    train,
)
from ortpipe.graph.forms.int8 import to_int8
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.convert.changes.config import WeightsFrom
from ortpipe.stages.convert.sources.networks.cnn import CNN
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.train.optimizers import OPTIMIZERS

EPOCHS, SEEDS = 40, 3
TASKS = {  # name → (data, source, loss)
    "digits, MLP 256-256": (datasets.load_digits, MLP(), "cross_entropy"),
    "digits, CNN 16-32": (datasets.load_digits, CNN(image=(1, 8, 8)), "cross_entropy"),
    "breast cancer, MLP 256-256": (datasets.load_breast_cancer, MLP(), "log"),
    "diabetes, MLP 64-64": (datasets.load_diabetes, MLP(hidden=(64, 64)), "l2"),
}


def made(name: str, seed: int, folder: Path) -> dict[str, float]:
    """Write a task's models and rows into a folder; return our own metric of the float and the rounded one."""
    load, source, loss = TASKS[name]
    X, y = load(return_X_y=True)
    kind = np.float32 if loss == "l2" else y.dtype
    data = split(Rows({"X": X.astype(np.float32)}, y.astype(kind)), SplitConfig(test=0.25, seed=seed))
    found, init, trained = dict[str, float](), None, None
    for state, epochs, lr in (("base", EPOCHS, 2e-3), ("float", EPOCHS // 4, 1e-4), ("qdq", EPOCHS // 4, 1e-4)):
        config = ConvertConfig(source, init=init, quantize="qdq" if state == "qdq" else None, seed=seed)
        loss_model = add_loss(convert(None, config, data=data), AddLossConfig(LOSSES[loss]()))
        trained = train(derive(loss_model), TrainConfig(OPTIMIZERS["adamw"](lr=lr), epochs=epochs), data=data)
        metrics = evaluate(trained, data=data).facts.metrics
        row = metrics["accuracy" if "accuracy" in metrics else "r2"]
        found |= {state: row["trained"], f"{state}, before": row["before"]}
        onnx.save(trained.model, folder / f"{state}.onnx")
        save_artifact(trained, folder / state)
        init = WeightsFrom(str(folder / "base"))
    onnx.save(to_int8(trained.model), folder / "int8.onnx")
    rows = data.train.sample().inputs["X"]
    test = data.test
    assert isinstance(test, Rows)
    facts = trained.facts
    labels = np.searchsorted(facts.classes, test.label) if facts.classes is not None else test.label
    np.savez(folder / "rows.npz", X=test.inputs["X"], y=labels, calibration=rows, output=facts.prediction)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", default=sys.executable)
    options = parser.parse_args()
    print("| task | model | metric | bytes | products in integers / floats |\n|---|---|---|---|---|")
    words = {"float": "float", "static": "int8 by quantize_static", "int8": "int8 by convert.quantize=qdq"}
    for name in TASKS:
        rows: dict[str, list[list[Any]]] = {}
        for seed in range(SEEDS):
            with tempfile.TemporaryDirectory() as folder:
                ours = made(name, seed, Path(folder))
                code = Path(__file__).with_name("int8_stock.py")
                out = subprocess.run([options.stock, code, folder], capture_output=True, text=True, check=True).stdout
            for state, *row in json.loads(out.splitlines()[-1]):
                rows.setdefault(words[state], []).append(row)
            for state, word in (("qdq, before", "rounded, not trained so"), ("qdq", "convert.quantize=qdq, in floats")):
                rows.setdefault(word, []).append([ours[state], "", ""])
        for word, found in rows.items():
            mean = np.mean([row[0] for row in found])
            print(f"| {name} | {word} | {mean:.4f} | {found[0][1]} | {found[0][2]} |", flush=True)


if __name__ == "__main__":
    main()
