"""ONNX Runtime's on-device training API: a train step, an optimizer step and a lazy reset per batch.

Its artifacts (training, evaluation and optimizer model, checkpoint) are made once, beforehand, as its documentation
has it: `ort_device.py FOLDER prepare 1`. `onnxruntime.training` imports torch for parts that are not needed here, the
generator of artifacts and the API do not: giving Python the package without running its `__init__` loads them alone.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
from plain import Epoch, Weights, main, read

package = types.ModuleType("onnxruntime.training")
package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
sys.modules[package.__name__] = package
from onnxruntime.training import api  # noqa: E402


def prepare(problem: SimpleNamespace) -> None:
    """Write the artifacts into FOLDER/device, stamped with an IR version that this build loads."""
    import onnx
    from onnxruntime.training import artifacts, onnxblock

    optimizer = {"sgd": onnxblock.optim.SGD, "adam": lambda: onnxblock.optim.AdamW(eps=1e-8, weight_decay=0.0)}
    target = problem.folder / "device"
    target.mkdir(exist_ok=True)
    artifacts.generate_artifacts(
        onnx.load(problem.folder / "model.onnx"),
        requires_grad=problem.names,
        loss=artifacts.LossType.CrossEntropyLoss if problem.classes else artifacts.LossType.MSELoss,
        optimizer=optimizer[problem.optimizer](),
        artifact_directory=target,
    )
    for path in target.glob("*.onnx"):
        stamped = onnx.load(path)
        stamped.ir_version = 8  # the optimizer model comes with onnx's own newest
        onnx.save(stamped, path)


def build(problem: SimpleNamespace, threads: int) -> tuple[Epoch, Weights]:
    """Return the epoch and the weights."""
    if "prepare" in sys.argv:
        prepare(problem)
    source = problem.folder / "device"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    state = api.CheckpointState.load_checkpoint(source / "checkpoint")
    module = api.Module(source / "training_model.onnx", state, source / "eval_model.onnx", "cpu", options)
    optimizer = api.Optimizer(source / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(problem.lr)
    shape = (-1, 1, 8, 8) if problem.kind == "cnn" else (-1, problem.sizes[0])
    X, y = problem.X.reshape(shape), problem.y if problem.classes else problem.y.reshape(-1, 1)

    def epoch(index: np.ndarray) -> float:
        total = 0.0
        for rows, truth in zip(X[index], y[index], strict=True):
            total += float(module(rows, truth))
            optimizer.step()
            module.lazy_reset_grad()
        return total / len(index)

    return epoch, lambda: {name: state.parameters[name].data for name in problem.names}


if __name__ == "__main__":
    if sys.argv[2] == "prepare":
        prepare(read(Path(sys.argv[1])))
    else:
        main(build)
