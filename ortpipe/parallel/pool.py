"""Distribute slices over workers, and replace workers that die or hang."""

from __future__ import annotations

import collections
import itertools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from ortpipe.doors import later
from ortpipe.errors import ConfigError, TrainError
from ortpipe.parallel.config import ParallelConfig
from ortpipe.parallel.slices import slice_bounds
from ortpipe.parallel.worker import Answer, Load, WorkerLostError

if TYPE_CHECKING:
    from ortpipe.parallel.process import Process
    from ortpipe.parallel.process import Processes as processes
    from ortpipe.parallel.ray_actor import Actor
    from ortpipe.parallel.ray_actor import Actors as actors

    Worker = Process | Actor
else:
    later(__name__)

START = 60.0  # seconds more for a worker to start, and for its first answer, before which it loads its work
PATIENCE = 3  # times the slowest answer so far that a call may take, if that is longer than the timeout
LOSSES = 3  # workers that may be lost with the same slice, before the slice counts as the cause


class _Running(NamedTuple):
    worker: Worker
    slices: Sequence[int]  # none while it starts
    begun: float  # by time.monotonic
    extra: float  # seconds that it may take longer than others


class Pool:
    """Workers with the same work, up to as many as there are slices."""

    def __init__(self, load: Load, config: ParallelConfig, report: Callable[[str], None]) -> None:
        self._config, self._report = config, report
        start = processes if config.transport == "processes" else actors
        self._transport = start(load)
        self._numbers = itertools.count(1)
        self._idle: list[Worker] = []
        self._running: dict[Future[Answer], _Running] = {}
        self._answered: set[Worker] = set()  # at least once
        self._timeout = config.timeout or math.inf
        self._steps = 1  # of the calls that run
        self._paces = {False: 0.0, True: 0.0}  # longest seconds per slice and step, of first and of later results
        self.adapt()

    def close(self) -> None:
        """End all workers."""
        for worker in (*self._idle, *(running.worker for running in self._running.values())):
            worker.kill()
        self._transport.close()

    def adapt(self) -> None:
        """Start workers until there are as many as configured, or as the machine or the cluster has room for."""
        self._adapted = time.monotonic()
        count = min(self._config.workers or self._transport.capacity(), self._config.slices)
        while len(self._idle) + len(self._running) < count:
            self._start()

    def _start(self) -> None:
        worker = self._transport.start(next(self._numbers))
        self._running[worker.ready] = _Running(worker, [], time.monotonic(), START)

    @property
    def size(self) -> int:
        """The number of workers that are ready, between two calls of `run`."""
        return len(self._idle)

    @property
    def has_pace(self) -> bool:
        """Whether a worker has answered that had its work loaded, so that later calls have a limit of time."""
        return self._paces[True] > 0

    def run(self, shared: Any, slices: int, steps: int = 1) -> list[tuple[str, Sequence[int], Answer]]:
        """Return the worker, the slices and the answer of calls that together have the slices 0 … slices − 1.

        Call `adapt` at the start of each epoch, and before a run of many `steps`, run one until `has_pace`.

        Raises:
            TrainError: several workers were lost with the same slice, or a worker returned something else.
        """
        shared, self._steps = self._transport.share(shared), steps
        answers, left, losses = list[tuple[str, Sequence[int], Answer]](), slices, collections.Counter[int]()
        bounds = slice_bounds(slices, len(self._idle) or len(self._running))
        waiting: list[Sequence[int]] = [range(*part) for part in bounds]
        while left:
            while waiting and self._idle:
                worker, part = self._idle.pop(0), waiting.pop(0)
                now = time.monotonic()
                # a new worker also reads again the rows of the epoch until now
                extra = 0.0 if worker in self._answered else START + now - self._adapted
                self._running[worker.submit(shared, part)] = _Running(worker, part, now, extra)
            done, _ = wait(self._running, self._patience(), FIRST_COMPLETED)
            for future in done or self._late():
                worker, part, begun, _ = self._running.pop(future)
                if part and (future not in done or isinstance(future.exception(), WorkerLostError)):
                    self._replace(worker, part, losses, time.monotonic() - begun, lost=future in done)
                    waiting += [range(number, number + 1) for number in part]
                    continue
                self._idle.append(worker)
                if part:
                    if not isinstance(answer := future.result(), Answer):
                        raise wrong_answer(worker.name, part)
                    answers.append((worker.name, part, answer))
                    left -= len(part)
                    pace, is_later = (time.monotonic() - begun) / len(part) / self._steps, worker in self._answered
                    self._paces[is_later] = max(self._paces[is_later], pace)
                    self._answered.add(worker)
        return answers

    def _patience(self) -> float | None:
        """Return the seconds until the first call is late, or without a call the last start; None: never."""
        calls = [self._due(running) for running in self._running.values() if running.slices]
        due = min(calls) if calls else max(map(self._due, self._running.values()))
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def _due(self, running: _Running) -> float:
        """Return the time from which on a call or a start is late."""
        pace = self._paces[True] or self._paces[False]
        limit = max(self._timeout, PATIENCE * pace * len(running.slices) * self._steps)
        return running.begun + running.extra + limit

    def _late(self) -> list[Future[Answer]]:
        """Return the calls that are late; raise if no worker can start."""
        now = time.monotonic()
        late = [future for future, running in self._running.items() if self._due(running) <= now]
        calls = [future for future in late if self._running[future].slices]
        if not calls and len(late) == len(self._running):
            raise TrainError(
                "At least one worker must start.",
                got=f"none within {START + self._timeout:g} s",
                fix="Free a CPU of the machine or the cluster, or set a longer {@train.parallel.timeout}.",
            )
        return calls

    def _replace(
        self, worker: Worker, part: Sequence[int], losses: collections.Counter[int], seconds: float, *, lost: bool
    ) -> None:
        """End a worker and start another one; raise if this is not the first time with these slices."""
        reason = "ended" if lost else f"gave no answer for {seconds:.0f} s"
        worker.kill()
        losses.update(part)
        worst, count = max(losses.items(), key=lambda item: item[1])
        if count == LOSSES:
            raise TrainError(
                "Workers must return a result for every slice.",
                got=f"{LOSSES} workers in turn that {reason} with slice {worst + 1}",
                fix="See what the workers print; often the cause is too little memory. "
                "Set fewer {@train.parallel.workers}, or a longer {@train.parallel.timeout}.",
            )
        self._report(f"replaced {worker.name}, which {reason}; computing {named(part)} again")
        self._start()


def named(slices: Sequence[int]) -> str:
    """Return slices by their numbers, counted from 1.

    >>> named([0, 2])
    'slices 1, 3'
    """
    return f"slice{'s' * (len(slices) > 1)} {', '.join(str(number + 1) for number in slices)}"


def wrong_answer(worker: str, slices: Sequence[int]) -> TrainError:
    """Return the error for an object that is not the result of these slices."""
    got = f"another object, or values of other shapes or types, from {worker} for {named(slices)}"
    fix = "Run the same version of ortpipe on every machine."
    return TrainError("A worker must return the result of its slices.", got=got, fix=fix)


def check_engine(config: ParallelConfig, engine: str) -> None:
    """Reject C, devices without XLA, XLA without devices, and devices that exchange less often than in every step."""
    by_devices = config.transport == "devices"
    if engine == "auto":  # which chooses XLA for devices, else ONNX Runtime
        engine = "xla" if by_devices else "onnxruntime"
    if engine == "c" or by_devices != (engine == "xla"):
        other = ", or {@train/parallel}=devices." if engine == "xla" else "."
        raise ConfigError(
            "XLA trains in parallel on devices, and ONNX Runtime in processes or on a cluster.",
            got=f"runtime.engine={engine} with train/parallel={config.transport}",
            fix="Set {@runtime.engine}=" + ("xla." if by_devices else f"onnxruntime{other}"),
        )
    if by_devices and config.every != "step":
        raise ConfigError(
            "Devices exchange gradients in every step.",
            got=f"train.parallel.every={config.every}",
            fix="Set {@train.parallel.every}=step, or {@train/parallel}=processes and {@runtime.engine}=onnxruntime.",
        )
