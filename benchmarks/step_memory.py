"""Memory and time of one training step, beside PyTorch's.

    python -m benchmarks.step_memory            # the table: every net, each measurement in a process of its own
    python -m benchmarks.step_memory bert unet  # some of them
    python -m benchmarks.step_memory --checkpointing bert  # with derive.checkpointing=auto
    python -m benchmarks.step_memory --threads=2 bert      # on so many threads
    python -m benchmarks.step_memory --device=cuda bert    # on a GPU, with runtime.engine=xla

Needs torch. Five small networks as people write them, exported from PyTorch, 32 rows a step, plain SGD, one thread, no
dropout. Memory is the largest resident size of ten passes (VmHWM, begun anew after a first pass) less the resident size
before the first pass, with the session, or the network and its optimizer, built: no weights, graph or rows are in it.
Time is the median of the ten passes, per step: the CPU's, or of several threads or a GPU the clock's. Three processes
of each, in alternation; medians. Of a GPU, memory is the most that either's allocator gave out, weights and rows
included, and PyTorch computes float32 as exactly as ortpipe does.
"""

from __future__ import annotations

import ctypes
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import resident

BATCH, STEPS, PASSES, REPEATS = 32, 4, 10, 3
NETS = ("resnet18", "mobilenetv3", "bert", "gpt", "unet")
CLASSES, WORDS, LENGTH, IMAGE = 10, 1000, 32, (3, 32, 32)


def network(kind: str) -> Any:
    """Return a network with its first weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)

    def conv(
        i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU
    ) -> Any:
        parts = [nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
        return nn.Sequential(*parts, *([act()] if act else []))

    class Residual(nn.Module):
        def __init__(self, body: nn.Module, shortcut: nn.Module, end: nn.Module) -> None:
            super().__init__()
            self.body, self.shortcut, self.end = body, shortcut, end

        def forward(self, x: Any) -> Any:
            return self.end(self.body(x) + self.shortcut(x))

    def basic(i: int, o: int, stride: int) -> nn.Module:
        shortcut = nn.Identity() if (i, stride) == (o, 1) else conv(i, o, 1, stride, act=None)
        return Residual(nn.Sequential(conv(i, o, 3, stride), conv(o, o, act=None)), shortcut, nn.ReLU())

    class Squeeze(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            layers = nn.Conv2d(n, n // 4, 1), nn.ReLU(), nn.Conv2d(n // 4, n, 1), nn.Hardsigmoid()
            self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), *layers)

        def forward(self, x: Any) -> Any:
            return x * self.scale(x)

    def inverted(i: int, o: int, stride: int) -> nn.Module:
        m = 4 * i
        body = (
            conv(i, m, 1, act=nn.Hardswish),
            conv(m, m, 3, stride, m, nn.Hardswish),
            Squeeze(m),
            conv(m, o, 1, act=None),
        )
        return Residual(nn.Sequential(*body), nn.Identity(), nn.Identity()) if i == o else nn.Sequential(*body)

    class Attention(nn.Module):
        def __init__(self, width: int, heads: int, causal: bool) -> None:
            super().__init__()
            self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
            mask = torch.full((LENGTH, LENGTH), -1e4).triu(1) if causal else torch.zeros(1)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, x: Any) -> Any:
            q, k, v = (
                part.reshape(-1, LENGTH, self.heads, x.shape[-1] // self.heads).transpose(1, 2)
                for part in self.qkv(x).chunk(3, -1)
            )
            scores = q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5) + self.mask
            return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, LENGTH, x.shape[-1]))

    class Language(nn.Module):
        def __init__(self, depth: int, causal: bool, width: int = 128) -> None:
            super().__init__()
            self.causal = causal
            self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.randn(LENGTH, width) / 50)

            def feed() -> nn.Module:
                return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

            self.attend = nn.ModuleList(Attention(width, 4, causal) for _ in range(depth))
            self.feed = nn.ModuleList(feed() for _ in range(depth))
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
            self.head = nn.Linear(width, CLASSES)

        def forward(self, x: Any) -> Any:
            h = self.words(x) + self.places
            for i, (attend, feed) in enumerate(zip(self.attend, self.feed, strict=True)):
                first, second = self.norms[2 * i], self.norms[2 * i + 1]
                if self.causal:
                    h = h + attend(first(h))
                    h = h + feed(second(h))
                else:
                    h = first(h + attend(h))
                    h = second(h + feed(h))
            return self.head(h[:, -1] if self.causal else h.mean(1))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()

            def double(i: int, o: int) -> nn.Module:
                return nn.Sequential(conv(i, o), conv(o, o))

            self.down = nn.ModuleList([double(3, 16), double(16, 32), double(32, 64)])
            self.grow = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
            self.up, self.end, self.pool = (
                nn.ModuleList([double(64, 32), double(32, 16)]),
                nn.Conv2d(16, 1, 1),
                nn.MaxPool2d(2),
            )

        def forward(self, x: Any) -> Any:
            a = self.down[0](x)
            b = self.down[1](self.pool(a))
            c = self.down[2](self.pool(b))
            b = self.up[0](torch.cat([self.grow[0](c), b], 1))
            return self.end(self.up[1](torch.cat([self.grow[1](b), a], 1))).flatten(1)

    def ended(n: int) -> list[nn.Module]:
        return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, CLASSES)]

    if kind == "resnet18":
        blocks = [
            (16, 16, 1),
            (16, 16, 1),
            (16, 32, 2),
            (32, 32, 1),
            (32, 64, 2),
            (64, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
        ]
        return nn.Sequential(conv(3, 16), *(basic(*block) for block in blocks), *ended(128))
    if kind == "mobilenetv3":
        blocks = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 64, 2), (64, 64, 1)]
        return nn.Sequential(conv(3, 16, act=nn.Hardswish), *(inverted(*block) for block in blocks), *ended(64))
    return UNet() if kind == "unet" else Language(4, False) if kind == "bert" else Language(2, True)


def training(kind: str) -> Any:
    """Return a network whose normalizations are in training."""
    return network(kind).train()


def rows(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up rows of a network's kind, enough for the steps of a pass."""
    rng, count = np.random.default_rng(0), BATCH * STEPS
    if kind in ("bert", "gpt"):
        return rng.integers(0, WORDS, (count, LENGTH)), rng.integers(0, CLASSES, count)
    X = rng.standard_normal((count, *IMAGE), np.float32)
    return X, rng.standard_normal((count, 1024), np.float32) if kind == "unet" else rng.integers(0, CLASSES, count)


def make(kind: str, path: Path, checkpointing: str | None = None) -> None:
    """Write the gradient model."""
    from ortpipe import LOSSES, AddLossConfig, ConvertConfig, DeriveConfig, add_loss, convert, derive
    from ortpipe.artifact_folder import save_artifact
    from ortpipe.data.rows import Data, Rows
    from ortpipe.stages.convert.sources.torch_module import Torch

    X, y = rows(kind)
    data = Data(Rows(X, y), test=Rows(X[:8], y[:8]))
    source = Torch(
        module="benchmarks.step_memory:training",
        params={"kind": kind},
        **({} if kind == "unet" else {"task": "multiclass", "scores": "logits"}),
    )
    model = convert(None, ConvertConfig(source, tolerance=0.01), data=data)
    loss = AddLossConfig(LOSSES["l2" if kind == "unet" else "cross_entropy"]())
    save_artifact(derive(add_loss(model, loss), DeriveConfig(checkpointing=checkpointing)), path)


class Meter:
    """The memory of the passes beyond the size at their start; `peak` returns the bytes that a GPU allocated."""

    def __init__(self, threads: int, peak: Callable[[], int] | None = None) -> None:
        self._clock = time.process_time if threads == 1 and peak is None else time.perf_counter
        self._peak = peak
        self._before, self._begun, self._milliseconds = 0, 0.0, list[float]()

    def begin(self) -> None:
        """Note that a pass begins."""
        if not self._milliseconds:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(
                0
            )  # otherwise memory freed by the building would be reused without being counted
            self._before = resident("VmRSS")
        self._begun = self._clock()

    def end(self) -> None:
        """Note that a pass has ended."""
        self._milliseconds.append(1000 * (self._clock() - self._begun))
        if len(self._milliseconds) == 1:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew

    def print(self) -> None:
        """Print the peak in MB, and the milliseconds of a step; the first pass loads."""
        memory = self._peak() / 2**20 if self._peak else resident("VmHWM") - self._before
        print(json.dumps([memory, statistics.median(self._milliseconds[1:]) / STEPS]))


def ours(kind: str, path: Path, threads: int, device: str) -> None:
    """Train a gradient model and print its time and memory."""
    from ortpipe import TrainConfig, train
    from ortpipe.artifact_folder import load_artifact
    from ortpipe.data.rows import Data, Rows
    from ortpipe.runtime import xla
    from ortpipe.runtime.config import RuntimeConfig
    from ortpipe.runtime.session import Session
    from ortpipe.stages.train.optimizers.sgd import SGD

    def peak() -> int:
        import jax

        return int(jax.devices("gpu")[0].memory_stats()["peak_bytes_in_use"])

    meter = Meter(threads, None if device == "cpu" else peak)
    runtime = RuntimeConfig(threads) if device == "cpu" else RuntimeConfig(threads, "cuda", "xla")

    engine: Any = Session if device == "cpu" else xla.Program
    run = engine.run

    def metered(*values: Any, **named: Any) -> Any:
        meter.begin()
        results = run(*values, **named)
        meter.end()
        return results

    X, y = rows(kind)
    engine.run = metered
    config = TrainConfig(epochs=1 + PASSES, batch_size=BATCH, optimizer=SGD(lr=1e-6))
    train(load_artifact(path), config, data=Data(Rows(X, y)), runtime=runtime)
    meter.print()


def torchs(kind: str, threads: int, device: str) -> None:
    """Train with PyTorch and print its time and memory."""
    import torch

    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = False  # a GPU would round float32 to fewer bits
    net, (X, y) = network(kind).train().to(device), (torch.from_numpy(array).to(device) for array in rows(kind))
    loss = torch.nn.MSELoss() if kind == "unet" else torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    meter = Meter(threads, None if device == "cpu" else torch.cuda.max_memory_allocated)
    for _ in range(1 + PASSES):
        meter.begin()
        for at in range(0, len(X), BATCH):
            optimizer.zero_grad(set_to_none=True)
            loss(net(X[at : at + BATCH]), y[at : at + BATCH]).backward()
            optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()
        meter.end()
    meter.print()


def measured(*arguments: str) -> tuple[float, float]:
    """Return the output of a separate process."""
    command = [sys.executable, "-m", "benchmarks.step_memory", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    memory, milliseconds = json.loads(done.stdout.splitlines()[-1])
    return memory, milliseconds


def main() -> None:
    """Print the table."""
    heads = ("net", "ortpipe MB", "PyTorch MB", "ratio", "ortpipe ms", "PyTorch ms", "ratio")
    print("| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", sep="\n", flush=True)
    words = sys.argv[1:]
    options = [word for word in words if word == "--checkpointing"]
    named = dict(word[2:].split("=") for word in words if "=" in word)
    threads, device = named.get("threads", "1"), named.get("device", "cpu")
    for kind in [word for word in words if not word.startswith("--")] or NETS:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model")
            make_it = [sys.executable, "-m", "benchmarks.step_memory", "--make", kind, path, *options]
            subprocess.run(make_it, check=True, stdout=subprocess.DEVNULL)
            pairs = [
                (*measured("--ours", kind, path, threads, device), *measured("--torch", kind, threads, device))
                for _ in range(REPEATS)
            ]
        a, s, b, t = map(statistics.median, zip(*pairs, strict=True))
        print(f"| {kind} | {a:.0f} | {b:.0f} | {a / b:.2f} | {s:.1f} | {t:.1f} | {s / t:.2f} |", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--make", kind, path, *options]:
            make(kind, Path(path), "auto" if options else None)
        case ["--ours", kind, path, threads, device]:
            ours(kind, Path(path), int(threads), device)
        case ["--torch", kind, threads, device]:
            torchs(kind, int(threads), device)
        case _:
            main()
