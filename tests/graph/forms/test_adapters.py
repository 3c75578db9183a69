from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortpipe.graph.choice.readers import UseFinder
from ortpipe.graph.core import query
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.edit import set_initializers
from ortpipe.graph.core.inference import infer
from ortpipe.graph.forms.adapters import insert, merged, why_not, without_adapters
from ortpipe.runtime.session import Session

HEAD = '<ir_version: 10, opset_import: ["": 21]> g (float[{x}] X) => (float[{y}] Y) '
HELD = "<float[{w}] w = {{{values}}}, float[9] bias = {{9, 8, 7, 6, 5, 4, 3, 2, 1}}> "
CASES = {  # shapes of X, Y and w, and how Y follows
    "matmul": ("N,5,8", "N,5,9", "8,9", "Y = MatMul(X, w)"),
    "bias": ("N,5,300", "N,5,9", "300,9", "h = MatMul(X, w) Y = Add(bias, h)"),
    "from the left": ("N,9,5", "N,8,5", "8,9", "Y = MatMul(w, X)"),
    "transposed": ("N,9", "N,8", "8,9", "t = Transpose<perm=[1,0]>(w) h = MatMul(X, t) Y = Tanh(h)"),
    "not turned": ("N,9", "N,9", "9,9", "t = Transpose<perm=[0,1]>(w) Y = MatMul(X, t)"),
    "gemm": ("9,N", "N,8", "8,9", "Y = Gemm<transA=1, transB=1, alpha=0.5>(X, w)"),
    "tied": ("N,8", "N,8", "8,9", "h = MatMul(X, w) a = Tanh(h) t = Transpose(w) Y = MatMul(a, t)"),
    "conv": ("N,6,7", "N,12,3", "12,3,3", "Y = Conv<group=2, strides=[2], dilations=[2], pads=[1,1]>(X, w)"),
    "images": ("N,6,7,7", "N,9,7,7", "9,6,3,3", 'Y = Conv<auto_pad="SAME_UPPER">(X, w)'),
    "branches": (
        "N,8",
        "N,9",
        "8,9",
        "s = ReduceSum<keepdims=0>(X) z = Sub(s, s) c = Less(s, z) Y = If(c) "
        "<then_branch = a () => (float[N,9] p) {p = MatMul(X, w)}, "
        "else_branch = b () => (float[N,9] q) {m = MatMul(X, w) q = Neg(m)}>",
    ),
}


def graph_of(case):
    x, y, w, nodes = CASES[case]
    rng = np.random.default_rng(0)
    values = ", ".join(map(str, rng.normal(size=np.prod([int(size) for size in w.split(",")])).round(3)))
    model = ir.from_onnx_text(HEAD.format(x=x, y=y) + HELD.format(w=w, values=values) + f"{{ {nodes} }}")
    return model, rng.normal(size=[4 if size == "N" else int(size) for size in x.split(",")]).astype(np.float32)


def predicted(model, rows):
    return Session(finish(model.clone())).run({"X": rows})[0]


@pytest.mark.parametrize("case", CASES)
def test_an_adapted_model_is_the_one_whose_weight_is_the_sum(case):
    model, rows = graph_of(case)
    infer(model)
    text, first, weight = ir.to_proto(model), predicted(model, rows), model.graph.initializers["w"].const_value.numpy()
    assert why_not(model.graph.initializers["w"], UseFinder(model.graph), 2) is None
    adapters = insert(model.graph, ["w"], 2, 0.5, np.random.default_rng(1))
    assert predicted(model, rows).tobytes() == first.tobytes()
    if case in ("matmul", "from the left", "transposed", "conv"):  # the rules of derive count axes
        known = {value.name: value.shape for node in model.graph for value in node.outputs if "/lora/" in value.name}
        infer(model)
        assert known == {name: query.value(model.graph, name).shape for name in known}

    drawn = model.graph.initializers["w/lora_B"].const_value
    set_initializers(model, {"w/lora_B": np.random.default_rng(2).normal(size=drawn.shape)})
    arrays = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    assert not drawn.numpy().any()
    assert arrays["w/lora_A"].all()
    adapted, adapter = predicted(model, rows), adapters["w"]
    without_adapters(model, adapters)
    assert ir.to_proto(model).graph.node == text.graph.node or case == "branches"  # names of values, too
    assert predicted(model, rows).tobytes() == first.tobytes()
    set_initializers(model, {"w": merged(weight, arrays[adapter.left], arrays[adapter.right], adapter.scale)})
    assert np.abs(adapted - first).max() > 0.1
    np.testing.assert_allclose(predicted(model, rows), adapted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("h = MatMul(X, w) a = Mul(w, w) s = ReduceSum<keepdims=0>(a) Y = Add(h, s)", "read through Mul"),
        ("t = Tanh(w) Y = MatMul(X, t)", "read through Tanh"),
        ("d = MatMul(u, w) Y = MatMul(X, d)", "read through MatMul"),
        ("Y = Gemm(w, X)", "read by Gemm"),
        ("s = MatMul(X, v) Y = Identity(s)", "9 x 1 numbers, too few for an adapter of rank 1"),
    ],
)
def test_a_weight_that_is_no_plain_operand_of_a_product_gets_no_adapter(nodes, reason):
    held = "float[9,9] u, float[9,9] w, float[9,1] v"
    graph = ir.from_onnx_text(
        HEAD.split(" g ")[0] + f" g (float[N,9] X) => (float[N,9] Y) <{held}> {{ {nodes} }}"
    ).graph
    values = {v.name: v for v in (x for node in graph for x in node.inputs) if v.producer() is None and v.name != "X"}
    for name, value in values.items():
        value.const_value = ir.tensor(np.ones(value.shape.numpy(), np.float32), name=name)
        graph.register_initializer(value)
    assert why_not(values["v" if "v" in values else "w"], UseFinder(graph), 1) == reason
