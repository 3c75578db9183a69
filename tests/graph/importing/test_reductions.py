"""A reduction over no axes keeps the other steps of its formula."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from ortpipe.graph.importing.lower import lowered
from ortpipe.runtime.session import Session

KINDS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


@pytest.mark.parametrize("axes", ["", ", axes"], ids=["no axes", "an empty list"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reduction_over_no_axes(kind, axes):
    text = f"""g (float[2,2] x) => (float[2,2] y) {{
        axes = Constant<value=int64[0] {{}}>() y = Reduce{kind}<noop_with_empty_axes=1>(x{axes}) }}"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    feeds = {"x": np.array([[0.5, 3], [2, 1.5]], np.float32) * (1 if kind == "LogSum" else -1)}
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    np.testing.assert_allclose(Session(lowered(model)).run(feeds)[0], expected, rtol=1e-6)
