"""Every form of a convolution's gradients has the values of the form that derive writes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from autodiff.rules.onnx_cases import derived, model_of
from autodiff.rules.test_convolution import VARIANTS, case
from sample import pairs

from ortpipe.fast.convolutions import with_faster_convolutions
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.graph.core.check import finish
from ortpipe.runtime.session import Session

FORMS = {
    "usual": {},
    "products of places": {"joined_columns": 0},
    "products of places, batch behind": {"joined_columns": 0, "short_line": 100},
    "products of places for large kernels": {"gradient_places": 100},
    "joined columns": {"joined_columns": 10**6, "short_line": 0},
    "joined columns, batch behind": {"joined_columns": 10**6, "short_line": 100},
    "convolution with dy": {"gradient_places": 0},
    "shifts, batch in front": {"short_line": 0},
    "flipped kernels": {"flipped_places": 0},
}


def faster(model, sizes):
    """Return the model with faster gradients, for inputs of these sizes, and its operators."""
    model = ir.from_proto(model)
    for value in model.graph.inputs:
        value.shape = ir.Shape(sizes.get(value.name, value.shape))
    model = ir.from_proto(finish(model))
    with_faster_convolutions(model)
    return model, [node.op_type for node in model.graph]


SAMPLE = pairs([*VARIANTS], [*FORMS], 2)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_form_of_a_gradient_has_the_same_values(name, monkeypatch):
    op, attributes, x, *rest = VARIANTS[name]
    model, feeds = case(op, attributes, x, *rest, free=x[:1])
    _, graph, _ = derived(model, feeds)
    expected = Session(graph).run(feeds)
    written = set()
    for form in (FORMS[form] for variant, form in SAMPLE if variant == name):
        with monkeypatch.context() as changed:
            for threshold, value in form.items():
                changed.setattr(THRESHOLDS, threshold, value)
            model, operators = faster(graph, {"x": x})
        if tuple(operators) not in written:
            written.add(tuple(operators))
            for got, values in zip(Session(model).run(feeds), expected, strict=True):
                np.testing.assert_allclose(got, values, rtol=1e-4, atol=1e-4)


def test_a_kernel_gradient_copies_its_rows_and_columns_where_they_are_fewer_than_its_places():
    text = "g (float[4,8,8,8] x, float[16,8,3,3] w) => (float[4,16,6,6] y) { y = Conv(x, w) }"
    feeds = {"x": np.ones((4, 8, 8, 8), np.float32), "w": np.ones((16, 8, 3, 3), np.float32)}
    _, graph, _ = derived(model_of(text), feeds, "w")
    assert faster(graph, {})[1].count("Slice") == 3 + 3


def test_a_convolution_with_other_transposed_kernels_stays():
    text = """g (float[4,3,8,8] x, float[4,5,6,6] w) => (float[5,3,3,3] y) {
        a = Transpose<perm=[1,0,2,3]>(x) b = Transpose<perm=[1,0,3,2]>(w) c = Conv(a, b)
        y = Transpose<perm=[1,0,2,3]>(c) }"""
    _, operators = faster(model_of(text), {})
    assert "Gemm" not in operators
    assert "Conv" in operators
