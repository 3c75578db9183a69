"""Sorting by readiness: another order of the same nodes, which onnxruntime loads faster."""

import numpy as np
import onnx
import pytest

from ortpipe.fast.passes import sort_by_readiness
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.runtime.session import Session

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X, bool c) => (float[N,2] y, float[N,2] z) {
    a = Exp(X)
    b = Sin(a)
    u, unread = Split<axis=1, num_outputs=2>(b)
    d = If(c) <then_branch = t () => (float[N,2] t1) { t0 = Neg(b) t1 = Mul(t0, a) },
               else_branch = e () => (float[N,2] e1) { e1 = Identity(b) }>
    far = Cos(X)
    y = Mul(d, u)
    z = Add(far, a)
}"""


@pytest.fixture
def deep(monkeypatch):
    monkeypatch.setattr(THRESHOLDS, "sorted_nodes", 2)
    monkeypatch.setattr(THRESHOLDS, "sorted_wide_nodes", 7)


def test_nodes_follow_what_they_read_at_once_and_compute_the_same(deep):
    model, X = onnx.parser.parse_model(TEXT), np.arange(6, dtype=np.float32).reshape(3, 2)
    before = [Session(model).run({"X": X, "c": np.array(c)}) for c in (True, False)]
    sort_by_readiness(model)
    assert [node.op_type for node in model.graph.node] == ["Exp", "Cos", "Sin", "Add", "Split", "If", "Mul"]
    onnx.checker.check_model(model, full_check=True)
    for c, expected in zip((True, False), before, strict=True):
        for got, value in zip(Session(model).run({"X": X, "c": np.array(c)}), expected, strict=True):
            np.testing.assert_array_equal(got, value)


def test_what_only_an_inner_graph_reads_stands_before_it(deep):
    model = onnx.parser.parse_model(TEXT.replace("b = Sin(a)", "w = Tan(X) v = Neg(w) b = Sin(v)"))
    sort_by_readiness(model)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.index("If") > kinds.index("Sin")
    onnx.checker.check_model(model, full_check=True)


def test_the_nodes_of_small_graphs_stay_where_they_are():
    model = onnx.parser.parse_model(TEXT)
    before = model.SerializeToString()
    sort_by_readiness(model)
    assert model.SerializeToString() == before


def test_what_no_node_reads_stands_last_the_first_that_is_ready_at_the_end_where_it_is_little(deep, monkeypatch):
    model, X = onnx.parser.parse_model(TEXT), np.arange(6, dtype=np.float32).reshape(3, 2)
    before = Session(model).run({"X": X, "c": np.array(True)})
    monkeypatch.setattr(THRESHOLDS, "unread_share", 0.5)
    sort_by_readiness(model, THRESHOLDS.wide_bytes)
    assert [node.op_type for node in model.graph.node] == ["Exp", "Cos", "Sin", "Split", "If", "Mul", "Add"]
    for got, value in zip(Session(model).run({"X": X, "c": np.array(True)}), before, strict=True):
        np.testing.assert_array_equal(got, value)


def test_a_graph_of_large_values_stays_where_much_of_it_is_read_by_no_node(deep):
    model = onnx.parser.parse_model(TEXT)
    before = model.SerializeToString()
    sort_by_readiness(model, THRESHOLDS.wide_bytes)
    assert model.SerializeToString() == before
    sort_by_readiness(model, THRESHOLDS.wide_bytes - 1)
    assert model.SerializeToString() != before


def test_a_graph_of_large_values_is_sorted_only_where_it_is_deeper(deep, monkeypatch):
    model = onnx.parser.parse_model(TEXT)
    before = model.SerializeToString()
    monkeypatch.setattr(THRESHOLDS, "unread_share", 0.5)
    monkeypatch.setattr(THRESHOLDS, "sorted_wide_nodes", 8)
    sort_by_readiness(model, THRESHOLDS.wide_bytes)
    assert model.SerializeToString() == before
