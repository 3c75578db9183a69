"""ortpipe as a Python script of its stages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from plain import DEVICE, Turns, read

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    ConvertConfig,
    Data,
    Rows,
    RuntimeConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    train,
)


def main() -> None:
    """Train in turns without end, or do the whole job: all epochs, then the model on disk as FOLDER/job/model.onnx."""
    from ortpipe.stages.convert.sources.onnx_file import OnnxFile

    problem = read(Path(sys.argv[1]))
    job = sys.argv[2] == "job"
    source = OnnxFile(str(problem.folder / "model.onnx"), task="multiclass" if problem.classes else None)
    data = Data(Rows({"X": problem.X}, problem.y))
    loss = LOSSES["cross_entropy" if problem.classes else "l2"]()
    gradient = derive(add_loss(convert(None, ConvertConfig(source), data=data), AddLossConfig(loss)))
    config = TrainConfig(
        OPTIMIZERS[problem.optimizer](lr=problem.lr),
        epochs=problem.epochs if job else 10**6,
        batch_size=problem.batch,
        seed=problem.seed,
    )
    threads, engine = int(sys.argv[3]), sys.argv[4] or "onnxruntime"
    runtime = RuntimeConfig(threads, DEVICE if engine == "xla" else "cpu", engine)
    if job:
        trained = train(gradient, config, data=data, runtime=runtime)
        (problem.folder / "job" / "model.onnx").write_bytes(trained.model.SerializeToString())
        print(json.dumps({"losses": np.asarray(trained.tensors["losses/train"]).tolist()}))
        return
    turns = Turns(problem)

    def report(event: object) -> None:
        if hasattr(event, "loss"):  # an epoch; the last checkpoint, when the turns end, is not one
            turns(event.loss)

    train(gradient, config, data=data, runtime=runtime, report=report)


if __name__ == "__main__":
    main()
