"""Workers of a sweep end with the process that leads it, also while they wait for another job."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping

from ortpipe.app.run.process import PID, gone

EVERY = 1.0  # seconds between two looks
_leader: Mapping[str, str] | None = None  # of the latest job
_at_work = threading.Event()


@contextlib.contextmanager
def at_work(leader: Mapping[str, str]) -> Iterator[None]:
    """Work on a job; from now on this process ends if it has none and the leader was killed.

    A job that is under way is stopped by itself, with its state written: see `Job.stop_with_leader`.
    """
    global _leader
    first, _leader = _leader is None, leader
    _at_work.set()
    if first and leader.get(PID) != str(os.getpid()):
        threading.Thread(target=_watch, daemon=True).start()
    try:
        yield
    finally:
        _at_work.clear()


def _watch() -> None:
    while _at_work.is_set() or not gone(_leader or {}):
        time.sleep(EVERY)
    os._exit(128 + signal.SIGTERM)
