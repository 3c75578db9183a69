"""Where a step of the digits MLP goes, by operator, as a picture.

    python -m benchmarks.profile picture.svg [sgd|adam] [model]

The runtime's profile has the time of each kernel, including the cost of its clock. The share between kernels (frames,
allocations, the Scan) is the rest of the step's time without a profile.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime

from benchmarks.peers.plain import order, read
from benchmarks.work import MODELS, prepare
from ortpipe import LOSSES, OPTIMIZERS, AddLossConfig, ConvertConfig, Data, Rows, TrainConfig, add_loss, convert, derive
from ortpipe.data.feeds import feeds
from ortpipe.fast import Fast
from ortpipe.graph.core.apart import serialized
from ortpipe.graph.core.check import finish_apart
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.train.epoch_graph import build_epoch
from ortpipe.stages.train.step import build_step

RUNS = 30


def epoch(name: str, optimizer: str, folder: Path) -> tuple[bytes, dict[str, np.ndarray], int]:
    """Return the epoch graph of a benchmark's model, its feeds, and its number of steps."""
    prepare(folder, MODELS[name], optimizer)
    problem = read(folder)
    source = OnnxFile(str(folder / "model.onnx"), task="multiclass" if problem.classes else None)
    data = Data(Rows({"X": problem.X}, problem.y))
    loss = LOSSES["cross_entropy" if problem.classes else "l2"]()
    gradient = derive(add_loss(convert(None, ConvertConfig(source), data=data), AddLossConfig(loss)))
    config = TrainConfig(OPTIMIZERS[optimizer](lr=problem.lr), batch_size=problem.batch)
    step = build_step(gradient, config)
    model = build_epoch(step)
    Fast().rewrite(model, problem.batch, step.seed, step.gradients, None)
    proto, weights = finish_apart(model, deep=True)
    index, rows = order(problem, 1), feeds(gradient.model, gradient.facts, data.train)
    given = {n: a[index.ravel()].reshape(*index.shape, *a.shape[1:]) for n, a in rows.items() if n in step.batch}
    numbers, rates = np.arange(1, len(index) + 1), np.full(len(index), problem.lr)
    given |= {n: function(rates, numbers).astype(step.dtype) for n, function in step.scalars.items()}
    return serialized(proto, weights), given | step.pack(step.init(gradient.initializers)), len(index)


def session(content: bytes, profile: str = "") -> onnxruntime.InferenceSession:
    """Load a graph, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_profiling, options.profile_file_prefix = bool(profile), profile
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def main(picture: str, optimizer: str = "adam", name: str = "digits") -> None:
    """Measure, draw, and print the same numbers."""
    with tempfile.TemporaryDirectory() as scratch:
        content, given, steps = epoch(name, optimizer, Path(scratch))
        plain, profiled = session(content), session(content, str(Path(scratch) / "profile"))
        seconds = []
        for _ in range(RUNS):
            start = time.process_time()
            plain.run(None, given)
            seconds.append(time.process_time() - start)
            profiled.run(None, given)
        events = json.loads(Path(profiled.end_profiling()).read_text())
    times = defaultdict[tuple[str, str], list[float]](list)
    for event in events:
        kind = event.get("args", {}).get("op_name")
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and kind != "Scan":
            times[kind, event["name"]].append(event["dur"])
    whole = float(np.median(seconds)) / steps * 1e6
    inside, per_step = Counter[str](), Counter[str]()
    for (kind, _), took in times.items():
        if len(took) == RUNS * steps:  # a node of the step, not one in front of the Scan
            inside[kind] += float(np.median(took))
            per_step[kind] += 1
    inside = Counter(dict(inside.most_common()))
    labels = [f"{kind} ({per_step[kind]})" for kind in inside]
    for label, took in zip(labels, inside.values(), strict=True):
        print(f"{label:24}{took:7.1f} µs")
    print(f"{sum(per_step.values())} nodes: {sum(inside.values()):.1f} µs as profiled; a step without: {whole:.1f} µs")
    figure, axes = plt.subplots(figsize=(7, 0.3 * len(inside) + 1.2), layout="constrained")
    axes.barh(labels[::-1], list(inside.values())[::-1], color="#4477aa")
    axes.set_xlabel("µs in a step, medians; each node's include some of the profile's own cost")
    axes.set_title(f"{MODELS[name].name}, {optimizer}: {whole:.0f} µs a step without a profile", fontsize=10)
    figure.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
