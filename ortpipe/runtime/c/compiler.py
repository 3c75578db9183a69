"""Compile C into a library, once per source, compiler and processor."""

import ctypes
import ctypes.util
import functools
import os
import platform
import shlex
import stat
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ortpipe.errors import EngineError
from ortpipe.files import temporary
from ortpipe.hashing import digest_of

# None of these lets the compiler change the order of a sum.
FLAGS = ["-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
LIBRARY = ["-fPIC", "-shared"]
LATE = ["-Wl,-undefined,dynamic_lookup"] if sys.platform == "darwin" else []  # the BLAS is loaded before the library
COMMANDS = ("cc", "gcc", "clang")
PREFIX = "scipy_"  # of the functions of the BLAS from PyPI
PRODUCTS = ("cblas_sgemm", "cblas_dgemm")
WITHOUT = "or set {key}=onnxruntime or {key}=xla."


def build(source: str, *, blas: bool) -> ctypes.CDLL:
    """Return the library of a C source, compiled now or taken from the cache.

    Args:
        source: C11; with a BLAS it may call `cblas_sgemm` and `cblas_dgemm`.
        blas: whether it calls a BLAS, which then runs on one thread.

    Raises:
        EngineError: there is no compiler or no BLAS, the source does not compile, or other users can write the cache.
    """
    command, version = compiler()
    names = load_blas() if blas else ()
    command = [*command, *FLAGS, *LIBRARY, *(f"-D{name}={PREFIX}{name}" for name in names)]
    path = cache_folder() / f"{digest_of('c', source, command, LATE, version, processor())}.so"
    if not _is_own(path):
        _compile(command, source, path)
    return ctypes.CDLL(str(path))


def compiler() -> tuple[list[str], str]:
    """Return the command of the C compiler and its version: $CC, cc, gcc, clang, or the one of the ziglang wheel."""
    named = shlex.split(os.environ.get("CC", ""))
    spec = find_spec("ziglang")
    zig = [[str(Path(spec.origin).with_name("zig")), "cc"]] if spec is not None and spec.origin else []
    for command in [named] if named else [*([name] for name in COMMANDS), *zig]:
        try:
            result = subprocess.run([*command, "--version"], capture_output=True, encoding="utf-8", env=_environment())
        except OSError:
            continue
        if result.returncode == 0:
            return command, result.stdout
    raise EngineError(
        "{key}=c needs a C compiler.",
        key="engine",
        got=f"CC={shlex.join(named)}, which does not run" if named else "no cc, gcc or clang on the path",
        fix=f"Install a compiler (Debian: apt install gcc) or pip install 'ortpipe[native]', {WITHOUT}",
    )


@functools.cache
def load_blas() -> tuple[str, ...]:
    """Load a BLAS with one thread; return its functions with a prefix. The wheel comes before the system's OpenBLAS."""
    spec = find_spec("scipy_openblas32")
    files = (
        [] if spec is None or spec.origin is None else sorted(Path(spec.origin).parent.glob("lib/libscipy_openblas*"))
    )
    prefix = PREFIX if files else ""
    path = str(files[0]) if files else ctypes.util.find_library("openblas")
    if path is None:
        fix = f"pip install 'ortpipe[native]', install one (Debian: apt install libopenblas0-pthread), {WITHOUT}"
        rule, got = "{key}=c needs a BLAS for matrix products.", "no OpenBLAS"
        raise EngineError(rule, key="engine", got=got, fix=fix)
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    library[f"{prefix}openblas_set_num_threads"](1)  # more would change the order of sums
    return PRODUCTS if prefix else ()


def cache_folder() -> Path:
    """Return the folder of compiled libraries; only this user may write it, because their code runs here.

    It is `ortpipe/c` in $XDG_CACHE_HOME or ~/.cache. If that is read-only, it is a temporary folder for each process.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ortpipe" / "c"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        writable = False
    if not writable:
        return Path(_temporary_folder().name)
    if not _is_own(folder):
        raise EngineError(
            "Only you may be able to write the cache of compiled code.",
            got=f"{folder}, which belongs to another user or which others can write",
            fix=f"Remove it, or chmod 700 {shlex.quote(str(folder))}, or set XDG_CACHE_HOME to another folder.",
        )
    return folder


def processor() -> str:
    """Return the name and the features of the processor, which -march=native compiles for."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    names = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.partition(":")[0].strip() in names}))


def _compile(command: list[str], source: str, path: Path) -> None:
    """Write the library of a source in one step, so that other processes load all of it or none."""
    partial = temporary(path)
    try:
        result = subprocess.run(
            [*command, "-x", "c", "-", "-o", str(partial), *LATE, "-lm"],
            input=source,
            capture_output=True,
            encoding="utf-8",
            env=_environment(),
        )
        if result.returncode:
            errors = [line for line in result.stderr.splitlines() if "error" in line] or [result.stderr.strip()]
            got, fix = f"{command[0]}: {errors[0]:.300}", f"Set the variable CC to another compiler, {WITHOUT}"
            raise EngineError("The C compiler must compile the training step.", key="engine", got=got, fix=fix)
        partial.chmod(0o700)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _is_own(path: Path) -> bool:
    """Return whether a file or folder exists, belongs to this user, and is writable by this user only."""
    try:
        status = path.lstat()
    except OSError:
        return False
    mine = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return mine and not stat.S_ISLNK(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ortpipe-")  # mode 700, removed when the process ends


def _environment() -> dict[str, str]:
    """Return the environment of the compiler: messages in English, and zig's caches in the folder of the libraries."""
    caches = {f"ZIG_{kind}_CACHE_DIR": str(cache_folder() / "zig") for kind in ("GLOBAL", "LOCAL")}
    return {**os.environ, "LC_ALL": "C", **caches}
