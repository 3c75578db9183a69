"""The installed onnxruntime has each quirk of its version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from ortpipe.runtime.library import ort
from ortpipe.runtime.quirks import QUIRKS
from ortpipe.runtime.session import Session

ROOT = Path(__file__).resolve().parents[2]
SCAN = """g (float[1] c, float[s,1] x) => (float[1] d, float[s,1] z) { d, z = Scan<num_scan_inputs=1,
  body = b (float[1] i, float[1] j) => (float[1] o, float[1] p) { o = Add(i, j) p = Neg(j) }>(c, x) }"""
FUSED = """g (float[1,4,5,5] x) => (float[1,4,3,3] y) <float[4,4,3,3] w = {NUMBERS}> {
  total = ReduceSum<keepdims=0>(x) zero = Constant<value_float=0.0>() c = Greater(total, zero) a = Conv(x, w)
  y = If(c) <then_branch = t () => (float[1,4,3,3] r) { r = Relu(a) },
             else_branch = e () => (float[1,4,3,3] s) { s = Neg(a) }> }"""
NORMALIZED = """g (float[2,1] x, float[1] scale, float[1] b, float[1] m, float[1] v) => (float[2,1] y) {
  y, m1, v1 = BatchNormalization<training_mode=1>(x, scale, b, m, v) }"""

DROPPED = """g (float[1000] x) => (float[1000] y) {
  share = Constant<value=float {0.5}>() on = Constant<value=bool {1}>() a = Abs(x)
  d = Dropout(a, share, on) y = Neg(d) }"""


def session(text):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(text, **feeds):
    return session(text).run(None, feeds)[0]


def fails(text, **feeds):
    try:
        run(text, **feeds)
    except (Fail, InvalidArgument, NoKernel, RuntimeException):
        return True
    return False


def float32(*numbers):
    return np.array(numbers, np.float32)


def fails_in_float64(*formulas):
    x = np.ones((1, 1, 2, 2))
    return all(fails(f"g (double[1,1,2,2] x) => (double[a,b,c,d] y) {{ {formula} }}", x=x) for formula in formulas)


def ends_the_process():
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> {FUSED.replace("NUMBERS", ", ".join(["0.5"] * 144))}'
    )
    code = "import sys, onnxruntime as o; o.set_default_logger_severity(4); o.InferenceSession(sys.stdin.buffer.read())"
    done = subprocess.run([sys.executable, "-c", code], input=model.SerializeToString(), capture_output=True)
    return done.returncode != 0 and b"Error" not in done.stderr  # no exception of Python's


def overwrites_its_input():
    mean = float32(0)
    run(NORMALIZED, x=float32([1], [3]), scale=float32(1), b=float32(0), m=mean, v=float32(1))
    return mean[0] != 0


PROBES = {  # quirk → whether the installed runtime has it
    "fused_convolution": ends_the_process,
    "fused_types": lambda: fails_in_float64(
        "s = Sigmoid(x) y = Mul(x, s)", "t = Transpose<perm=[0,1,3,2]>(x) y = MatMul(t, x)"
    ),
    "overwritten_statistics": overwrites_its_input,
    "float64_functions": lambda: fails_in_float64(*(f"y = {name}(x)" for name in ("Cos", "Cosh", "Sinh", "Tan"))),
    "float64_layers": lambda: fails_in_float64("y = Erf(x)", "y = Conv(x, x)"),
    "softplus_overflow": lambda: np.isinf(
        run("g (double[1] x) => (double[1] y) { y = Softplus(x) }", x=np.array([1e3]))
    ),
    "sigmoid_underflow": lambda: run("g (float[1] x) => (float[1] y) { y = Sigmoid(x) }", x=float32(-20))[0] == 0,
    "column_pads": lambda: (
        run(
            "g (float[1,2,4] x, int64[1] n, int64[1] k) => (float[a,b,c] y) { y = Col2Im<pads=[1,0]>(x, n, k) }",
            x=float32([[1, 2, 3, 4], [5, 6, 7, 8]]),
            n=np.array([4]),
            k=np.array([2]),
        )[0, 0, 0]
        != 2 + 5
    ),
    "counted_pads": lambda: (
        run(
            "g (float[1,1,4] x) => (float[a,b,c] y) "
            "{ y = AveragePool<kernel_shape=[3], strides=[2], ceil_mode=1, count_include_pad=1>(x) }",
            x=np.ones((1, 1, 4), np.float32),
        )[0, 0, 1]
        != 1
    ),
    "automatic_pads": lambda: (
        run(
            "g (float[1,1,7] x) => (float[a,b,c] y) "
            '{ y = MaxPool<kernel_shape=[2], dilations=[3], auto_pad="SAME_UPPER">(x) }',
            x=np.zeros((1, 1, 7), np.float32),
        ).shape
        != (1, 1, 7)
    ),
    "fused_pads": lambda: fails(
        "g (float[1,1,3,3] x, float[1,1,2,2] w) => (float[a,b,c,d] y) <int64[8] p = {0, 0, 0, 0, 0, 0, 1, 1}> "
        "{ k = Pad(w, p) y = Conv<pads=[1,1,1,1]>(x, k) }",
        x=np.ones((1, 1, 3, 3), np.float32),
        w=np.ones((1, 1, 2, 2), np.float32),
    ),
    "no_axes": lambda: (
        fails("g (float[2] x) => (float[2] y) { y = ReduceSum<noop_with_empty_axes=1>(x) }", x=float32(1, 2))
        and run(
            "g (float[1] x) => (float[1] y) { axes = Constant<value=int64[0] {}>() "
            "y = ReduceSumSquare<noop_with_empty_axes=1>(x, axes) }",
            x=float32(3),
        )[0]
        == 3
    ),
    "transposed_axes": lambda: fails(
        "g (float[2,3,4] x) => (float[a,b,c] y) <int64[2] p = {0, 1}, int64[1] axes = {1}, float zero = {0.0}> "
        "{ t = Transpose<perm=[0,2,1]>(x) k = Pad(t, p, zero, axes) y = Transpose<perm=[0,2,1]>(k) }",
        x=np.ones((2, 3, 4), np.float32),
    ),
    "removed_dropout": lambda: run(DROPPED, x=np.ones(1000, np.float32)).all(),
    "empty_scan": lambda: fails(SCAN, c=float32(1), x=np.zeros((0, 1), np.float32)),
    "empty_crop": lambda: fails(
        "g (float[2,2] x, int64[4] p) => (float[a,b] y) { y = Pad(x, p) }",
        x=np.ones((2, 2), np.float32),
        p=np.array([0, -3, 0, 2]),
    ),
}


def test_each_quirk_has_a_probe_and_a_module_that_avoids_it():
    assert PROBES.keys() == QUIRKS.keys()
    assert [q.avoided_in for q in QUIRKS.values() if not (ROOT / "ortpipe" / q.avoided_in).is_file()] == []


@pytest.mark.parametrize("name", QUIRKS)
def test_the_installed_runtime_has_the_quirks_of_its_version(name):
    there = PROBES[name]()
    if ort.__version__ not in QUIRKS[name].versions:
        pytest.skip(f"onnxruntime {ort.__version__} {'also has' if there else 'no longer has'} it: adapt the table")
    assert there, f"onnxruntime {ort.__version__} no longer has it: adapt the table"


def test_dropout_in_training_drops_if_no_node_reads_its_mask():
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {DROPPED}')
    [y] = Session(model).run({"x": np.ones(1000, np.float32)})
    assert 400 < np.count_nonzero(y == 0) < 600
