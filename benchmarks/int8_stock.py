"""Run the models that benchmarks/int8.py wrote in this interpreter's runtime; needs only onnxruntime and onnx."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, quantize_static

INTEGERS = ("QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "QLinearAdd")
FLOATS = ("Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul")


def on_stock(folder: Path) -> Iterator[tuple[str, float, int, str]]:
    """Yield the name, metric, bytes and kernels of each model in this runtime."""
    rows = np.load(folder / "rows.npz")

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._rows = iter([{"X": part} for part in np.array_split(rows["calibration"], 8)])

        def get_next(self) -> Any:
            return next(self._rows, None)

    quantize_static(str(folder / "float.onnx"), str(folder / "static.onnx"), Reader(), per_channel=True)
    for name in ("float", "static", "int8"):
        options = ort.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = str(folder / "optimized.onnx"), 4
        session = ort.InferenceSession(str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
        [scores] = session.run([str(rows["output"])], {"X": rows["X"]})
        counts = Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)
        kernels = [sum(counts[op] for op in ops) for ops in (INTEGERS, FLOATS)]
        yield name, metric(scores, rows["y"]), (folder / f"{name}.onnx").stat().st_size, f"{kernels[0]} / {kernels[1]}"


def metric(scores: np.ndarray, y: np.ndarray) -> float:
    """Return the accuracy of class scores, of one column at ½, or R² of values."""
    if y.dtype.kind == "f":
        return float(1 - np.square(scores.ravel() - y.ravel()).sum() / np.square(y - y.mean()).sum())
    classes = scores.argmax(1) if scores.shape[1] > 1 else scores.ravel() > 0.5
    return float(np.mean(classes == y.ravel()))


if __name__ == "__main__":
    print(json.dumps(list(on_stock(Path(sys.argv[1])))))
