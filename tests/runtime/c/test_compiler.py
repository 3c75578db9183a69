"""C becomes a library once; a library that others can write is never loaded."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from runtime.c.epochs import needs_engine

from ortpipe.errors import EngineError
from ortpipe.runtime.c import compiler

DOUBLED = "double twice(double x) { return 2 * x; }"
PRODUCT = """
void cblas_dgemm(int, int, int, int, int, int, double, const double *, int, const double *, int, double, double *, int);
void product(int n, const double *a, const double *b, double *c) {
  cblas_dgemm(101, 111, 111, n, n, n, 1, a, n, b, n, 0, c, n);
}
"""
pytestmark = needs_engine


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of this test's libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "ortpipe" / "c"


def twice(source: str = DOUBLED) -> float:
    """Build a source, and return its `twice` of 3."""
    function = compiler.build(source, blas=False).twice
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    return function(3)


def replaced(cache: Path) -> Path:
    """Replace the only library by a file that is none, and return its path."""
    [library] = cache.glob("*.so")
    library.unlink()  # this process has loaded the first one
    library.write_bytes(b"not what was compiled")
    return library


def test_a_source_is_compiled_once(cache: Path) -> None:
    assert twice() == 6
    [library] = cache.glob("*.so")
    written = library.stat().st_mtime_ns
    assert twice() == 6
    assert library.stat().st_mtime_ns == written
    assert twice(DOUBLED.replace("2 * x", "2 * x + 1")) == 7
    assert len([*cache.glob("*")]) == 2, "no file of a compilation remains"


def test_each_command_of_a_compiler_has_its_own_library(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = shlex.join(compiler.compiler()[0])
    for options, result in (("", 6), (" -DTIMES=3", 9), ("", 6)):
        monkeypatch.setenv("CC", by_name + options)
        source = "#ifndef TIMES\n#define TIMES 2\n#endif\ndouble twice(double x) { return TIMES * x; }"
        assert twice(source) == result
    assert len([*cache.glob("*.so")]) == 2


def test_processes_that_compile_at_once_share_one_library(cache: Path) -> None:
    code = "import sys; from ortpipe.runtime.c.compiler import build; build(sys.argv[1], blas=False)"
    start = [sys.executable, "-c", code, DOUBLED]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: subprocess.run(start, check=True), range(3)))
    assert [path.suffix for path in cache.iterdir()] == [".so"]
    assert twice() == 6


def test_products_have_the_same_bytes_wherever_their_arrays_begin() -> None:
    function, n = compiler.build(PRODUCT, blas=True).product, 37
    a, b = np.random.default_rng(0).random((2, n, n))

    def product(offset: int) -> np.ndarray:
        arrays = [np.empty(n * n + offset)[offset:].reshape(n, n) for _ in range(3)]
        arrays[0][:], arrays[1][:] = a, b
        function(n, *(array.ctypes.data_as(ctypes.c_void_p) for array in arrays))
        return arrays[2]

    np.testing.assert_allclose(product(0), a @ b, rtol=1e-13)
    assert len({product(offset).tobytes() for offset in range(9)}) == 1


def test_a_library_that_others_can_write_is_compiled_again(cache: Path) -> None:
    twice()
    library = replaced(cache)
    library.chmod(0o722)
    assert twice() == 6
    assert library.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_library_of_another_user_is_compiled_again(cache: Path) -> None:
    twice()
    library = replaced(cache)
    os.chown(library, 1234, 1234)
    assert twice() == 6
    os.chown(cache, 1234, 1234)
    with pytest.raises(EngineError, match="belongs to another user"):
        twice()


def test_a_cache_that_others_can_write_is_an_error(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(EngineError, match=r"Only you may be able to write(.|\n)*chmod 700"):
        twice()


def test_a_link_in_place_of_the_cache_is_an_error(cache: Path, tmp_path: Path) -> None:
    cache.parent.mkdir()
    cache.symlink_to(tmp_path)
    with pytest.raises(EngineError, match="Only you may be able to write"):
        twice()


def test_without_a_folder_for_caches_a_process_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert twice() == 6


def test_without_a_compiler_the_error_names_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"needs a C compiler(.|\n)*apt install gcc(.|\n)*native(.|\n)*onnxruntime"):
        twice()


def test_a_compiler_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m32")
    with pytest.raises(EngineError, match="CC=no-such-compiler -m32"):
        twice()


def test_a_source_with_an_error_names_its_line(cache: Path) -> None:
    with pytest.raises(EngineError, match=r"must compile the training step(.|\n)*error"):
        twice("int f( {")
    assert not [*cache.glob("*")]


@pytest.mark.skipif(find_spec("ziglang") is None, reason="needs ziglang")
def test_the_compiler_of_the_wheel_is_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "COMMANDS", ())
    assert compiler.compiler()[0][1:] == ["cc"]
    assert twice() == 6
