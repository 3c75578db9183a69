"""Workers as processes of this machine: requests on standard input, results on standard output."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import cloudpickle

from ortpipe.parallel.worker import Answer, SliceWork, Transport, Worker, WorkerLostError, timed


class Process(Worker):
    """A Python process that ends when its input is closed, so also when this process ends."""

    def __init__(self, number: int, work: bytes) -> None:
        command = [sys.executable, "-m", "ortpipe.parallel.process"]
        path = os.pathsep.join(filter(None, sys.path))  # also of the user's own modules
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._thread = ThreadPoolExecutor(1)
        self.ready = self._thread.submit(self._write, work)
        self.name = f"worker {number} (process {self._process.pid})"

    def submit(self, shared: bytes, slices: Sequence[int]) -> Future[Answer]:
        """Start a call."""
        return self._thread.submit(self._call, shared, slices)

    def kill(self) -> None:
        """End the process with SIGKILL, which also ends a stopped one."""
        self._process.kill()
        self._process.wait()
        self._thread.shutdown(wait=True, cancel_futures=True)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # of a request that the process did not read
                stream.close()

    def _write(self, content: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(content)
        self._process.stdin.flush()

    def _call(self, shared: bytes, slices: Sequence[int]) -> Answer:
        assert self._process.stdout is not None
        try:
            self._write(shared)
            self._write(pickle.dumps(slices))
            answer = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerLostError from error
        if isinstance(answer, BaseException):
            raise answer
        result: Answer = answer
        return result


class Processes(Transport):
    """Starts processes."""

    def __init__(self, work: SliceWork) -> None:
        self._work = cloudpickle.dumps(work)  # readers of rows hold functions

    def capacity(self) -> int:
        """Return the number of CPUs that this process may use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def start(self, number: int) -> Process:
        """Return a new process."""
        return Process(number, self._work)

    def share(self, value: Any) -> bytes:
        """Return the value's bytes."""
        return pickle.dumps(value, protocol=5)


def main() -> None:
    """Answer requests until the input is closed; Ctrl-C is left to the process that closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the task may print; its output must not mix with results
    work: SliceWork = pickle.load(requests)
    while True:
        try:
            shared, slices = pickle.load(requests), pickle.load(requests)
        except EOFError:
            return
        answer: Any
        try:
            answer = timed(work, shared, slices)
        except Exception as error:  # noqa: BLE001  # raised again where the call began
            error.add_note(f"in a worker:\n{traceback.format_exc()}")
            answer = error
        pickle.dump(answer, answers, protocol=5)
        answers.flush()


if __name__ == "__main__":
    main()
