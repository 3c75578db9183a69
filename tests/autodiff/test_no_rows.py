"""Gradients of models that run on 0 rows: zeros of the right shape, and with rows the gradients of a static batch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from plain_session import PlainSession

from ortpipe.autodiff import gradient

WINDOW = "kernel_shape=[2,2]"
CASES = {
    "MatMul": "(float[N,3] x, float[3,2] w) => (float[N,2] y) { y = MatMul(x, w) }",
    "MatMul in float64": "(double[N,3] x, double[3,2] w) => (double[N,2] y) { y = MatMul(x, w) }",
    "MatMul of three axes": "(float[N,4,3] x, float[3,2] w) => (float[N,4,2] y) { y = MatMul(x, w) }",
    "a weight that is used twice": """(float[N,3] x, float[3,3] w) => (float[N,3] y)
      { h = MatMul(x, w) y = MatMul(h, w) }""",
    "Gemm": """(float[N,3] x, float[2,3] w, float[2] b) => (float[N,2] y)
      { y = Gemm<alpha=0.5, beta=2.0, transB=1>(x, w, b) }""",
    "Gather of two axes": """(float[N,4] x) => (float[N,2,2] y) <int64[2,2] i = {0, 3, 1, 1}>
      { y = Gather<axis=1>(x, i) }""",
    "Conv": "(float[N,2,6,6] x, float[3,2,3,3] w, float[3] b) => (float[N,3,4,4] y) { y = Conv(x, w, b) }",
    "Conv of one place": "(float[N,2,6,6] x, float[3,2,1,1] w) => (float[N,3,6,6] y) { y = Conv(x, w) }",
    "Conv in groups": "(float[N,4,6,6] x, float[6,2,3,3] w) => (float[N,6,4,4] y) { y = Conv<group=2>(x, w) }",
    "Conv of large kernels with pads": """(float[N,4,9,9] x, float[6,2,5,5] w) => (float[N,6,9,9] y)
      { y = Conv<group=2, pads=[2,2,2,2]>(x, w) }""",
    "Conv of free sizes": """(float[N,4,H,W] x, float[6,2,3,3] w) => (float[N,6,A,B] y)
      { y = Conv<group=2, strides=[2,2]>(x, w) }""",
    "ConvTranspose": "(float[N,2,4,4] x, float[2,3,3,3] w) => (float[N,3,6,6] y) { y = ConvTranspose(x, w) }",
    "AveragePool": f"(float[N,2,5,5] x) => (float[N,2,4,4] y) {{ y = AveragePool<{WINDOW}>(x) }}",
    "AveragePool of free sizes": f"(float[N,2,H,W] x) => (float[N,2,A,B] y) {{ y = AveragePool<{WINDOW}>(x) }}",
    "LpPool": f"(float[N,2,5,5] x) => (float[N,2,4,4] y) {{ y = LpPool<{WINDOW}>(x) }}",
    "GlobalMaxPool": "(float[N,2,4,4] x) => (float[N,2,1,1] y) { y = GlobalMaxPool(x) }",
    "Resize": """(float[N,2,4,4] x) => (float[N,2,8,8] y) <float[4] s = {1, 1, 2, 2}>
      { y = Resize<mode="linear">(x, , s) }""",
    "GridSample": "(float[N,1,3,3] x, float[N,2,2,2] g) => (float[N,1,2,2] y) { y = GridSample(x, g) }",
    "RNN": """(float[5,N,3] x, float[1,4,3] w, float[1,4,4] r) => (float[5,1,N,4] y)
      { y = RNN<hidden_size=4>(x, w, r) }""",
}


def feeds_of(model: onnx.ModelProto, rows: int) -> dict[str, np.ndarray]:
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [d.dim_value or {"N": rows, "H": 6, "W": 5}[d.dim_param] for d in dims]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = rng.uniform(0.1, 1, shape).astype(dtype)
    return feeds


SECOND = ("MatMul in float64", "a weight that is used twice", "Conv of large kernels with pads")


@pytest.mark.parametrize(("case", "kind"), [*((case, "vjp") for case in CASES), *((case, "hvp") for case in SECOND)])
def test_gradients_of_no_rows_are_zeros(case: str, kind: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 21]> g {CASES[case]}')
    wrt, rows, none = [value.name for value in model.graph.input], feeds_of(model, 3), feeds_of(model, 0)

    def run(derivatives: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        read = {value.name for value in derivatives.graph.input}
        tangents = {f"{name}_tangent": array for name, array in feeds.items()}
        return PlainSession(derivatives).run({name: a for name, a in {**feeds, **tangents}.items() if name in read})

    free = gradient(model, "y", wrt, kind=kind, ones=True)
    for name, found in zip(wrt, run(free, none), strict=True):
        np.testing.assert_array_equal(found, np.zeros_like(none[name]))
    static = gradient(model, "y", wrt, kind=kind, ones=True, shape={"x": rows["x"].shape})
    for found, expected in zip(run(free, rows), run(static, rows), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
