"""The peers and the two contests, steady turns and whole jobs: all peers take turns in each round."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from benchmarks.work import Work, prepare

HERE = Path(__file__).parent
ORTPIPE, COMMAND, FLOOR, SCAN = "ortpipe", "`ortpipe` command", "C with a BLAS", "Scan by hand"
COMPILED, NATIVE = "ortpipe, engine=xla", "ortpipe, engine=c"
EARLY, LATE = 1e-3, 0.1  # how far losses may differ in the first epochs and in the last: rounding errors grow
OTHER_ADAM = 2e-3  # for peers whose Adam differs from float64 by 1e-4 in one epoch; the others differ by 2e-6
OWN_EARLY = {
    "SGDRegressor": LATE,
    "scikit-learn MLP": OTHER_ADAM,  # its ε is not corrected for the bias: with ε = 1e-12 it differs by 2e-6, too
    NATIVE: OTHER_ADAM,  # with embeddings, rounding errors of float32 reach 1.2e-3 in the fourth epoch
    COMPILED: OTHER_ADAM,
    "ORT on-device": OTHER_ADAM,
    "ORT on-device, artifacts too": OTHER_ADAM,
}


@dataclass(frozen=True)
class Peer:
    """One way to train.

    Attributes:
        name: as the tables write it.
        needs: distributions that its interpreter must have; alternatives with `|`.
        script: of benchmarks/peers, or `command` for the `ortpipe` command.
        word: the script's last argument.
        fits: whether it can do this work with this optimizer.
        contests: in which it takes part.
    """

    name: str
    needs: tuple[str, ...]
    script: str
    word: str = ""
    fits: Callable[[Work, str], bool] = lambda work, optimizer: True
    contests: tuple[str, ...] = ("steady", "job")


def _dense(work: Work, optimizer: str) -> bool:
    return work.kind == "mlp"


def _common(work: Work, optimizer: str) -> bool:
    return work.kind in ("mlp", "cnn")


def _without_convolution(work: Work, optimizer: str) -> bool:
    return work.kind != "cnn"


def _linear_sgd(work: Work, optimizer: str) -> bool:
    return len(work.sizes) == 2 and optimizer == "sgd"


RUNTIME = "onnxruntime-training|onnxruntime"
DEVICE = ("onnx", "onnxruntime-training")
ON_GPU = (ORTPIPE, COMPILED, "JAX", "PyTorch", "torch.compile")  # ortpipe's first engine stays on the CPU beside them
PEERS = (
    Peer(ORTPIPE, ("onnx-ir", RUNTIME), "ortpipe_stages"),
    Peer(FLOOR, ("scipy",), "c_step", fits=_dense, contests=("steady",)),
    Peer(NATIVE, ("onnx-ir", RUNTIME, "scipy-openblas32"), "ortpipe_stages", "c", fits=_without_convolution),
    Peer(COMMAND, ("hydra-core", "onnx-ir", RUNTIME), "command", fits=_common, contests=("job",)),
    Peer(COMPILED, ("onnx-ir", RUNTIME, "jax"), "ortpipe_stages", "xla"),
    Peer(SCAN, ("onnx", RUNTIME), "scan_floor", fits=_common),
    Peer("JAX", ("jax",), "jax_scan", fits=_common),
    Peer("ORT on-device", DEVICE, "ort_device", fits=_common),
    Peer("ORT on-device, artifacts too", DEVICE, "ort_device", "prepare", fits=_common, contests=("job",)),
    Peer("onnxsim", ("onnxsim", RUNTIME), "onnxsim_loop", fits=_common),
    Peer("PyTorch", ("torch",), "torch_step", fits=_common),
    Peer("torch.compile", ("torch",), "torch_step", "compile", fits=_common),
    Peer("scikit-learn MLP", ("scikit-learn",), "sklearn_mlp", fits=_dense),
    Peer("SGDRegressor", ("scikit-learn",), "sklearn_sgd", fits=_linear_sgd),
)


def versions(pythons: Sequence[str]) -> list[dict[str, str]]:
    """Return the packages of each interpreter: distribution → version, `python` included."""
    names = sorted({name for peer in PEERS for need in peer.needs for name in need.split("|")} | {"numpy", "jaxlib"})
    code = (
        "import sys, json, platform; from importlib.metadata import distributions\n"
        "has = {d.metadata['Name']: d.version for d in distributions()}\n"
        "print(json.dumps({'python': platform.python_version(), **{n: has[n] for n in sys.argv[1:] if n in has}}))"
    )
    said = [subprocess.run([p, "-c", code, *names], capture_output=True, text=True, check=True) for p in pythons]
    return [json.loads(answer.stdout) for answer in said]


def entrants(pythons: Sequence[str], has: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return for each peer the first interpreter that has its packages; a peer without one is absent."""
    chosen: dict[str, str] = {}
    for peer in PEERS:
        for python, packages in zip(pythons, has, strict=True):
            if all(any(name in packages for name in need.split("|")) for need in peer.needs):
                chosen.setdefault(peer.name, python)
    for compiler, name in (("g++", "torch.compile"), ("gcc", FLOOR), ("cc", NATIVE)):
        if shutil.which(compiler) is None:
            chosen.pop(name, None)
    return chosen


@dataclass(frozen=True)
class Contest:
    """One problem on disk, and its peers.

    Attributes:
        folder: the folder of the problem; the job's results go to folder/job.
        work, optimizer, threads: the problem.
        arguments: of the `ortpipe` command.
        python: peer → its interpreter.
    """

    folder: Path
    work: Work
    optimizer: str
    threads: int
    arguments: list[str]
    python: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path, work: Work, optimizer: str, threads: int, python: Mapping[str, str]) -> Contest:
        """Write the problem, and the artifacts of the on-device API, which are made once beforehand."""
        arguments = [*prepare(folder, work, optimizer), f"runtime.threads={threads}"]
        contest = cls(folder, work, optimizer, threads, arguments, python)
        devices = [p for p in PEERS if p.script == "ort_device" and p.name in python and p.fits(work, optimizer)]
        for peer in devices[:1]:
            subprocess.run(
                contest._command(peer, "prepare"), env=contest._environment(), check=True, capture_output=True
            )
        return contest

    def steady(self, rounds: int) -> dict[str, list[float]]:
        """Return for each peer the seconds per step of its turns, one per round.

        Raises:
            SystemExit: a peer failed, or computes something else.
        """
        running: dict[str, subprocess.Popen[str]] = {}
        losses, seconds = {}, {}
        steps = self.work.turn * self.work.rows // self.work.batch
        pin = {"preexec_fn": lambda: os.sched_setaffinity(0, self._cores())} if hasattr(os, "sched_setaffinity") else {}
        try:
            for peer in self._peers("steady"):
                running[peer.name] = subprocess.Popen(
                    self._command(peer, "steady"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=(self.folder / "steady.log").open("w"),
                    text=True,
                    env=self._environment(),
                    **pin,  # type: ignore[arg-type]
                )
                losses[peer.name] = self._said(peer.name, running[peer.name])["losses"]
                seconds[peer.name] = []
            check(losses)
            for _ in range(rounds):
                for name, process in running.items():
                    time.sleep(0.3)  # the last one's threads stop spinning: they took half of the next one's cores
                    print(file=process.stdin, flush=True)
                    seconds[name].append(self._said(name, process)["seconds"] / steps)
        finally:
            for process in running.values():
                process.communicate()
        return seconds

    def job(self, rounds: int, uncounted: int) -> dict[str, dict[str, list[float]]]:
        """Return for each peer, one number per round: seconds until the weights are on disk and until the end, MB.

        Earlier rounds are not counted, because Python compiles the imported modules in the first.
        """
        losses: dict[str, list[float]] = {}
        results: dict[str, dict[str, list[float]]] = {}
        cores, log = ",".join(map(str, sorted(self._cores()))), self.folder / "job.log"
        for number in range(rounds + uncounted):
            for peer in self._peers("job"):
                shutil.rmtree(self.folder / "job")
                (self.folder / "job").mkdir()
                shutil.rmtree(self.folder / "cache", ignore_errors=True)  # so that compiling counts
                launch = [sys.executable, "-I", "-S", str(HERE / "launch.py"), cores, str(log)]
                command = self._command(peer, "job")
                said = subprocess.run([*launch, *command], env=self._environment(), capture_output=True, text=True)
                if said.returncode or said.stdout.split()[-1] != "0":
                    raise SystemExit(f"{peer.name} failed on {self.work.name}:\n{said.stderr}{log.read_text()[-2000:]}")
                seconds, memory, started = map(float, said.stdout.split()[:3])
                losses[peer.name], written = self._trained(log)
                if number < uncounted:
                    continue
                row = results.setdefault(peer.name, {"weights": [], "end": [], "memory": []})
                for key, value in (("weights", written - started), ("end", seconds), ("memory", memory / 1024)):
                    row[key].append(value)
        check(losses)
        return results

    def _trained(self, log: Path) -> tuple[list[float], float]:
        """Return the losses of a job's epochs, and when its weights were on disk."""
        tables = list((self.folder / "job").glob("runs/*/*/losses.parquet"))
        if tables:  # the command: its folder of the train stage appears whole
            rows = parquet.read_table(tables[0]).to_pylist()
            stage = tables[0].parent / "stages" / "5_train"
            return [row["value"] for row in rows if row["kind"] == "train"], stage.stat().st_ctime
        [written] = (self.folder / "job").iterdir()
        return json.loads(log.read_text().strip().splitlines()[-1])["losses"], written.stat().st_mtime

    def _peers(self, kind: str) -> Iterator[Peer]:
        for peer in PEERS:
            if peer.name in self.python and kind in peer.contests and peer.fits(self.work, self.optimizer):
                yield peer

    def _command(self, peer: Peer, kind: str) -> list[str]:
        python = self.python[peer.name]
        if peer.script == "command":
            return [python, "-m", "ortpipe", *self.arguments]
        return [python, str(HERE / "peers" / f"{peer.script}.py"), str(self.folder), kind, str(self.threads), peer.word]

    def _environment(self) -> dict[str, str]:
        limits = {f"{name}_NUM_THREADS": str(self.threads) for name in ("OMP", "MKL", "OPENBLAS")}
        path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
        shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # else the first JAX takes most of a GPU's memory
        caches = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        return {**os.environ, **limits, **shared, **caches, "PYTHONPATH": path}

    def _cores(self) -> set[int]:
        """Return the cores that the peers run on, the last ones."""
        return set(sorted(os.sched_getaffinity(0))[-self.threads :]) if hasattr(os, "sched_getaffinity") else {0}

    def _said(self, name: str, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{name} failed on {self.work.name}:\n{(self.folder / 'steady.log').read_text()[-2000:]}")
        return json.loads(line)


def check(losses: Mapping[str, Sequence[float]]) -> None:
    """Raise unless every peer's losses equal those of the first peer in each epoch, within rounding errors.

    SGDRegressor updates row by row, so only its last loss is compared.

    Raises:
        SystemExit: names the peer and both series of losses.
    """
    reference = next(iter(losses))
    for name, series in losses.items():
        found, expected = np.array(series), np.array(losses[reference])
        early, late = slice(-1, None) if name == "SGDRegressor" else slice(0, 5), slice(5, None)
        near = np.allclose(found[early], expected[early], rtol=OWN_EARLY.get(name, EARLY))
        if not near or not np.allclose(found[late], expected[late], rtol=LATE):
            raise SystemExit(f"{name} does not compute what {reference} does:\n{series}\n{losses[reference]}")
