from __future__ import annotations

import numpy as np
import pytest
from autodiff.numeric import worst_error
from autodiff.rules.onnx_cases import model_of, session
from engines import expanded, native

from ortpipe.errors import DeriveError

CONSTANTS = "<int64 i = {1}, int64 last = {-1}, int64 j = {-2}, int64[2] parts = {1, 2}, int64 two = {2}>"
GRAPHS = [
    "s = SequenceConstruct(x, z, x) a = SequenceAt(s, i) b = SequenceAt(s, j) y = Mul(a, b)",
    "s = SequenceConstruct(x, z) y = ConcatFromSequence<axis=1>(s)",
    "s = SequenceConstruct(x, z) y = ConcatFromSequence<axis=-1, new_axis=1>(s)",
    "e = SequenceEmpty() s = SequenceInsert(e, x) t = SequenceInsert(s, z, last) y = ConcatFromSequence<axis=0>(t)",
    "s = SequenceConstruct(x, z, x) t = SequenceErase(s, i) u = SequenceErase(t) y = SequenceAt(u, last)",
    "s = SplitToSequence<axis=0, keepdims=0>(x) a = SequenceAt(s, i) y = Mul(a, z)",
    "s = SplitToSequence<axis=1>(x) t = SequenceErase(s, i) y = ConcatFromSequence<axis=1>(t)",
    "s = SplitToSequence<axis=0, keepdims=0>(x) t = SequenceErase(s, i) y = ConcatFromSequence<axis=0, new_axis=1>(t)",
    "s = SplitToSequence(x, parts) a = SequenceAt(s, i) y = Mul(a, a)",
    "s = SplitToSequence<axis=1>(x, two) a = SequenceAt(s, i) b = SequenceAt(s, last) y = Mul(a, b)",
    "o = Optional(x) a = OptionalGetElement(o) b = OptionalGetElement(z) y = Mul(a, b)",
    "s = SequenceConstruct(x, z) o = Optional(s) t = OptionalGetElement(o) c = Identity(t) y = SequenceAt(c, i)",
    "s = SequenceConstruct(x, z) a = SequenceAt(s, k) y = Mul(a, x)",
    "s = SplitToSequence<axis=0>(x) a = SequenceAt(s, k) y = Mul(a, a)",
]


@pytest.mark.parametrize("nodes", GRAPHS)
def test_a_sequence_of_known_length_gives_its_tensors_their_gradients(nodes):
    output = "float[a,b,c] y" if "axis=-1, new_axis" in nodes else "float[a,b] y"
    model = model_of(f"g (float[3,4] x, float[3,4] z, int64 k) => ({output}) {CONSTANTS} {{ {nodes} }}")
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((3, 4)).astype(np.float32) for name in "xz"}
    feeds["k"] = np.array(1)
    plain = expanded(model, ("x", "z"))
    assert not any("Sequence" in node.op_type or "Optional" in node.op_type for node in plain.graph.node)
    got, expected = (session(m).run(None, {i.name: feeds[i.name] for i in m.graph.input})[0] for m in (plain, model))
    np.testing.assert_array_equal(got, expected)
    assert worst_error(plain, feeds) < 1e-6


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ("s = SequenceConstruct(x, z) t = SequenceErase(s, k) y = ConcatFromSequence<axis=0>(t)", "'k', a place"),
        ("s = SplitToSequence<axis=0>(v) y = ConcatFromSequence<axis=0>(s)", "how many parts SplitToSequence at node"),
    ],
)
def test_a_sequence_of_unknown_length_is_refused_with_what_is_not_known(nodes, why):
    model = model_of(
        f"""g (float[3,4] x, float[3,4] z, float[N,4] v, int64 k) => (float l)
        {{ {nodes} l = ReduceSum<keepdims=0>(y) }}"""
    )
    with pytest.raises(DeriveError, match=why):
        native(model, "l", [], ["x", "v"])
