"""Subnormal numbers as 0, for as long as a block runs: processors compute with them many times slower."""

import contextlib
import ctypes
import functools
import platform
from collections.abc import Iterator

# The word of C's fenv_t with the modes of floats, and its bits that flush results and inputs: MXCSR on x86-64 (FTZ and
# DAZ), FPCR on ARM (FZ). Other systems have other forms: there nothing is flushed.
MODES = {("Linux", "x86_64"): (7, 0x8040), ("Linux", "aarch64"): (0, 1 << 24)}


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Let this thread count subnormal numbers as 0 in the block, and as before after it, whatever ends the block.

    onnxruntime's `session.set_denormal_as_zero` does so for a session's own threads only: for the caller's thread it
    counts in the first session of a process, and forever.
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
