"""Derivatives of any graph, against central differences in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from scipy import special

from ortpipe.autodiff import gradient
from ortpipe.errors import DeriveError, ModelError
from ortpipe.runtime.session import Session

NETWORK = """g (double[N,3] x, double[N] scale) => (double[N,2] y, double total)
  <double[3,2] w = {0.5, -0.2, 0.3, 0.8, -0.7, 0.1}, double[2] b = {0.1, -0.3}> {
    h = MatMul(x, w) z = Add(h, b) t = Tanh(z) axis = Constant<value_ints=[1]>() s = Unsqueeze(scale, axis)
    y = Mul(t, s) squares = Mul(y, y) total = ReduceSum<keepdims=0>(squares) }"""
SHAPES = {"x": (4, 3), "scale": (4,), "w": (3, 2), "b": (2,), "y": (4, 2), "total": ()}


def model(text: str = NETWORK, opset: int = 18, after: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "own": 1]> {text} {after}')


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def feeds(rng: np.random.Generator, names: str = "x scale") -> dict[str, np.ndarray]:
    return {name: rng.normal(size=SHAPES[name]) for name in names.split()}


def run(made: onnx.ModelProto, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    onnx.checker.check_model(made, full_check=True)
    read = {i.name for i in made.graph.input}
    names = [o.name for o in made.graph.output]
    return dict(zip(names, Session(made).run({k: v for k, v in given.items() if k in read}), strict=True))


def along(of: str, given: dict[str, np.ndarray], tangents: dict[str, np.ndarray], h: float = 1e-6) -> np.ndarray:
    """Return the slope of a value along tangents."""
    values = gradient(model(), of, ["x", "scale", "w", "b"], value=True)
    seed = {f"{of}_grad": np.ones(SHAPES[of])}

    def at(step: float) -> np.ndarray:
        return run(values, {**given, **seed, **{k: given[k] + step * v for k, v in tangents.items()}})[of]

    return (at(h) - at(-h)) / (2 * h)


def test_it_multiplies_a_cotangent_with_the_jacobian_of_inputs_and_initializers_alike(rng) -> None:
    given, cotangent, v = feeds(rng, "x scale w b"), rng.normal(size=(4, 2)), feeds(rng, "x scale w b")
    made = gradient(model(), "y", ["x", "scale", "w", "b"])
    assert [i.name for i in made.graph.input] == ["x", "scale", "w", "b", "y_grad"]
    found = run(made, {**given, "y_grad": cotangent})
    assert {name: found[f"{name}_grad"].shape for name in v} == {name: SHAPES[name] for name in v}
    for name in v:
        slope = np.sum(along("y", given, {name: v[name]}) * cotangent)
        assert np.sum(found[f"{name}_grad"] * v[name]) == pytest.approx(slope, rel=1e-7)


def test_a_scalar_starts_from_1_and_any_other_cotangent_can_be_fed(rng) -> None:
    given, made = feeds(rng), gradient(model(), "total", "x", value=True)
    one, minus = run(made, given), run(made, {**given, "total_grad": np.array(-1.0)})
    assert list(one) == ["total", "x_grad"]
    assert (minus["x_grad"] == -one["x_grad"]).all()
    assert one["total"] == minus["total"]


def test_ones_gives_the_gradient_of_the_sum_without_a_cotangent(rng) -> None:
    given = feeds(rng)
    made = gradient(model(), "y", "x", ones=True)
    assert [i.name for i in made.graph.input] == ["x", "scale"]
    fed = run(gradient(model(), "y", "x"), {**given, "y_grad": np.ones((4, 2))})
    assert np.allclose(run(made, given)["x_grad"], fed["x_grad"])


def test_several_values_are_differentiated_at_once(rng) -> None:
    given, cotangent = feeds(rng), rng.normal(size=(4, 2))
    both = run(gradient(model(), ["y", "total"], "x"), {**given, "y_grad": cotangent})
    alone = [run(gradient(model(), of, "x"), {**given, "y_grad": cotangent})["x_grad"] for of in ("y", "total")]
    assert np.allclose(both["x_grad"], sum(alone))


def test_values_of_two_types_are_differentiated_at_once() -> None:
    text = "g (float[3] x) => (float[3] y, double[3] z) { y = Mul(x, x) d = Cast<to=11>(x) z = Mul(d, d) }"
    made = gradient(model(text), ["y", "z"], "x")
    given = {"x": np.float32([1, 2, 3]), "y_grad": np.ones(3, np.float32), "z_grad": np.float64([0, 1, 2])}
    assert run(made, given)["x_grad"].tolist() == [2, 8, 18]  # 2·x·(y_grad + z_grad)


def test_it_pushes_tangents_forward_and_needs_no_cotangent(rng) -> None:
    given, v = feeds(rng), feeds(rng)
    made = gradient(model(), ["y", "total"], ["x", "scale"], kind="jvp")
    assert [i.name for i in made.graph.input] == ["x", "scale", "x_tangent", "scale_tangent"]
    found = run(made, {**given, "x_tangent": v["x"], "scale_tangent": v["scale"]})
    for of in ("y", "total"):
        assert np.allclose(found[f"{of}_tangent"], along(of, given, v), rtol=1e-7)


def test_the_jacobian_has_the_values_shape_and_then_the_others(rng) -> None:
    given = feeds(rng)
    found = run(gradient(model(), ["y", "total"], ["x", "b"], kind="jacobian"), given)
    assert list(found) == ["y_x_jacobian", "y_b_jacobian", "total_x_jacobian", "total_b_jacobian"]
    assert found["y_b_jacobian"].shape == (4, 2, 2)
    for place in ((0, 0), (3, 2)):
        v = np.zeros((4, 3))
        v[place] = 1
        assert np.allclose(found["y_x_jacobian"][(..., *place)], along("y", given, {"x": v}), atol=1e-8)
        assert np.allclose(found["total_x_jacobian"][place], along("total", given, {"x": v}), atol=1e-8)


def test_a_jacobian_is_0_where_only_the_others_depend() -> None:
    text = "g (double[2] x, double[2] z) => (double[2] p, double[2] q) { p = Mul(x, z) q = Exp(z) }"
    found = run(gradient(model(text), ["p", "q"], ["x", "z"], kind="jacobian"), {"x": np.ones(2), "z": np.zeros(2)})
    assert (found["q_x_jacobian"] == 0).all()
    assert (found["q_z_jacobian"] == np.eye(2)).all()
    assert (found["p_z_jacobian"] == np.eye(2)).all()


@pytest.mark.parametrize("function", ["Cos", "Cosh", "Sin", "Sinh", "Tan"])
def test_functions_that_the_runtime_has_in_float32_alone_run_in_float64(function) -> None:
    x, h = np.array([-2.0, -0.3, 1e-9, 0.7, 30.0]), 1e-5
    net = model(f"g (double[N] x) => (double[N] y) {{ y = {function}(x) }}")
    made, f = gradient(net, "y", "x", ones=True, value=True), getattr(np, function.lower())
    found = run(made, {"x": x})
    np.testing.assert_allclose(found["y"], f(x), rtol=1e-12)
    np.testing.assert_allclose(found["x_grad"], (f(x + h) - f(x - h)) / (2 * h), rtol=1e-5, atol=1e-9)


def test_a_jacobian_of_no_rows_is_empty() -> None:
    made = gradient(model("g (double[N,3] x) => (double[N,3] y) { y = Mul(x, x) }"), "y", "x", kind="jacobian")
    assert run(made, {"x": np.ones((0, 3))})["y_x_jacobian"].shape == (0, 3, 0, 3)
    jacobian = run(made, {"x": np.ones((2, 3))})["y_x_jacobian"]
    np.testing.assert_array_equal(jacobian.reshape(6, 6), 2 * np.eye(6))


def test_second_passes_through_a_recurrent_net_run_where_the_weights_sizes_are_free(rng) -> None:
    text = """g (float[2,3,2] x, float[1,G,H] r) => (float[2,1,3,2] y) <float[1,6,2] w = {%s}>
      { y = GRU<hidden_size=2, linear_before_reset=1>(x, w, r) }"""
    net = model(text % ",".join(map(str, np.linspace(-1, 1, 12))))
    x, r, v, u = (rng.normal(size=s).astype(np.float32) for s in ((2, 3, 2), (1, 6, 2), (1, 6, 2), (2, 1, 3, 2)))
    pushed = run(gradient(net, "y", "r", kind="jvp"), {"x": x, "r": r, "r_tangent": v})["y_tangent"]
    pulled = run(gradient(net, "y", "r"), {"x": x, "r": r, "y_grad": u})["r_grad"]
    assert np.sum(pushed * u) == pytest.approx(np.sum(pulled * v), rel=1e-4)


def test_a_jacobian_may_be_the_identity_and_sizes_of_minus_one_are_free() -> None:
    found = run(
        gradient(model("g (double[3] x) => (double[3] y) { y = Identity(x) }"), "y", "x", kind="jacobian"),
        {"x": np.ones(3)},
    )
    np.testing.assert_array_equal(found["y_x_jacobian"], np.eye(3))
    exported = model("g (float[N,1,H] x, float[1,1,3] w) => (float[N,1,M] y) { y = Conv<kernel_shape=[3]>(x, w) }", 11)
    for dim in (d for v in exported.graph.input[:1] for d in v.type.tensor_type.shape.dim if d.dim_param):
        dim.dim_value = -1
    onnx.checker.check_model(gradient(exported, "y", "x"), full_check=True)


def test_it_multiplies_the_hessian_with_tangents(rng) -> None:
    given, v, h = feeds(rng, "x scale w"), feeds(rng, "x w"), 1e-6
    found = run(gradient(model(), "total", ["x", "w"], kind="hvp"), {**given, "x_tangent": v["x"], "w_tangent": v["w"]})
    slopes = gradient(model(), "total", ["x", "w"])
    ahead, behind = (run(slopes, {**given, **{k: given[k] + s * v[k] for k in v}}) for s in (h, -h))
    for name in v:
        assert np.allclose(found[f"{name}_hvp"], (ahead[f"{name}_grad"] - behind[f"{name}_grad"]) / (2 * h), rtol=1e-6)


def test_the_hessian_of_what_is_linear_is_0(rng) -> None:
    text = "g (double[3] x) => (double y) { y = ReduceSum<keepdims=0>(x) }"
    assert (
        run(gradient(model(text), "y", "x", kind="hvp"), {"x": np.ones(3), "x_tangent": np.ones(3)})["x_hvp"] == 0
    ).all()


def test_an_inner_value_is_as_good_as_an_output_or_an_input(rng) -> None:
    given = feeds(rng)
    through = run(gradient(model(), "total", "t"), given)["t_grad"]
    t = np.tanh(run(gradient(model(), "t", "x", value=True), {**given, "t_grad": np.zeros((4, 2))})["t"])
    assert t.shape == through.shape
    y = run(gradient(model(), "y", "x", value=True), {**given, "y_grad": np.zeros((4, 2))})["y"]
    assert np.allclose(through, 2 * y * given["scale"][:, None])


def test_equal_inner_values_stay_apart() -> None:
    text = "g (double[2] x) => (double[2] y) { a = Exp(x) b = Exp(x) c = Mul(a, 2.0) y = Mul(c, b) }"
    text = text.replace("2.0", "two").replace("{ a", "{ two = Constant<value = double {2}>() a")
    found = run(gradient(model(text), "y", "a", ones=True), {"x": np.zeros(2)})
    assert (found["a_grad"] == 2).all()


def test_shapes_that_a_file_leaves_free_can_be_said(rng) -> None:
    pool = 'p = MaxPool<kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER">(x)'
    text = f"g (double[1,1,H,W] x) => (double[1,1,A,B] y) {{ {pool} y = Mul(p, p) }}"
    made = gradient(model(text), "y", "x", kind="jvp", shape={"x": [None, None, 4, 4]})
    x = rng.normal(size=(1, 1, 4, 4))
    assert run(made, {"x": x, "x_tangent": x})["y_tangent"].shape == (1, 1, 2, 2)
    for wrong in ({"x": [1, 2]}, {"x": [2, None, 4, 4]}, {"z": [1]}):
        with pytest.raises(DeriveError, match="shape"):
            gradient(model(text), "y", "x", shape=wrong)


@pytest.mark.parametrize("pads", ['auto_pad="SAME_LOWER"', "pads=[1,0,1,0]", "dilations=[1,1]"])
def test_a_tangent_of_strided_kernels_is_the_convolution_with_it(rng, pads) -> None:
    conv = f"y = Conv<group=2, strides=[3,2], {pads}>(x, w)"
    net = model(f"g (float[1,4,3,4] x, float[4,2,3,3] w) => (float[a,b,c,d] y) {{ {conv} }}")
    x, v = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 4, 3, 4), (4, 2, 3, 3)))
    pushed = run(gradient(net, "y", "w", kind="jvp"), {"x": x, "w": v, "w_tangent": v})["y_tangent"]
    assert np.allclose(pushed, Session(net).run({"x": x, "w": v})[0], rtol=1e-4)  # linear in the kernels


FUNCTION = """<domain: "own", opset_import: ["": 18]> Cube <scale: float = 1.0> (a) => (c) {
  s = Mul(a, a) k = Constant<value_float: float = @scale>() m = CastLike(k, a) n = Mul(s, a) c = Mul(n, m) }"""


def test_functions_are_differentiated_inside_a_graph_and_on_their_own() -> None:
    whole = model(
        "g (double[N] x) => (double[N] y) { u = Exp(x) v = own.Cube<scale = 2.0>(u) y = Neg(v) }", after=FUNCTION
    )
    x = np.array([0.5, -1.0])
    assert np.allclose(run(gradient(whole, "y", "x", ones=True), {"x": x})["x_grad"], -6 * np.exp(3 * x))
    for name in ("Cube", "own:Cube"):
        assert np.allclose(run(gradient(whole, "c", "a", ones=True, function=name), {"a": x})["a_grad"], 6 * x**2)
    with pytest.raises(ModelError, match="Cube"):
        gradient(whole, "c", "a", function="Cub")


@pytest.mark.parametrize(
    ("of", "wrt", "words"),
    [
        ("yy", "x", "Did you mean 'y'"),
        ("y", "scal", "Did you mean 'scale'"),
        ("h", "b", "'h' does not depend on 'b'"),
        (["y", "h"], "scale", "'h' does not depend on 'scale'"),
        ("y", "axis", "INT64"),
        ("y", [], "at least one"),
    ],
)
def test_names_that_cannot_be_meant_are_refused_by_name(of, wrt, words) -> None:
    with pytest.raises(DeriveError, match=words):
        gradient(model(), of, wrt)


def test_what_lets_nothing_through_is_named() -> None:
    text = "g (double[2] x) => (double[2] y) { r = Round(x) y = Mul(r, r) }"
    with pytest.raises(DeriveError, match="'y' depends on 'x' only through Round at node 'r'"):
        gradient(model(text), "y", "x")
    text = "g (float[2] x) => (float[2] y) { y = own.Unknown(x) }"
    with pytest.raises((DeriveError, ModelError), match="Unknown"):
        gradient(model(text), "y", "x")


@pytest.mark.parametrize(("kind", "ones"), [("vpj", False), ("jvp", True), ("jacobian", True)])
def test_settings_that_mean_nothing_are_refused(kind, ones) -> None:
    with pytest.raises(DeriveError, match=r"kind|ones"):
        gradient(model(), "y", "x", kind=kind, ones=ones)


def test_the_model_stays_as_it_is_and_the_same_call_gives_the_same_bytes() -> None:
    own = model()
    before = own.SerializeToString(deterministic=True)
    made = [gradient(own, "y", "x", kind="hvp").SerializeToString(deterministic=True) for _ in range(2)]
    assert made[0] == made[1]
    assert own.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("read", ["", "q = Exp(rv)"])
def test_a_training_batch_normalization_writes_over_no_constant_of_the_gradient(read):
    normed = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
    f (float[5,2] x, float[2,3] z) => (float[5,2] y, float[2,3] s {", float[2] q" if read else ""})
    <float[2] g = {{1.5, 2.5}}, float[2] h = {{0, 0}}, float[2] m = {{0, 0}}, float[2] v = {{1, 1}},
     float[3] b = {{1, 2, 3}}>
    {{ y, rm, rv = BatchNormalization<momentum: float = 0.8, training_mode: int = 1>(x, g, h, m, v)
       e = ReduceMean<keepdims = 0>(y) c = Add(b, e) s = Add(z, c) {read} }}""")
    derivative = gradient(normed, ["s", "q"] if read else "s", ["b", "x"], ones=True, value=True)
    x = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    feeds = {"x": x, "z": np.ones((2, 3), np.float32)}
    session = Session(derivative)
    runs = [dict(zip(session.outputs, session.run(feeds), strict=True)) for _ in range(3)]
    for found in runs:
        np.testing.assert_array_equal(found["b_grad"], [2, 2, 2])
        for name, array in found.items():
            np.testing.assert_array_equal(array, runs[0][name])


def test_a_normalization_of_sizes_that_nobody_can_infer_has_a_gradient_of_known_rank() -> None:
    text = """g (float[2,1,6] q, float[n,n,m] k, float[n,n,m] v) => (float[n,1,m] y) <float[6] s = {1, 2, 3, 4, 5, 6}> {
        h = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v) y = RMSNormalization<axis=2>(h, s) }"""
    made = gradient(model(text, opset=24), of="y", wrt="k")
    onnx.checker.check_model(made, full_check=True)
    assert [len(v.type.tensor_type.shape.dim) for v in (*made.graph.input, *made.graph.output)] == [3, 3, 3, 3, 3]


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(DeriveError, match=r"(?s)got: bytes.*Artifact give its .model"):
        gradient(model().SerializeToString(), of="y", wrt="x")


@pytest.mark.parametrize("probability", ["p = Sigmoid(x)", "s = Sigmoid(x) p = Sub(one, s)"], ids=["p", "1 - p"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_the_logarithm_of_a_sigmoid_and_its_gradient_are_finite_everywhere(probability: str, dtype: str) -> None:
    text = f"g ({dtype}[N] x) => ({dtype}[N] y) <{dtype} one = {{1}}> {{ {probability} y = Log(p) }}"
    x = np.array([-1e4, -100, -18.5, -1, 0, 1, 18.5, 100, 1e4], {"float": np.float32, "double": np.float64}[dtype])
    made = gradient(model(text), "y", ["x"], value=True)
    found = run(made, {"x": x, "y_grad": np.ones_like(x)})
    sign = -1 if "Sub" in probability else 1
    expected = -np.logaddexp(0, -sign * x.astype(np.float64))
    np.testing.assert_allclose(found["y"], expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found["x_grad"], sign * special.expit(-sign * x.astype(np.float64)), atol=1e-6)


def test_the_operator_that_has_no_derivative_is_named() -> None:
    text = """g (float[N,3] x) => (float[N,3] y)
      <float[3] s = {1, 1, 1}, float[3] b = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}>
      { y, m, v = BatchNormalization<training_mode=1>(x, s, b, mean, var) }"""
    with pytest.raises(DeriveError, match="depends on 'mean' only through BatchNormalization"):
        gradient(model(text, 17), "y", ["mean"])


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_a_branch_that_the_rank_rules_out_may_name_an_axis_that_is_not_there(shape):
    """PyTorch's legacy exporter writes hstack so: vectors are joined along axis 0, everything else along axis 1."""
    dims = ",".join(map(str, shape))
    text = f"""g (float[{dims}] x, float[{dims}] z) => (float y) <int64 one = {{1}}> {{
      sizes = Shape(x) rank = Size(sizes) flat = Equal(rank, one)
      h = If(flat) <then_branch = t () => (float[P] a) {{ a = Concat<axis = 0>(x, z) }},
                    else_branch = e () => (float[P,Q] b) {{ b = Concat<axis = 1>(x, z) }}>
      s = Mul(h, h) y = ReduceSum<keepdims = 0>(s) }}"""
    x, z = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    derived = gradient(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}'), "y", ["x", "z"])
    for got, expected in zip(Session(derived).run({"x": x, "z": z}), (2 * x, 2 * z), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
