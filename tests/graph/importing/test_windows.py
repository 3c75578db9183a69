"""What windows compute is what ONNX says, on every runtime, and the gradient is its slope."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx.helper as h
import onnx.parser
import pytest
from engines import native
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from ortpipe.errors import ModelError
from ortpipe.graph.importing.lower import lowered
from ortpipe.runtime.library import ort
from ortpipe.runtime.session import Session

rng = np.random.default_rng(0)
LP = 2
MODES = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
OPS = ("Conv", "AveragePool", "LpPool", "MaxPool")


def model_of(op, size, kernel, stride, dilation, mode, *, pads=(0, 0), batch="N", **attributes):
    given = {"kernel_shape": [kernel], "strides": [stride], "dilations": [dilation], "auto_pad": mode, **attributes}
    given |= {"pads": list(pads)} if mode == "NOTSET" else {}
    weight = onnx.numpy_helper.from_array(rng.uniform(0.5, 1, (1, 1, kernel)).astype(np.float32), "w")
    conv = op == "Conv"
    graph = h.make_graph(
        [h.make_node(op, ["x", "w"] if conv else ["x"], ["y"], **given)],
        "g",
        [h.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 1, size])],
        [h.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 1, None])],
        [weight] if conv else [],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)


def expected(x, op, kernel, stride, dilation, mode, *, pads=(0, 0), ceil_mode=0, count_include_pad=0, w=None):
    """Compute what ONNX's text says, window by window."""
    size, extent = x.shape[-1], (kernel - 1) * dilation + 1
    begin, end = pads
    if mode.startswith("SAME"):
        count = -(-size // stride)
        total = max(0, (count - 1) * stride + extent - size)
        begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
        end = total - begin
    else:
        room = size + begin + end - extent
        count = (-(-room // stride) if ceil_mode else room // stride) + 1
    values = []
    for o in range(count):
        places = o * stride - begin + np.arange(kernel) * dilation
        inside = (places >= 0) & (places < size)
        v = x[0, 0, places[inside]]
        counted = (places < size + end).sum() if count_include_pad else inside.sum()
        match op:
            case "Conv":
                values.append((v * w[0, 0, inside]).sum())
            case "AveragePool":
                values.append(v.sum() / counted)
            case "LpPool":
                values.append((v**LP).sum() ** (1 / LP))
            case _:
                values.append(v.max())
    return np.array(values, np.float32)


def cases(op):
    ceils, includes = (0, 1) if op != "Conv" else (0,), (0, 1) if op == "AveragePool" else (0,)
    for mode, *window in itertools.product(MODES, (5, 8), (1, 2, 3), (1, 2, 5), (1, 2), ceils, includes):
        size, kernel, stride, dilation, ceil, include = window
        for pads in ((0, 0), (1, 0)) if mode == "NOTSET" and kernel > 1 else ((0, 0),):
            if size + sum(pads) < (kernel - 1) * dilation + 1 or (kernel == 1 and dilation > 1):
                continue
            given = {"ceil_mode": ceil} if op != "Conv" else {}
            given |= {"count_include_pad": include} if op == "AveragePool" else {}
            yield size, (kernel, stride, dilation, mode), {"pads": pads, **given}


@pytest.mark.parametrize("op", OPS)
def test_windows_hold_what_onnx_says_or_are_refused(op):
    ran = refused = 0
    for size, window, given in cases(op):
        model = model_of(op, size, *window, **given)
        x = rng.uniform(0.5, 2, (1, 1, size)).astype(np.float32)
        w = onnx.numpy_helper.to_array(model.graph.initializer[0]) if op == "Conv" else None
        try:
            plain = lowered(model)
        except ModelError:
            refused += given["ceil_mode"]
            continue
        [got] = Session(plain).run({"x": x})
        np.testing.assert_allclose(
            got[0, 0], expected(x, op, *window, w=w, **given), rtol=1e-5, err_msg=f"{window} {given}"
        )
        ran += 1
    assert ran > 100
    assert (refused > 0) == (op != "Conv")


@pytest.mark.skipif(ort.__version__ == "1.30.0", reason="lays most of these windows where ONNX says")
@pytest.mark.parametrize("op", OPS)
def test_windows_that_onnxruntime_begins_elsewhere_are_named(op):
    named = 0
    for size, window, given in cases(op):
        if not window[-1].startswith("SAME") or given.get("ceil_mode") or given.get("count_include_pad"):
            continue
        if op == "Conv" and window[2] > 1:  # which onnxruntime refuses
            continue
        model = model_of(op, size, *window)
        x = rng.uniform(0.5, 2, (16, 1, size)).astype(np.float32)
        low = lowered(model, moved=(notes := []))
        [theirs], [ours] = Session(model).run({"x": x}), Session(low).run({"x": x})
        same = theirs.shape == ours.shape and np.allclose(theirs, ours, rtol=1e-5)
        assert bool(notes) == (not same), (size, window, notes)
        named += len(notes)
    assert named > 0


COUNTED = {"ceil_mode": 1, "count_include_pad": 1}
REWRITTEN = {
    "SAME, stride > kernel": ("Conv", 8, 1, 5, 1, "SAME_UPPER", {}),
    "SAME, stride > kernel, lower": ("Conv", 6, 2, 5, 1, "SAME_LOWER", {}),
    "SAME, dilated": ("Conv", 6, 2, 1, 2, "SAME_UPPER", {}),
    "SAME, dilated pool": ("AveragePool", 6, 2, 1, 2, "SAME_LOWER", {}),
    "SAME, ceil": ("MaxPool", 7, 1, 3, 1, "SAME_UPPER", {"ceil_mode": 1}),
    "ceil and pads counted": ("AveragePool", 6, 3, 2, 1, "NOTSET", COUNTED | {"pads": (1, 0)}),
    "ceil, no pads counted": ("AveragePool", 6, 3, 2, 1, "VALID", COUNTED),
}


@pytest.mark.parametrize("case", REWRITTEN.values(), ids=REWRITTEN)
def test_the_gradient_is_the_slope_of_what_the_runtime_computes(case):
    *window, given = case
    model = lowered(model_of(*window, batch=1, **given))
    assert model.graph.node[-1].attribute != model_of(*window, **given).graph.node[-1].attribute
    x = np.arange(1, window[1] + 1, dtype=np.float32).reshape(1, 1, -1) % 5
    factor = onnx.numpy_helper.from_array(
        np.arange(1, 9, dtype=np.float32)[: Session(model).run({"x": x})[0].size], "c"
    )
    model.graph.initializer.append(factor)
    model.graph.node.append(h.make_node("Mul", ["y", "c"], ["weighed"]))
    model.graph.node.append(h.make_node("ReduceSum", ["weighed"], ["loss"], keepdims=0))
    model.graph.output[0].CopyFrom(h.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    derived, names = native(model, "loss", [], ["x"])
    [gradient] = Session(derived).run({"x": x}, [names["x"]])
    session, step = Session(model), np.float32(0.25)  # the operators are linear around x: any step is exact
    for place in range(x.size):
        moved = np.zeros_like(x)
        moved[0, 0, place] = step
        [up], [down] = session.run({"x": x + moved}), session.run({"x": x - moved})
        assert (up - down) / (2 * step) == pytest.approx(gradient[0, 0, place], abs=1e-4)


def test_pads_that_depend_on_a_free_size_are_refused_by_name_and_others_are_not():
    with pytest.raises(ModelError, match="Conv at node 'y': axis 2 of 'x'"):
        lowered(model_of("Conv", "L", 2, 3, 1, "SAME_UPPER"))
    [node] = lowered(model_of("Conv", "L", 1, 3, 1, "SAME_UPPER")).graph.node
    assert {a.name: list(a.ints) for a in node.attribute}["pads"] == [0, 0]
    [node] = lowered(model_of("Conv", "L", 3, 1, 2, "SAME_UPPER")).graph.node
    assert {a.name: list(a.ints) for a in node.attribute}["pads"] == [2, 2]


def test_windows_that_every_runtime_slides_alike_are_left_as_they_are():
    model = model_of("Conv", 8, 3, 2, 1, "SAME_UPPER")
    assert lowered(model).graph.node == model.graph.node


def test_a_kernel_of_free_sizes_is_refused_where_pads_follow_from_it_alone():
    text = """<ir_version: 10, opset_import: ["": 18]> g (float[1,1,5] x, float[1,1,K] w) => (float[1,1,A] y) {{
      a = Conv(x, w) y = {}(a, w) }}"""
    with pytest.raises(ModelError, match="static sizes"):
        lowered(onnx.parser.parse_model(text.format('Conv<auto_pad="SAME_UPPER">')))
    assert lowered(onnx.parser.parse_model(text.format("Conv"))).graph.node


@pytest.mark.parametrize("given", [{}, {"strides": [2], "pads": [1, 0]}, {"dilations": [2], "strides": [2]}])
def test_columns_of_one_axis_are_added_up_where_onnx_says(given):
    """onnxruntime puts them elsewhere (1.19.2, 1.23.2); onnx's evaluator does as the formula says."""
    window = {"strides": [1], "pads": [0, 0], "dilations": [1]} | given
    count = (7 + sum(window["pads"]) - window["dilations"][0] - 1) // window["strides"][0] + 1
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[2,6,{count}] x) => (float[2,3,7] y)
      {{ length = Constant<value_ints=[7]>() width = Constant<value_ints=[2]>()
        y = Col2Im<{", ".join(f"{name}={values}" for name, values in window.items())}>(x, length, width) }}"""
    model, x = onnx.parser.parse_model(text), rng.normal(size=(2, 6, count)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(Session(lowered(model)).run({"x": x})[0], expected, rtol=1e-6)
