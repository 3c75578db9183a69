"""Treat subnormal numbers as 0 during runs."""

import contextlib
import ctypes
import functools
import platform
from collections.abc import Iterator

import onnx

from ortpipe.runtime.session import TRIVIAL, Session

# The word of C's fenv_t with the floating-point modes, and its bits that flush results and inputs to zero: MXCSR on
# x86-64 (FTZ and DAZ), FPCR on ARM (FZ). Other systems have other layouts and are left unchanged.
MODES = {("Linux", "x86_64"): (7, 0x8040), ("Linux", "aarch64"): (0, 1 << 24)}


@functools.cache
def first_session() -> None:
    """Load a default session: a process's first session sets the caller's handling of subnormal numbers."""
    Session(onnx.parser.parse_model(TRIVIAL))


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Treat subnormal numbers as 0 in this thread within the block, and restore the mode afterwards.

    onnxruntime's `session.set_denormal_as_zero` only applies to a session's own threads; the caller's thread takes it
    from the first session of the process, permanently.
    """
    word, bits = MODES.get((platform.system(), platform.machine()), (0, 0))
    if not bits:
        yield
        return
    libm = _libm()
    environment = (ctypes.c_uint32 * 64)()
    libm.fegetenv(environment)
    before = environment[word]
    environment[word] = before | bits
    libm.fesetenv(environment)
    try:
        yield
    finally:
        environment[word] = before
        libm.fesetenv(environment)


@functools.cache
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL(None)
