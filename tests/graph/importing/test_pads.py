"""A Pad that names its axes pads the same entries with the pads of all axes, which every runtime computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from ortpipe.graph.core.protos import all_nodes
from ortpipe.graph.importing.lower import lowered
from ortpipe.runtime.session import Session

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def behind_a_transpose(pads, axes, mode):
    constants = f"int64[{len(axes)}] axes = {{{', '.join(map(str, axes))}}}, float zero = {{0.5}}"
    given, pads = ("", f", int64[{len(pads)}] p = {{{', '.join(map(str, pads))}}}") if pads else (", int64[P] p", "")
    text = f"""g (float[2,3,4] x{given}) => (float[A,B,C] y) <{constants}{pads}> {{
        t = Transpose<perm=[0,2,1]>(x) k = Pad<mode="{mode}">(t, p, zero, axes) y = Transpose<perm=[0,2,1]>(k) }}"""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [[0, 1], [2, 1, 0, 1], None])
@pytest.mark.parametrize("axes", [[1, 2], [-1, 1]])
def test_a_pad_with_axes_behind_a_transpose(axes, pads, mode):
    used = axes if pads is None else axes[: len(pads) // 2]
    model = behind_a_transpose(pads, used, mode)
    feeds = {"x": X} if pads else {"x": X, "p": np.array([1, 0, 2, 1])}
    low = lowered(model)
    assert [len(node.input) for node in all_nodes(low.graph) if node.op_type == "Pad"] == [3]
    np.testing.assert_array_equal(Session(low).run(feeds)[0], ReferenceEvaluator(model).run(None, feeds)[0])
