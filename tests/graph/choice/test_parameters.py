"""Which initializers are trained by default: forms that exporters write, as ONNX text."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortpipe.graph.choice.parameters import choose, untie
from ortpipe.graph.choice.readers import is_added_mask, is_formula, is_zero_one
from ortpipe.graph.core.check import checked, finish
from ortpipe.graph.core.selection import sentence
from ortpipe.runtime.session import Session

rng = np.random.default_rng(0)
T, D = 8, 16
LOWER = np.tril(np.ones((T, T)))
TIME, FREQUENCY = np.arange(32)[:, None], np.arange(17)[None]
ANGLES = 2 * np.pi * TIME * FREQUENCY / 32
BASIS = np.concatenate([np.cos(ANGLES), np.sin(ANGLES)], axis=1) * np.hanning(32)[:, None]
POSITIONS = np.arange(T)[:, None] / 10000 ** (np.arange(0, D, 2) / D)
SINES = np.concatenate([np.sin(POSITIONS), np.cos(POSITIONS)], axis=1)
GRID = np.stack(np.meshgrid(np.arange(8.0), np.arange(8.0)), axis=-1).reshape(64, 2)
ATTENTION = f"float[N,{T},{D}] X) => (float[N,{T},{D}] y)"


def normal(*shape):
    return rng.normal(size=shape)


def text_model(body, arrays):
    """Return a model of `body`, inputs => outputs {{ nodes }}, that holds these arrays as initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g ({body}')
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
    return checked(model)


def chosen(model):
    graph = ir.from_proto(model).graph
    return choose(graph, graph.outputs[0])


def attention(mask, of_mask, **arrays):
    """Return a block of self-attention whose scores meet a mask in the way of `of_mask`: scores s → a."""
    names = ("wq", "wk", "wv")
    body = f"""{ATTENTION} {{ q = MatMul(X, wq) k = MatMul(X, wk) v = MatMul(X, wv) t = Transpose<perm=[0,2,1]>(k)
      p = MatMul(q, t) s = Mul(p, scale) {of_mask} w = Softmax<axis=-1>(a) y = MatMul(w, v) }}"""
    weights = {name: normal(D, D) for name in names}
    held = {} if mask is None else {"mask": mask}
    return text_model(body, {**weights, "scale": np.float32(0.25), **held, **arrays}), {*names}


ADDED = "a = Add(s, mask)"
FRONT = "in front of Softmax"
MASKS = {  # mask, how it is read, why it is left (None: it is trained)
    "-inf": (np.where(LOWER, 0, -np.inf), ADDED, FRONT),
    "-1e4": (np.where(LOWER, 0, -1e4), ADDED, FRONT),
    "the lowest float": (np.where(LOWER, 0, np.finfo(np.float32).min), ADDED, FRONT),
    "-1e9 in four dimensions, sliced": (
        np.where(LOWER, 0, -1e9)[None, None],
        f"i = Constant<value_ints=[0]>() j = Constant<value_ints=[{T}]>() m = Slice(mask, i, j, i) o = "
        "Constant<value_ints=[0]>() n = Squeeze(m, o) a = Add(s, n)",
        FRONT,
    ),
    "1e9, subtracted": (np.where(LOWER, 0, 1e9), "a = Sub(s, mask)", FRONT),
    "-100, as between shifted windows": (np.where(LOWER, 0, -100), ADDED, FRONT),
    "1000, subtracted": (np.where(LOWER, 0, 1000), "a = Sub(s, mask)", FRONT),
    "nothing masked": (np.zeros((T, T)), ADDED, "zeros, added in front"),
    "0 and 1": (LOWER, "o = Constant<value_float=1.0>() l = Constant<value_float=-1e4>() u = Sub(o, mask) d = Mul(u, l)"
                " r = Mul(s, mask) a = Add(r, d)", "subtracted|0 and 1|front"),
    "0 and 1, folded": (LOWER, "r = Mul(s, mask) a = Add(r, low)", "0 and 1"),
    "0 and 1, compared": (LOWER, "o = Constant<value_float=0.0>() e = Equal(mask, o)"
                          " l = Constant<value_float=-1e9>() a = Where(e, l, s)", "no gradient"),
    "learned": (normal(T, T) * 0.1, ADDED, None),
    "learned, by head": (normal(1, T, T), ADDED, None),
}  # fmt: skip


@pytest.mark.parametrize("form", MASKS)
def test_a_mask_in_front_of_softmax_is_left_and_a_learned_bias_is_trained(form):
    mask, of_mask, why = MASKS[form]
    more = {"low": np.where(LOWER, 0, -1e4)} if "low" in of_mask else {}
    model, weights = attention(mask, of_mask, **more)
    found = chosen(model)
    assert set(found.trained) == weights | ({"mask"} if why is None else set())
    assert found.untrained["scale"] == "one number"
    if why is not None:
        assert any(part in found.untrained["mask"] for part in why.split("|")), found.untrained
        assert FRONT in found.untrained.get("low", FRONT)


X4, X8 = "float[N,4] X) => (float[N,K] y)", f"float[N,{T},{D}] X) => (float[N,A,B] y)"
IDS = f"int64[N,{T}] X) => (float[N,{T},{D}] y)"
IMAGE = "float[N,3,9,9] X) => (float[N,C,H,W] y)"
W, B = normal(4, 3), normal(3)
TABLE = {  # text, arrays, what is trained; left: name → reason
    "weights and biases": (
        f"{X4} {{ h = MatMul(X, w) r = Add(h, b) s = Relu(r) y = Gemm(s, v, c) }}",
        {"w": W, "b": np.zeros(3), "v": normal(3, 2), "c": normal(2)},
        {},
    ),
    "the bias of one output": (
        f"{X4} {{ h = MatMul(X, w) y = Add(h, b) }}",
        {"w": normal(4, 1), "b": normal(1)},
        {},
    ),
    "the bias of one output that is a vector of rows": (
        "float[N,4] X) => (float[N] y) { h = MatMul(X, w) y = Add(h, b) }",
        {"w": normal(4), "b": normal(1)},
        {},
    ),
    "the bias of one output in front of a softmax of several": (
        f"{X4} {{ h = MatMul(X, w) r = Add(h, b) y = Softmax<axis=-1>(r) }}",
        {"w": W, "b": np.zeros(3)},
        {},
    ),
    "large coefficients": (
        f"{X4} {{ h = MatMul(X, w) y = Add(b, h) }}",
        {"w": W * 1e6, "b": np.array([-2e5, 3e4, 1])},
        {},
    ),
    "weights that an exporter transposed, cast and reshaped": (
        f"{X4} {{ t = Transpose(w) d = Cast<to=1>(t) h = MatMul(X, d) "
        "s = Constant<value_ints=[1, 3]>() r = Reshape(b, s) y = Add(h, r) }",
        {"w": normal(3, 4), "b": B},
        {},
    ),
    "weight normalization": (
        f"{X4} {{ a = Constant<value_ints=[0]>() n = ReduceL2(v, a) d = Div(v, n) w = Mul(g, d) y = MatMul(X, w) }}",
        {"v": W, "g": np.ones((1, 3))},
        {},
    ),
    "a pruned weight": (
        f"{X4} {{ w = Mul(v, m) y = MatMul(X, w) }}",
        {"v": W, "m": np.eye(4, 3)},
        {"m": "0 and 1"},
    ),
    "an adapter": (
        f"{X4} {{ d = MatMul(a, b) u = Add(w, d) y = MatMul(X, u) }}",
        {"w": W, "a": normal(4, 1), "b": np.zeros((1, 3))},
        {},
    ),
    "a gain per channel, a number, a divisor and a bound": (
        f"{X4} {{ h = MatMul(X, w) l = Mul(h, gain) t = Mul(l, temperature) d = Div(t, std) u = Clip(d, low) "
        "e = Constant<value_float=2.0>() p = Pow(u, e) y = Add(p, after) }",
        {"w": W, "gain": np.ones(3), "temperature": normal(1), "std": normal(3), "low": np.float32(0), "after": B},
        {"temperature": "one number", "std": "divisor", "low": "one number"},
    ),
    "a scaler on the input": (
        f"{X4} {{ c = Sub(X, mean) s = Mul(c, scale) y = MatMul(s, w) }}",
        {"mean": normal(4), "scale": normal(4), "w": W},
        {"mean": "mean", "scale": "read by Mul"},
    ),
    "a product written out": (
        f"{X4} {{ p = Mul(X, w) a = Constant<value_ints=[1]>() y = ReduceSum(p, a) }}",
        {"w": normal(4)},
        {},
    ),
    "1 − p": (
        f"{X4} {{ h = MatMul(X, w) p = Sigmoid(h) y = Sub(one, p) }}",
        {"w": W, "one": np.ones(3)},
        {"one": "subtracted"},
    ),
    "layer normalization": (
        f"{X8} {{ y = LayerNormalization(X, g, b) }}",
        {"g": np.ones(D), "b": np.zeros(D)},
        {},
    ),
    "layer normalization, written out": (
        f"{X8} {{ a = Constant<value_ints=[-1]>() m = ReduceMean(X, a) c = Sub(X, m) q = Mul(c, c) "
        "v = ReduceMean(q, a) e = Add(v, epsilon) r = Sqrt(e) n = Div(c, r) s = Mul(n, g) y = Add(s, b) }",
        {"g": np.ones(D), "b": np.zeros(D), "epsilon": np.array([1e-5])},
        {"epsilon": "one number"},
    ),
    "batch normalization": (
        f"{IMAGE} {{ h = Conv(X, k) y = BatchNormalization(h, g, b, mean, var) }}",
        {"k": normal(2, 3, 3, 3), "g": np.ones(2), "b": np.zeros(2), "mean": normal(2), "var": np.ones(2)},
        {"mean": "running mean", "var": "running variance"},
    ),
    "batch normalization, written out": (
        f"{IMAGE} {{ h = Conv(X, k) c = Sub(h, mean) e = Add(var, epsilon) r = Sqrt(e) n = Div(c, r) "
        "s = Mul(n, g) y = Add(s, b) }",
        {
            "k": normal(2, 3, 3, 3),
            "epsilon": np.array([1e-5]),
            **{n: normal(2, 1, 1) for n in ("g", "b", "mean", "var")},
        },
        {"mean": "mean", "var": "variance", "epsilon": "one number"},
    ),
    "a slope of PRelu": (
        f"{IMAGE} {{ h = Conv(X, k, b) y = PRelu(h, s) }}",
        {"k": normal(2, 3, 3, 3), "b": normal(2), "s": np.full((1, 1, 1), 0.25)},
        {},
    ),
    "Resize": (
        f"{IMAGE} {{ h = Conv(X, k) y = Resize(h, region, scales) }}",
        {"k": normal(2, 3, 3, 3), "region": np.zeros(0), "scales": np.array([1.0, 1, 2, 2])},
        {"region": "Resize", "scales": "Resize"},
    ),
    "quantization": (
        f"{X4} {{ q = QuantizeLinear(w, scale) d = DequantizeLinear(q, scale) y = MatMul(X, d) }}",
        {"w": W, "scale": np.full(3, 0.1)[:1]},
        {"w": "no gradient", "scale": "one number|scale"},
    ),
    "LSTM": (
        f"float[{T},N,4] X) => (float[{T},1,N,3] y) {{ y = LSTM<hidden_size=3>(X, w, r, b, , h, c, p) }}",
        {
            "w": normal(1, 12, 4),
            "r": normal(1, 12, 3),
            "b": np.zeros((1, 24)),
            "p": normal(1, 9),
            "h": np.zeros((1, 1, 3)),
            "c": normal(1, 1, 3),
        },
        {"h": "first state", "c": "first state"},
    ),
    "embeddings of words and learned positions": (
        f"{IDS} {{ e = Gather(words, X) y = Add(e, positions) }}",
        {"words": normal(20, D), "positions": normal(1, T, D)},
        {},
    ),
    "embeddings and positions of sines": (
        f"{IDS} {{ e = Gather(words, X) y = Add(e, positions) }}",
        {"words": normal(20, D), "positions": SINES[None]},
        {"positions": "sines"},
    ),
    "positions of sines, looked up": (
        f"{IDS} {{ e = Gather(positions, X) y = MatMul(e, w) }}",
        {"w": normal(D, D), "positions": SINES},
        {"positions": "sines"},
    ),
    "rotary frequencies": (
        f"{X8} {{ q = MatMul(X, w) t = ReduceSum<keepdims=1>(X) a = MatMul(t, inverse) f = Concat<axis=-1>(a, a) "
        "c = Cos(f) s = Sin(f) d = Mul(q, c) e = Mul(q, s) y = Add(d, e) }",
        {"w": normal(D, D), "inverse": 1 / 10000 ** (np.arange(0, D, 2) / D)[None]},
        {"inverse": "frequencies"},
    ),
    "frequencies of as many positions as a layer gives": (
        "float[N,8] X) => (float[N,4] y) { h = MatMul(X, w) n = Shape<end=1>(h) m = Cast<to=1>(n) k = Expand(m, n) "
        'f = Einsum<equation="i,j->ij">(k, inverse) c = Cos(f) s = Sin(f) p = Concat<axis=1>(c, s) y = Add(h, p) }',
        {"w": normal(8, 4), "inverse": np.array([1, 0.01])},
        {"inverse": "frequencies"},
    ),
    "a token that is learned": (
        f"{X8} {{ h = MatMul(X, w) s = Constant<value_ints=[1, 1, 16]>() "
        "e = Expand(token, s) y = Concat<axis=1>(e, h) }",
        {"w": normal(D, D), "token": normal(1, 1, D)},
        {},
    ),
    "a grid that is added": (
        "float[N,64,3] X) => (float[N,64,2] y) { h = MatMul(X, w) y = Add(h, grid) }",
        {"w": normal(3, 2), "grid": GRID[None]},
        {"grid": "whole steps"},
    ),
    "a basis": (
        "float[N,32] X) => (float[N,2] y) { c = MatMul(X, cosines) s = MatMul(X, sines) "
        "d = Mul(c, c) e = Mul(s, s) p = Add(d, e) y = MatMul(p, w) }",
        {"cosines": np.cos(ANGLES), "sines": np.sin(ANGLES), "w": normal(17, 2)},
        {"cosines": "sines and cosines", "sines": "sines and cosines"},
    ),
    "a matrix of scattered ones": (
        "float[N,6] X) => (float[N,2] y) <int64[2,6] at = {0,1,2,0,1,2, 1,2,0,1,2,0}> { "
        "m = ScatterElements(zeros, at, ones) t = Transpose(m) h = MatMul(X, t) y = MatMul(h, w) }",
        {"zeros": np.zeros((3, 6)), "ones": np.ones((2, 6)), "w": normal(3, 2)},
        {"zeros": "scattered", "ones": "scattered"},
    ),
    "weights that are scattered": (
        "float[N,3] X) => (float[N,3] y) <int64[3,2] at = {0,0, 1,1, 2,2}> { "
        "m = ScatterND(zeros, at, w) y = MatMul(X, m) }",
        {"zeros": np.zeros((3, 3)), "w": normal(3)},
        {"zeros": "scattered"},
    ),
    "weights into which nothing is scattered": (
        "float[N,3] X) => (float[N,3] y) <int64[0,3] at = {}> { m = ScatterElements(w, at, none) y = MatMul(X, m) }",
        {"w": normal(3, 3), "none": np.zeros((0, 3))},
        {"none": ""},
    ),
    "a basis under a window": (
        "float[N,1,64] X) => (float[N,4,L] y) { s = Conv<strides=[16]>(X, basis) y = Conv(s, w) }",
        {"basis": BASIS.T[:, None], "w": normal(4, 34, 1)},
        {"basis": "sines and cosines"},
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_use_and_content_decide(name):
    text, arrays, left = TABLE[name]
    found = chosen(text_model(text, arrays))
    assert set(found.trained) == set(arrays) - set(left)
    for key, why in left.items():
        assert any(part in found.untrained[key] for part in why.split("|")), found.untrained


def test_what_a_scan_reads_step_by_step_is_a_weight_and_its_first_state_is_not():
    found = chosen(
        text_model(
            """float[N,3] X) => (float[N,3] y) { s, y0 = Scan<num_scan_inputs=1, body =
              step (float[1,3] h, float[3,3] w) => (float[1,3] g, float[1,3] o) { m = MatMul(h, w)
              a = Add(m, b) g = Tanh(a) o = Identity(g) }>(first, stacked)
              y = Add(X, s) }""",
            {"first": np.zeros((1, 3)), "stacked": normal(4, 3, 3), "b": B},
        )
    )
    assert found.trained == ("stacked", "b")
    assert "Scan" in found.untrained["first"]


def test_what_is_both_a_weight_and_a_constant_is_left_and_says_how_to_part_them():
    body = f"{IMAGE} {{ h = Conv(X, k) y = BatchNormalization(h, one, zero, zero, one) }}"
    model = text_model(body, {"k": normal(2, 3, 3, 3), "one": np.ones(2), "zero": np.zeros(2)})
    assert chosen(model).trained == ("k",)
    assert "untying it" in chosen(model).untrained["one"]


SHARED = """int64[N,4] X) => (float[N,4,20] y) { e = Gather(words, X) n = LayerNormalization(e, one, zero)
  [first] h = MatMul(n, w) [b1] i = Add(h, zero) r = Relu(i) [n2] m = LayerNormalization(r, one, zero)
  t = Transpose<perm=[1,0]>(w) [second] o = MatMul(m, t) u = Transpose<perm=[1,0]>(words) [head] y = MatMul(o, u) }"""


def test_what_several_nodes_read_is_counted_and_parted_without_another_prediction():
    held = {"words": normal(20, 8), "w": normal(8, 8), "one": np.ones(8), "zero": np.zeros(8)}
    model = text_model(SHARED, held)
    assert chosen(model).shared == {"words": 2, "w": 2, "one": 2, "zero": 3}
    own = ir.from_proto(model)
    untie(own, own.graph.outputs[0])
    parted = finish(own)
    again = ir.from_proto(model)
    untie(again, again.graph.outputs[0])
    assert finish(again).SerializeToString(deterministic=True) == parted.SerializeToString(deterministic=True)
    names = [t.name for t in parted.graph.initializer]
    assert names == [
        *("words/e", "words/head", "w/first", "w/second"),
        *("one/n", "one/n2", "zero/n", "zero/b1", "zero/n2"),
    ]
    assert chosen(parted).trained == tuple(names)
    assert chosen(parted).shared == {}
    x = {"X": rng.integers(0, 20, (5, 4))}
    np.testing.assert_array_equal(Session(parted).run(x)[0], Session(model).run(x)[0])


def test_numbers_and_single_uses_are_not_copied():
    body = f"{X4} {{ h = MatMul(X, w) s = Mul(h, t) y = Add(s, t) }}"
    own = ir.from_proto(text_model(body, {"w": W, "t": normal(1)}))
    untie(own, own.graph.outputs[0])
    assert list(own.graph.initializers) == ["w", "t"]


@pytest.mark.parametrize("shape", [(16, 16), (64, 3), (3, 1, 40), (8, 8, 3, 3)])
@pytest.mark.parametrize("kind", ["normal", "zeros", "ones", "identity", "rounded", "orthogonal"])
def test_no_weights_are_taken_for_a_formula(shape, kind):
    values = {
        "normal": lambda: normal(*shape),
        "zeros": lambda: np.zeros(shape),
        "ones": lambda: np.ones(shape),
        "identity": lambda: np.resize(np.eye(shape[0], shape[1]), shape),
        "rounded": lambda: normal(*shape).round(1),
        "orthogonal": lambda: np.linalg.svd(normal(*shape), full_matrices=False)[0],
    }[kind]()
    assert not is_formula(values.astype(np.float32))
    assert not is_added_mask(values)
    assert not is_zero_one(values) or kind == "identity"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("positions", [8, 77, 5000])
def test_sines_of_positions_are_a_formula_in_every_type(positions, dtype):
    angles = np.arange(positions)[:, None] / 10000 ** (np.arange(0, 64, 2) / 64)
    table = np.empty((positions, 64))
    table[:, ::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    assert is_formula(table.astype(dtype))
    assert not is_formula((table + 0.1 * normal(positions, 64)).astype(dtype))


def test_few_names_and_each_reason_once_make_a_sentence():
    left = {f"m{i}": "a mask" for i in range(7)} | {"t": "one number"}
    assert (
        sentence(["a"], left)
        == "trains 1 of 9 float initializers: a; leaves m0, m1, m2 and 4 more (a mask), t (one number)"
    )
