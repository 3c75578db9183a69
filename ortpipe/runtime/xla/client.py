"""JAX as it is here: whether it is installed, and its client with as many threads as a config says."""

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ortpipe.errors import EngineError
from ortpipe.runtime.config import RuntimeConfig

THREADS = "NPROC"  # the variable that XLA's CPU client sizes its pool by, when it begins
AHEAD = "XLA_PYTHON_CLIENT_PREALLOCATE"  # whether it takes most of a GPU's memory when it begins, as it does by default
PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}
_lock = threading.Lock()
_begun: list[int] = []  # with how many threads this process's client began, where that was here


def check_client(runtime: RuntimeConfig) -> None:
    """Refuse an engine that is not installed, or a device that it does not have; JAX is not imported for the CPU."""
    if importlib.util.find_spec("jax") is None:
        raise EngineError(
            "{key}=xla needs JAX.",
            key="engine",
            got="jax is not installed",
            fix="pip install 'ortpipe[xla]', or set {key}=onnxruntime.",
        )
    if runtime.provider != "cpu":
        device(runtime)


def device(runtime: RuntimeConfig) -> Any:
    """Return the device of JAX that graphs run on; the first call in a process begins JAX's client.

    The pool of the CPU's client has the size that it began with, and with other threads sums have other bytes.

    Raises:
        EngineError: the client began with other threads, or there is no such device.
    """
    with _lock:
        fresh = "jax" not in sys.modules
        import jax
        from jax._src import xla_bridge

        if fresh and runtime.provider == "cpu" and not jax.config.jax_platforms:
            jax.config.update("jax_platforms", "cpu")  # else it takes most of a GPU's memory
        if not xla_bridge.backends_are_initialized():
            ahead = os.environ.get(AHEAD, "false")  # a sweep's other processes need some
            _with_variables({THREADS: str(runtime.threads), AHEAD: ahead}, lambda: jax.devices("cpu"))
            _begun[:] = [runtime.threads]
        there = _begun[0] if _begun else _by_default()
        if runtime.provider == "cpu" and there != runtime.threads:
            raise EngineError(
                "XLA's threads are those that JAX began with in this process.",
                key="threads",
                got=f"{runtime.threads} threads, and JAX that began with {there}",
                fix=f"Run in a process of its own, set {THREADS}={runtime.threads} before JAX computes anything, "
                "or set {at}engine=onnxruntime.",
            )
        try:
            return jax.devices(PLATFORMS[runtime.provider])[0]
        except RuntimeError as error:
            chosen = jax.config.jax_platforms
            alone = f" and began with {chosen!r} alone" if chosen else ""
            raise EngineError(
                "{key} is one that this machine has.",
                got=f"{runtime.provider}: jax {jax.__version__} finds no such device{alone}",
                fix="pip install 'jax[cuda12]' where a GPU is, run in a process of its own where JAX began for the "
                "CPU, or set {key}=cpu.",
                key="provider",
            ) from error


def _with_variables(variables: Mapping[str, str], begin: Callable[[], object]) -> None:
    """Begin the client while the environment has these variables."""
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
    """Return the threads of a client that somebody else began."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    setting = os.environ.get(THREADS, "")
    return int(setting) if setting.isdigit() and int(setting) else cores
