"""Check whether JAX is installed, and start its client with the configured number of threads."""

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ortpipe.errors import EngineError
from ortpipe.runtime.config import RuntimeConfig

THREADS = "NPROC"  # the variable that sets the pool size of XLA's CPU client at its start
AHEAD = "XLA_PYTHON_CLIENT_PREALLOCATE"  # whether the client reserves most of a GPU's memory at its start (default)
PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}
_lock = threading.Lock()
_begun: list[int] = []  # the thread count of this process's client, if it was started here


def check_client(runtime: RuntimeConfig, count: int | None = None) -> None:
    """Raise if the engine is not installed, or lacks a device or `count` of them.

    JAX is not imported for the CPU without a count.
    """
    if importlib.util.find_spec("jax") is None:
        raise EngineError(
            "{key}=xla needs JAX.",
            key="engine",
            got="jax is not installed",
            fix="pip install 'ortpipe[xla]', or set {key}=onnxruntime.",
        )
    if runtime.provider == "cpu" and count is None:
        return
    there = len(devices(runtime))
    if count is not None and count > there:
        more = f" JAX_NUM_CPU_DEVICES={count} in the environment starts more." if runtime.provider == "cpu" else ""
        raise EngineError(
            "There must be a device for each worker.",
            got=f"{count} workers, but JAX finds {there} of {runtime.provider!r}",
            fix=f"Set the number of workers to at most {there}, or to null for all devices.{more}",
        )


def devices(runtime: RuntimeConfig) -> list[Any]:
    """Return the JAX devices that can run graphs; the first call in a process starts JAX's client.

    The size of the CPU client's pool is fixed at its start; with another number of threads, sums differ in rounding.

    Raises:
        EngineError: the client was started with another number of threads, or the device does not exist.
    """
    with _lock:
        fresh = "jax" not in sys.modules
        import jax

        if fresh and runtime.provider == "cpu" and not jax.config.jax_platforms:
            jax.config.update("jax_platforms", "cpu")  # else it reserves most of a GPU's memory
        if not _is_started(jax.config):
            ahead = os.environ.get(AHEAD, "false")  # leave memory for a sweep's other processes
            _with_variables({THREADS: str(runtime.threads), AHEAD: ahead}, lambda: jax.devices("cpu"))
            _begun[:] = [runtime.threads]
        there = _begun[0] if _begun else _by_default()
        if runtime.provider == "cpu" and there != runtime.threads:
            raise EngineError(
                "XLA uses the number of threads that JAX was started with in this process.",
                key="threads",
                got=f"{runtime.threads} threads, but JAX was started with {there}",
                fix=f"Run in a process of its own, set {THREADS}={runtime.threads} before JAX computes anything, "
                "or set {at}engine=onnxruntime.",
            )
        try:
            return list(jax.devices(PLATFORMS[runtime.provider]))
        except RuntimeError as error:
            chosen = jax.config.jax_platforms
            alone = f" and was started with {chosen!r} only" if chosen else ""
            raise EngineError(
                "{key} must be available on this machine.",
                got=f"{runtime.provider}: jax {jax.__version__} finds no such device{alone}",
                fix="pip install 'jax[cuda12]' on a machine with a GPU, use a new process if JAX was started for the "
                "CPU, or set {key}=cpu.",
                key="provider",
            ) from error


def _is_started(config: Any) -> bool:
    """Return whether JAX's client was started: from then on JAX rejects another number of CPU devices."""
    name, count = "jax_num_cpu_devices", config.jax_num_cpu_devices
    try:
        config.update(name, count + 2)  # -1, the default, is no number
    except RuntimeError:
        return True
    config.update(name, count)
    return False


def _with_variables(variables: Mapping[str, str], begin: Callable[[], object]) -> None:
    """Start the client with these environment variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        begin()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _by_default() -> int:
    """Return the thread count of a client that other code started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    setting = os.environ.get(THREADS, "")
    return int(setting) if setting.isdigit() and int(setting) else cores
