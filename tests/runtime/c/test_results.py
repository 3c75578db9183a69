"""Forms that operators take in networks give the results of onnxruntime, over steps whose rows differ."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from runtime.c.epochs import needs_engine

from ortpipe.errors import EngineError
from ortpipe.runtime.c import CompiledEpoch

pytestmark = needs_engine
RNG = np.random.default_rng(0)
STEPS = 3


def epoch(body, states, rows, **weights):
    """Return the epoch graph of a body in ONNX's text, whose inputs are states, then rows."""
    header = '<ir_version: 10, opset_import: ["": 18]> step '
    model = onnx.parser.parse_model(header + body)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    kinds = [value.type.tensor_type.elem_type for value in model.graph.input]
    shapes = [*(x.shape for x in states), *(("steps", *x.shape[1:]) for x in rows)]
    inputs = [helper.make_tensor_value_info(f"x{i}", k, s) for i, (k, s) in enumerate(zip(kinds, shapes, strict=True))]
    kinds = [value.type.tensor_type.elem_type for value in model.graph.output]
    ends = [helper.make_tensor_value_info(f"y{i}", kind, None) for i, kind in enumerate(kinds)]
    names = [[value.name for value in values] for values in (inputs, ends)]
    scan = helper.make_node("Scan", *names, body=model.graph, num_scan_inputs=len(rows))
    graph = helper.make_graph([scan], "epoch", inputs, ends)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=10)


def results(body, rows, states=(), engine="c", **weights):
    """Return the outputs of all steps from C or onnxruntime."""
    model = epoch(body, states, rows, **weights)
    feeds = {f"x{i}": array for i, array in enumerate([*states, *rows])}
    if engine == "c":
        return CompiledEpoch(model, {}).run(feeds)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def compare(body, rows, states=(), **weights):
    """Compare the results of C with those of onnxruntime."""
    one, two = (results(body, rows, states, engine, **weights) for engine in ("c", "onnxruntime"))
    for ours, theirs in zip(one, two, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def floats(*shape):
    """Return random numbers for each step."""
    return RNG.normal(size=(STEPS, *shape)).astype(np.float32)


def test_a_joined_next_state_is_written_after_its_state_was_read():
    body = """(float[4] s, float[2] x) => (float[4] t, float[2] y)
    <int64[1] zero = {0}, int64[1] two = {2}> { d = Add(x, x) r = Slice(s, zero, two) t = Concat<axis=0>(d, r)
    y = Identity(r) }"""
    compare(body, [floats(2)], [np.arange(4, dtype=np.float32)])


def test_a_delay_line_inside_a_step_keeps_its_order():
    body = """(float[5,1] x) => (float[3] last, float[5,1] y) { z = Constant<value = float[3] {0, 0, 0}>()
    last, y = Scan<num_scan_inputs=1, body = inner (float[3] s, float[1] v) => (float[3] t, float[1] u)
      <int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}>
      { d = Add(v, v) r = Slice(s, zero, two) t = Concat<axis=0>(d, r) u = Slice(t, two, three) }>(z, x) }"""
    compare(body, [floats(5, 1)])
