"""Workers as Ray actors: on this machine, or on the nodes of the cluster that this process is connected to."""

import functools
import importlib.util
import os
import signal
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ortpipe.errors import EngineError
from ortpipe.parallel.worker import Answer, Load, WorkerLostError, timed


class Actor:
    """A Ray actor that holds the work."""

    def __init__(self, number: int, ray: Any, actor: Any) -> None:
        self._ray, self._actor, self.name = ray, actor, f"worker {number} (Ray actor)"
        self.ready: Future[Any] = actor.__ray_ready__.remote().future()  # perhaps much later, in a full cluster

    def submit(self, shared: Any, slices: Sequence[int]) -> Future[Answer]:
        """Start a call; its future raises WorkerLostError if the actor or its node is lost."""
        result = Future[Answer]()

        def done(reply: Future[Answer]) -> None:
            error = reply.exception()
            if isinstance(error, self._ray.exceptions.RayTaskError):
                result.set_exception(error.cause if isinstance(error.cause, Exception) else error)
            elif getattr(error, "actor_init_failed", False):
                rule = "Every machine of the cluster must have all modules that a training uses, in the same versions."
                fix = "Install them there, or set PYTHONPATH before ray start."
                result.set_exception(EngineError(rule, got=str(error).strip().splitlines()[-1], fix=fix))
            elif error is not None:  # the actor or its node is gone, or the object with its arguments
                result.set_exception(WorkerLostError(str(error)))
            else:
                result.set_result(reply.result())

        self._actor.call.remote(shared, list(slices)).future().add_done_callback(done)
        return result

    def kill(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)


class _Holder:
    """Holds the work in an actor."""

    def __init__(self, load: Load) -> None:
        self._work = functools.cache(load)

    def call(self, shared: Any, slices: Sequence[int]) -> Answer:
        return timed(self._work(), shared, slices)


class Actors:
    """Starts actors, in the cluster that RAY_ADDRESS names, or in one that is started on this machine."""

    def __init__(self, load: Load) -> None:
        if importlib.util.find_spec("ray") is None:
            fix = "pip install 'ortpipe[ray]', or set {@train/parallel}=processes."
            raise EngineError("Training on a cluster needs Ray.", got="ray is not installed", fix=fix)
        import ray

        address = os.environ.get("RAY_ADDRESS", "")
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if port.isdigit():  # Ray itself tries for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            if not ray.is_initialized():
                on_sigterm = signal.getsignal(signal.SIGTERM)
                ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
                if on_sigterm is not None and threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, on_sigterm)  # Ray's handler aborts the run without a checkpoint
        except OSError as error:
            fix = "Start one by ray start --head, or unset RAY_ADDRESS to start Ray on this machine only."
            raise EngineError("RAY_ADDRESS must name a running cluster.", got=f"{address}: {error}", fix=fix) from error
        self._ray = ray
        self._class, self._load = ray.remote(num_cpus=1, max_restarts=0)(_Holder), ray.put(load)

    def capacity(self) -> int:
        """Return the number of CPUs in the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, number: int) -> Actor:
        """Return a new actor; Ray chooses the node."""
        return Actor(number, self._ray, self._class.remote(self._load))

    def share(self, value: Any) -> Any:
        """Return a reference to the value in Ray's object store."""
        return self._ray.put(value)

    def close(self) -> None:
        """Leave the memory to Ray."""
