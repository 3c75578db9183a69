"""Workers as processes of this machine: requests on standard input, results on standard output, arrays in memory."""

import contextlib
import functools
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

from ortpipe.parallel.memory import Messages, shared_file
from ortpipe.parallel.worker import Answer, Load, WorkerLostError, timed


class Process:
    """A Python process that runs a call at a time. It ends when its input is closed, so also when this process ends."""

    def __init__(self, number: int, load: bytes, shared: Messages) -> None:
        self._messages = Messages(shared_file())
        files = (shared.file, self._messages.file)
        command = [sys.executable, "-m", "ortpipe.parallel.process", *map(str, files)]
        path = os.pathsep.join(filter(None, sys.path))  # also of the user's own modules
        environment = {**os.environ, "PYTHONPATH": path}
        passed, pipe = [file for file in files if file >= 0], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, pass_fds=passed)
        self._requests: Any = self._process.stdin
        self._answers: Any = self._process.stdout
        self._thread = ThreadPoolExecutor(1)
        self._shared = b""
        self.ready: Future[Any] = self._thread.submit(self._write, load)
        self.name = f"worker {number} (process {self._process.pid})"

    def submit(self, shared: bytes, slices: Sequence[int]) -> Future[Answer]:
        """Start a call; its future raises WorkerLostError if the process ends without an answer."""
        return self._thread.submit(self._call, shared, slices)

    def kill(self) -> None:
        """End the process with SIGKILL, which also ends a stopped one."""
        self._process.kill()
        self._thread.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(BrokenPipeError), self._process:  # of a request that the process did not read
            self._messages.close()

    def _write(self, content: bytes) -> None:
        self._requests.write(content)
        self._requests.flush()

    def _call(self, shared: bytes, slices: Sequence[int]) -> Answer:
        try:
            self._write(shared)
            is_first, self._shared = shared is not self._shared, shared  # a second result must not overwrite the first
            self._write(pickle.dumps((slices, is_first)))
            answer: Any = self._messages.load(self._answers)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerLostError from error
        if isinstance(answer, BaseException):
            raise answer
        return answer  # the pool checks its type


class Processes:
    """Starts processes."""

    def __init__(self, load: Load) -> None:
        self._load = cloudpickle.dumps(load)  # readers of rows hold functions
        self._messages = Messages(shared_file())

    def capacity(self) -> int:
        """Return the number of CPUs that this process may use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def start(self, number: int) -> Process:
        """Return a new process."""
        return Process(number, self._load, self._messages)

    def share(self, value: Any) -> bytes:
        """Return the message for the value, whose arrays all workers read in shared memory."""
        return self._messages.dump(value)

    def close(self) -> None:
        """Free the shared memory, after all workers have ended."""
        self._messages.close()


def main() -> None:
    """Answer requests until the input is closed; Ctrl-C is left to the process that closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    messages, results = (Messages(int(file)) for file in sys.argv[1:])
    os.dup2(2, 1)  # the task may print; its output must not mix with results
    work = functools.cache(pickle.load(requests))
    while True:
        try:
            shared, (slices, in_memory) = messages.load(requests), pickle.load(requests)
        except EOFError:
            return
        answer: Any
        try:
            answer = timed(work(), shared, slices)
        except Exception as error:  # noqa: BLE001  # raised again where the call began
            error.add_note(f"in a worker:\n{traceback.format_exc()}")
            answer = error
        answers.write((results if in_memory else Messages(-1)).dump(answer))
        answers.flush()


if __name__ == "__main__":
    main()
