"""What the earlier scripts import from packages that are gone: test case, converter, printer, profiler."""

import cProfile
import functools
import io
import logging
import os
import pstats
import shutil
import timeit
import unittest
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import sklearn.metrics
from onnx.reference import ReferenceEvaluator
from skl2onnx import to_onnx as _to_onnx

from ortpipe.compat import random_feed, select_model_inputs_outputs

__all__ = ["random_feed", "select_model_inputs_outputs"]

__max_supported_opset__ = 15
new_ops: list[Any] = []  # kernels of operators beyond the standard


def get_max_opset() -> int:
    """Return the opset that onnxcustom's scripts convert to."""
    return __max_supported_opset__


def to_onnx(model: Any, X: Any = None, **options: Any) -> onnx.ModelProto:
    """Convert an estimator as mlprodict did; skl2onnx wants inputs of two dimensions in C order."""
    return _to_onnx(model, np.ascontiguousarray(X) if isinstance(X, np.ndarray) else X, **options)


class OnnxInference:
    """A model run by onnx.reference, which answers by name."""

    def __init__(self, onx: onnx.ModelProto, **_: Any) -> None:
        self.reference = ReferenceEvaluator(onx)

    def run(self, feeds: Mapping[str, np.ndarray], **_: Any) -> dict[str, Any]:
        """Return the outputs by name."""
        return dict(zip(self.reference.output_names, self.reference.run(None, dict(feeds)), strict=True))


def onnx_simple_text_plot(onx: onnx.ModelProto, **_: Any) -> str:
    """Return one line per value and node of a graph."""
    graph = onx.graph
    kinds = (("input", graph.input), ("init", graph.initializer), ("output", graph.output))
    lines = {kind: [f"{kind}: name={value.name!r}" for value in values] for kind, values in kinds}
    nodes = [f"{n.op_type}({', '.join(n.input)}) -> {', '.join(n.output)}" for n in graph.node]
    return "\n".join([*lines["input"], *lines["init"], *nodes, *lines["output"]])


pretty_onnx = onnx_simple_text_plot


def export2onnx(onx: onnx.ModelProto) -> str:
    """Return the operators as the names of skl2onnx's classes."""
    return "\n".join(repr(f"Onnx{node.op_type}") for node in onx.graph.node)


def log_loss(y: Any, p: Any, eps: float | None = None) -> float:
    """Return scikit-learn's log loss of probabilities clipped to [eps, 1 − eps], as its argument `eps` once did."""
    return sklearn.metrics.log_loss(y, p if eps is None else np.clip(p, eps, 1 - eps))


def measure_time(
    stmt: Callable[[], Any], context: Any = None, repeat: int = 10, number: int = 50, **_: Any
) -> dict[str, float]:
    """Return average, deviation, least and greatest seconds of a call."""
    seconds = np.array(timeit.repeat(stmt, repeat=repeat, number=number, globals=context)) / number
    return {
        "average": float(seconds.mean()),
        "deviation": float(seconds.std()),
        "min_exec": float(seconds.min()),
        "max_exec": float(seconds.max()),
        "repeat": repeat,
        "number": number,
    }


def profile(call: Callable[[], Any], **_: Any) -> tuple[pstats.Stats, str]:
    """Return the profile of a call and its text."""
    text, profiler = io.StringIO(), cProfile.Profile()
    profiler.runcall(call)
    stats = pstats.Stats(profiler, stream=text).sort_stats("cumulative")
    stats.print_stats(20)
    return stats, text.getvalue()


class _Profile:
    def __init__(self, stats: pstats.Stats) -> None:
        self.stats = stats

    def to_text(self) -> str:
        return "\n".join(f"{time[3]:8.3f} {place[2]}" for place, time in list(self.stats.stats.items())[:20])


def profile2graph(stats: pstats.Stats, **_: Any) -> tuple[_Profile, dict[str, Any]]:
    """Return something that prints a profile."""
    return _Profile(stats), {}


def get_temp_folder(file: str, name: str, clean: bool = True) -> str:
    """Return an empty folder beside a script."""
    folder = Path(file).absolute().parent / name
    if clean:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    return str(folder)


def ignore_warnings(kinds: Any) -> Callable[..., Any]:
    """Run a test without warnings of these kinds."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def quiet(*arguments: Any) -> Any:
            with warnings.catch_warnings():
                for kind in kinds if isinstance(kinds, Sequence) else [kinds]:
                    warnings.simplefilter("ignore", kind)
                return test(*arguments)

        return quiet

    return decorate


def _always(*_: Any, **__: Any) -> Callable[..., Any]:
    return lambda test: test


skipif_appveyor = skipif_travis = skipif_circleci = skipif_ci_windows = _always
requires_onnxruntime_training = requires_sklearn = _always


class ExtTestCase(unittest.TestCase):
    """unittest's test case with the assertions that both libraries add."""

    def assertRaise(self, call: Callable[[], Any], kind: type[BaseException] = Exception) -> None:
        """Check that a call raises this kind."""
        with pytest.raises(kind):
            call()

    def assertGreater(self, a: Any, b: Any, msg: Any = None) -> None:
        """Check a ≥ b, as pyquickhelper did."""
        assert a >= b, msg or f"{a} < {b}"

    def assertEqualArray(self, expected: Any, got: Any, decimal: int | None = None, atol: float = 0, **_: Any) -> None:
        """Check that two arrays are equal, to `decimal` decimals or to `atol`."""
        tolerance = 1.5 * 10.0**-decimal if decimal is not None else atol
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)

    def assertEqualFloat(self, expected: float, got: float, precision: float = 1e-5) -> None:
        """Check that two numbers are equal, relatively."""
        np.testing.assert_allclose(got, expected, rtol=precision)

    def assertExists(self, name: str) -> None:
        """Check that there is a file."""
        assert os.path.exists(name), f"no file {name!r}"

    def assertEmpty(self, value: Any) -> None:
        """Check that something is None or holds nothing."""
        assert value is None or len(value) == 0, f"not empty: {value!r}"

    def assertNotEmpty(self, value: Any) -> None:
        """Check that something is not None and holds something."""
        empty = value is None or (hasattr(value, "__len__") and len(value) == 0)
        assert not empty, f"empty: {value!r}"

    def assertStartsWith(self, prefix: str, text: str) -> None:
        """Check the beginning of a text."""
        assert text.startswith(prefix), f"{text!r} does not start with {prefix!r}"

    def assertLogging(self, call: Callable[[], Any], name: str, level: int = logging.INFO) -> tuple[Any, str]:
        """Return what a call returns and what it logs."""
        text, logger = io.StringIO(), logging.getLogger(name)
        handler, before = logging.StreamHandler(text), logger.level
        logger.addHandler(handler)
        logger.setLevel(level)
        try:
            return call(), text.getvalue()
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)
