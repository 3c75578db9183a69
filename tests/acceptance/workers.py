"""Faults of parallel training: killed workers, a cluster that loses and gains a node, a killed driver.

    PYTHONPATH=.:tests python -m acceptance workers [--only kills cluster driver] [--kills 20]

Each part trains an MLP on streamed rows, and compares the result with that of one worker, byte for byte. No worker may
outlive its part. `cluster` needs Ray: it starts nodes as processes of this machine. To keep their ports from others,
run it in a network namespace: unshare --net sh -c "ip link set lo up; PYTHONPATH=.:tests python -m acceptance workers".
"""

import argparse
import dataclasses
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    Artifact,
    ConvertConfig,
    Data,
    SplitConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    train,
)
from ortpipe.data.load import DataConfig, load
from ortpipe.data.sources.npz import Npz
from ortpipe.parallel import ParallelConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP

Report = Callable[[Any], None]


class Job:
    """A training, and its result with one worker."""

    def __init__(self, folder: Path, epochs: int, every: Any) -> None:
        random_numbers = np.random.default_rng(0)
        x = random_numbers.normal(size=(3000, 20)).astype(np.float32)
        np.savez(folder / "rows.npz", X=x, y=(x[:, 0] * x[:, 1] > 0).astype(np.int64))
        split = SplitConfig(test=0.1, validation=0.1)
        self._data: Data = load(DataConfig(Npz(str(folder / "rows.npz"), stream=True), split))
        forward = convert(None, ConvertConfig(MLP(hidden=(32,), dropout=0.1)), data=self._data)
        self._model = derive(add_loss(forward, AddLossConfig(LOSSES["log"]()), data=self._data))
        self._config, self._every = TrainConfig(OPTIMIZERS["adam"](0.003), epochs=epochs, batch_size=100), every
        self._expected = self._train(lambda report: None, workers=1)

    def _train(self, report: Report, **settings: Any) -> Artifact:
        parallel = ParallelConfig(slices=4, every=self._every, **settings)
        config = dataclasses.replace(self._config, parallel=parallel)
        return train(self._model, config, data=self._data, report=report)

    def check(self, report: Report, **settings: Any) -> None:
        """Train again; raise if a byte differs or a worker is left."""
        assert self._train(report, **settings).digest() == self._expected.digest()
        assert not workers(), workers()


def workers() -> list[psutil.Process]:
    """Return the worker processes of this process."""
    return [child for child in psutil.Process().children() if _is_worker(child)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "ortpipe.parallel.process" in process.cmdline()
    except psutil.Error:  # it has ended
        return False


def kills(folder: Path, count: int) -> None:
    """Kill workers at random moments."""
    rng, killed = random.Random(0), list[psutil.Process]()

    def kill() -> None:
        if len(killed) < count and (alive := workers()):
            killed.append(rng.choice(alive))
            killed[-1].kill()

    def report(event: object) -> None:
        if getattr(event, "number", 0):
            threading.Timer(rng.uniform(0, 0.1), kill).start()

    for every in ("step", "epoch"):
        killed.clear()
        Job(folder, 3 * count, every).check(report, workers=2)
        print(f"every={every}: {len(killed)} workers killed, equal bytes, none left", flush=True)
        assert len(killed) == count


def cluster(folder: Path, count: int) -> None:
    """Train on two nodes, kill one of them, and add another one."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    job, used = Job(folder, 12, "step"), set[int]()
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False)
    try:

        def report(event: object) -> None:
            used.update(_nodes_of_actors())
            match getattr(event, "number", 0):
                case 3:
                    nodes.remove_node(second, allow_graceful=False)  # by SIGKILL
                    print("killed a node of two", flush=True)
                case 6:
                    used.clear()
                    nodes.add_node(num_cpus=1)
                    print("added a node", flush=True)
                case 7 | 8 | 9 | 10 | 11:
                    time.sleep(1)  # until an actor has started there

        job.check(report, transport="ray")
        print(f"equal bytes; {len(used)} nodes used after a node was added", flush=True)
        assert len(used) == 2
    finally:
        ray.shutdown()
        nodes.shutdown()


def _nodes_of_actors() -> set[int]:
    """Return the processes of nodes whose actors run."""
    below = psutil.Process().children(recursive=True)
    return {process.ppid() for process in below if process.is_running() and process.name().startswith("ray::_Holder")}


def driver(folder: Path, count: int) -> None:
    """Kill the process that trains, and continue with another number of workers."""
    settings = ["train/parallel=processes", "train.epochs=8", "train.checkpoint.epochs=1", "figures=false"]
    settings += ["recorder=none", "paths.cache=null", f"paths.outputs={folder}"]
    command = [sys.executable, "-m", "ortpipe", *settings]
    subprocess.run([*command, "hydra.run.dir=whole", "train.parallel.workers=1"], cwd=folder, check=True)
    stopped = subprocess.Popen([*command, "hydra.run.dir=stopped", "train.parallel.workers=2"], cwd=folder)
    process = psutil.Process(stopped.pid)
    while not (folder / "stopped" / "checkpoint.safetensors").exists():
        assert stopped.poll() is None
        time.sleep(0.05)
    left = process.children()
    stopped.kill()
    stopped.wait()
    _, alive = psutil.wait_procs(left, timeout=60)
    assert len(left) == 2
    assert not alive, alive
    resumed = ["hydra.run.dir=resumed", "train.parallel.workers=3", f"resume={folder / 'stopped'}"]
    subprocess.run([*command, *resumed], cwd=folder, check=True)
    models = [(folder / name / "model.onnx").read_bytes() for name in ("whole", "resumed")]
    assert models[0] == models[1]
    print("a killed driver left no worker; with resume= and 3 workers: equal bytes", flush=True)


PARTS = {"kills": kills, "cluster": cluster, "driver": driver}


def main(arguments: list[str]) -> None:
    """Run the parts; raise where one fails."""
    parser = argparse.ArgumentParser(prog="python -m acceptance workers", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args(arguments)
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](Path(folder), options.kills)
