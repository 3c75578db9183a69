from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from autodiff.numeric import in_double, in_single, node_cases, runtime_error, scalar_loss, worst_error
from differences import slopes
from engines import expanded, native
from onnx.reference import ReferenceEvaluator
from plain_session import PlainSession

from ortpipe.errors import DeriveError
from ortpipe.graph.core.check import checked
from ortpipe.graph.importing.lower import lowered

# Central differences of step 1e-6 in float64 are off by about 1e-10; the worst seen here is 3e-9.
TOLERANCE = 1e-7
SINGLE = 1e-5  # float32

BRANCHES = """g (bool c, float[N,3] x, float[3] v, float[3] w) => (float[N,3] y, float[3] z)
 { a = Tanh(x) y, z = If(c) <
   then_branch = t () => (float[N,3] ty, float[3] tz) { p = Mul(a, v) ty = Exp(p) tz = Mul(v, w) },
   else_branch = e () => (float[N,3] ey, float[3] ez) { ey = Mul(a, a) ez = Sin(v) }> }"""
RECURRENCE = """g (float[N,3] h0, float[T,N,2] x, float[2,3] u, float[3,3] w, float[3] b)
 => (float[N,3] h, float[T,N,3] ys)
 { h, ys = Scan<num_scan_inputs = 1, body = step (float[N,3] before, float[N,2] now) => (float[N,3] after, float[N,3] y)
   { p = MatMul(now, u) q = MatMul(before, w) r = Add(p, q) s = Add(r, b) after = Tanh(s) y = Mul(after, after) }>
   (h0, x) }"""
STATES = """g (float[3] a0, float[3] b0, int64 n0, float[T,3] x, float[T,3] y, float[3] v)
 => (float[3] a, float[3] b, int64 n, float[T,3] sums, float[T,3] products)
 { a, b, n, sums, products = Scan<num_scan_inputs = 2,
   body = step (float[3] a1, float[3] b1, int64 n1, float[3] xt, float[3] yt)
   => (float[3] a2, float[3] b2, int64 n2, float[3] s, float[3] p)
   { one = Constant<value = int64 {1}>() n2 = Add(n1, one) f = Cast<to = 1>(n2)
     scaled = Div(xt, f) a2 = Add(a1, scaled) m = Mul(b1, a1) k = Sin(m) b2 = Add(k, yt)
     s = Mul(a2, v) p = Mul(b1, b2) }>(a0, b0, n0, x, y) }"""
SWAPPED = """g (float[3] a0, float[3] b0, float[T,3] x) => (float[3] a, float[3] b)
 { a, b = Scan<num_scan_inputs = 1, body = step (float[3] a1, float[3] b1, float[3] xt) => (float[3] a2, float[3] b2)
   { a2 = Identity(b1) m = Mul(a1, xt) b2 = Tanh(m) }>(a0, b0, x) }"""
NESTED = """g (float[3] h0, float[T,3] x, float[3] v) => (float[3] h)
 { h = Scan<num_scan_inputs = 1, body = step (float[3] before, float[3] now) => (float[3] after)
   { total = ReduceSum<keepdims = 0>(now) zero = Constant<value = float {0.0}>() c = Greater(total, zero)
     s = Mul(before, v)
     after = If(c) <then_branch = t () => (float[3] tk) { q = Mul(s, now) tk = Tanh(q) },
                    else_branch = e () => (float[3] ek) { d = Mul(v, v) ek = Add(s, d) }> }>(h0, x) }"""
TWICE = """g (float[3] h0, float[S,T,3] x, float[3] v) => (float[3] h, float[S,3] ys)
 { h, ys = Scan<num_scan_inputs = 1, body = outer (float[3] before, float[T,3] rows) => (float[3] after, float[3] y)
   { k = Mul(before, v)
     last = Scan<num_scan_inputs = 1, body = inner (float[3] was, float[3] now) => (float[3] is)
       { p = Mul(was, v) q = Mul(now, k) r = Add(p, q) is = Sin(r) }>(before, rows)
     after = Mul(last, k) y = Tanh(last) }>(h0, x) }"""
IF_AROUND = """g (bool c, float[3] h0, float[T,3] x, float[3] v) => (float[3] y)
 { y = If(c) <
   then_branch = t () => (float[3] ty) {
     ty = Scan<num_scan_inputs = 1, body = step (float[3] was, float[3] now) => (float[3] is)
       { p = Mul(was, v) q = Add(p, now) is = Sin(q) }>(h0, x) },
   else_branch = e () => (float[3] ey) { ey = Mul(h0, v) }> }"""
NO_STATE = """g (float[T,3] x, float[3] v) => (float[T,3] ys, float[3] z)
 { z = Neg(v) ys = Scan<num_scan_inputs = 1, body = step (float[3] now) => (float[3] y)
   { p = Mul(now, v) y = Exp(p) }>(x) }"""
UNREAD = """g (float[3] h0, float[T] x, float[3] v) => (float[3] h)
 { h = Scan<num_scan_inputs = 1, body = step (float[3] was, float now) => (float[3] is)
   { is = Add(was, v) }>(h0, x) }"""
INNER_WEIGHT = """g (float[3] h0, float[T,3] x) => (float[3] h)
 { h = Scan<num_scan_inputs = 1, body = step (float[3] was, float[3] now) => (float[3] is)
   <float[3] k = {0.5, -0.2, 0.7}> { p = Mul(was, k) q = Add(p, now) is = Tanh(q) }>(h0, x) }"""
COUNTED = """g (float[3] h0, float[3] v) => (float[3] h, float[4,3] ys)
 <int64 trips = {4}, bool yes = {1}>
 { h, ys = Loop(trips, yes, h0) <body = step (int64 i, bool c, float[3] was) => (bool going, float[3] is, float[3] y)
   { going = Identity(c) f = Cast<to = 1>(i) p = Mul(was, v) q = Add(p, f) is = Sin(q) y = Mul(is, was) }> }"""
ASKED = """g (int64 trips, float[3] h0, float[3] v) => (float[3] h) <bool yes = {1}>
 { h = Loop(trips, yes, h0) <body = step (int64 i, bool c, float[3] was) => (bool going, float[3] is)
   { going = Constant<value = bool {1}>() p = Mul(was, v) is = Sin(p) }> }"""
GRAPHS = {
    "branches, then": (BRANCHES, {"c": True, "x": (2, 3), "v": (3,), "w": (3,)}),
    "branches, else": (BRANCHES, {"c": False, "x": (2, 3), "v": (3,), "w": (3,)}),
    "a recurrence": (RECURRENCE, {"h0": (2, 3), "x": (4, 2, 2), "u": (2, 3), "w": (3, 3), "b": (3,)}),
    "a recurrence of one step": (RECURRENCE, {"h0": (2, 3), "x": (1, 2, 2), "u": (2, 3), "w": (3, 3), "b": (3,)}),
    "several states, one an integer": (
        STATES,
        {"a0": (3,), "b0": (3,), "n0": 0, "x": (4, 3), "y": (4, 3), "v": (3,)},
    ),
    "states that swap": (SWAPPED, {"a0": (3,), "b0": (3,), "x": (3, 3)}),
    "an If in a Scan": (NESTED, {"h0": (3,), "x": (5, 3), "v": (3,)}),
    "a Scan in a Scan": (TWICE, {"h0": (3,), "x": (3, 2, 3), "v": (3,)}),
    "a Scan in an If": (IF_AROUND, {"c": True, "h0": (3,), "x": (3, 3), "v": (3,)}),
    "a Scan in an If that takes the other branch": (IF_AROUND, {"c": False, "h0": (3,), "x": (3, 3), "v": (3,)}),
    "a Scan without states": (NO_STATE, {"x": (4, 3), "v": (3,)}),
    "a Scan whose input is not read": (UNREAD, {"h0": (3,), "x": (4,), "v": (3,)}),
    "a body with an initializer": (INNER_WEIGHT, {"h0": (3,), "x": (4, 3)}),
    "a counted Loop": (COUNTED, {"h0": (3,), "v": (3,)}),
    "a Loop whose trip count is an input": (ASKED, {"trips": 3, "h0": (3,), "v": (3,)}),
}
LEFT_OUT = {
    "test_if": "no float input",
    "test_if_seq": "no float input, and sequences",
    "test_if_opt": "no float input, and optional values",
    "test_loop13_seq": "a sequence as state",
    "test_loop16_seq_none": "an optional sequence as state",
    "test_scan_sum": "Scan of opset 8, whose batch axis later opsets dropped; ortpipe reads opset 13 and later",
}


def parsed(text, opset=21):
    return checked(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n' + text))


def feeds_of(shapes, seed=5):
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes.items():
        if isinstance(shape, tuple):
            made[name] = rng.normal(size=shape).astype(np.float32)
        else:
            made[name] = np.array(shape)
    return made


@pytest.mark.parametrize("name", GRAPHS)
def test_gradients_are_central_differences(name):
    text, shapes = GRAPHS[name]
    assert worst_error(parsed(text), feeds_of(shapes)) < TOLERANCE


@pytest.mark.parametrize("name", GRAPHS)
def test_onnxruntime_and_the_reference_agree_in_float32(name):
    text, shapes = GRAPHS[name]
    assert runtime_error(parsed(text), feeds_of(shapes)) < SINGLE


@pytest.mark.parametrize("opset", [13, 16, 18])
@pytest.mark.parametrize("name", ["a recurrence", "an If in a Scan", "a counted Loop"])
def test_older_opsets_work_alike(name, opset):
    text, shapes = GRAPHS[name]
    assert worst_error(parsed(text, opset), feeds_of(shapes)) < TOLERANCE


@pytest.mark.parametrize("case", node_cases(("If", "Loop", "Scan"), LEFT_OUT), ids=lambda case: case.name)
def test_onnx_own_node_tests_hold(case):
    model = lowered(case.model)
    feeds = dict(zip([i.name for i in model.graph.input], case.data_sets[0][0], strict=True))
    for value in list(model.graph.input):
        if np.asarray(feeds[value.name]).dtype.kind != "f":
            model.graph.input.remove(value)
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(feeds.pop(value.name)), value.name))
    assert worst_error(checked(model), feeds) < TOLERANCE


@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, 1), (-1, -1)])
def test_a_scan_of_any_axis_and_direction_is_rewritten_to_an_equal_one(axes, directions):
    text = f"""g (float[2] h0, float[3,3,2] xs, float[2] v) => (float[2] h, float[?,?] ys)
     {{ x = Transpose<perm = {[[0, 2, 1], [2, 0, 1]][0] if axes[0] == -1 else [0, 1, 2]}>(xs)
        h, ys = Scan<num_scan_inputs = 1, scan_input_axes = [{axes[0]}], scan_input_directions = [{directions[0]}],
        scan_output_axes = [{axes[1]}], scan_output_directions = [{directions[1]}],
        body = step (float[2] was, float[A,B] now) => (float[2] is, float[2] y)
        {{ p = ReduceSum<keepdims = 0>(now) q = Mul(was, p) r = Add(q, v) is = Sin(r) y = Mul(is, is) }}>(h0, x) }}"""
    model = parsed(text.replace("?,?", "P,Q"))
    feeds = feeds_of({"h0": (2,), "xs": (3, 3, 2), "v": (2,)})
    plain = expanded(model, ["h0", "xs", "v"])
    for got, expected in zip(PlainSession(plain).run(feeds), PlainSession(model).run(feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert worst_error(plain, feeds) < TOLERANCE


def gradient_model(text, inputs):
    model = parsed(text)
    outputs = {
        o.name: np.ones(()) for o in model.graph.output if o.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    return native(scalar_loss(in_double(model), outputs), "check/loss", [], inputs)[0]


def test_the_forward_scan_runs_its_steps_once():
    model = gradient_model(RECURRENCE, ["w"])
    scans = [n for n in model.graph.node if n.op_type == "Scan"]
    bodies = [[n.op_type for n in next(a.g for a in s.attribute if a.name == "body").node] for s in scans]
    assert len(scans) == 2
    assert bodies[0].count("Tanh") == 1
    assert "Tanh" not in bodies[1]


def test_what_does_not_depend_on_a_target_carries_no_gradient():
    model = gradient_model(RECURRENCE, ["h0"])
    backward = [n for n in model.graph.node if n.op_type == "Scan"][1]
    assert len(backward.output) == 1  # the state's gradient, but no sum for u, w, b and none for x


def test_a_branch_that_does_not_read_a_value_gives_it_zeros():
    model = gradient_model(BRANCHES, ["w"])
    feeds = {
        k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in feeds_of(GRAPHS["branches, else"][1]).items()
    }
    gradient = ReferenceEvaluator(model).run(None, feeds)[-1]
    assert np.array_equal(gradient, np.zeros(3))


def test_a_loop_without_a_first_condition_is_rewritten_to_an_equal_scan():
    model, feeds = parsed(ASKED.replace("yes, h0", ", h0")), feeds_of(GRAPHS["a Loop whose trip count is an input"][1])
    plain = expanded(model, ["h0"])
    assert [n.op_type for n in plain.graph.node].count("Scan") == 1
    np.testing.assert_allclose(PlainSession(plain).run(feeds)[0], PlainSession(model).run(feeds)[0], rtol=1e-6)


LOOPS = {
    "no trip count": "{ going = Identity(c) is = Sin(was) }",
    "may end early": "{ is = Sin(was) s = ReduceSum<keepdims = 0>(is) going = Greater(s, z) }",
    "changes its shape": "{ going = Identity(c) is = Concat<axis = 0>(was, was) }",
}


@pytest.mark.parametrize("reason", LOOPS)
def test_a_loop_that_is_no_scan_is_refused_with_the_reason(reason):
    trips, size = ("" if "trip" in reason else "trips"), ("6" if "shape" in reason else "3")
    text = f"""g (float[3] h0) => (float s)
     <int64 trips = {{1}}, bool yes = {{1}}, float z = {{0.0}}>
     {{ h = Loop({trips}, yes, h0) <body = step (int64 i, bool c, float[3] was) => (bool going, float[{size}] is)
        {LOOPS[reason]}> s = ReduceSum<keepdims = 0>(h) }}"""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text)
    with pytest.raises(DeriveError, match=reason):
        native(model, "s", [], ["h0"])


def test_random_numbers_in_a_branch_are_refused():
    text = """g (bool c, float[3] x) => (float[3] y)
     { y = If(c) <then_branch = t () => (float[3] ty) { r = RandomNormalLike(x) ty = Mul(r, x) },
                  else_branch = e () => (float[3] ey) { ey = Neg(x) }> }"""
    with pytest.raises(DeriveError, match="RandomNormalLike"):
        worst_error(parsed(text), {"c": np.array(True), **feeds_of({"x": (3,)})})


@pytest.mark.parametrize(("side", "wrong"), [("input", 2), ("output", 3)])
def test_a_scan_with_more_directions_than_it_scans_is_refused(side, wrong):
    directions = f"num_scan_inputs = 1, scan_{side}_directions = {[0] * wrong}"
    model = parsed(RECURRENCE.replace("num_scan_inputs = 1", directions))
    with pytest.raises(DeriveError, match=f"scan_{side}_directions has one entry for each scanned {side}"):
        expanded(model, ["h0"])


def test_an_operator_without_a_rule_inside_a_body_is_named():
    text = """g (float[3,3] h0, float[T,3,3] x) => (float[3,3] h)
     { h = Scan<num_scan_inputs = 1, body = step (float[3,3] was, float[3,3] now) => (float[3,3] is)
       { p = EyeLike(now) is = Mul(was, p) }>(h0, x) }"""
    with pytest.raises(DeriveError, match="EyeLike"):
        gradient_model(text, ["x"])


def counting(condition, state="", more="", trips="M", go="yes"):
    """Return a model with a Loop over M and T that also counts by a state, and its body's condition."""
    outs, ins, hand_on = (", n_end", ", begin", ", int64 n1") if state else ("", "", "")
    return parsed(f"""g (int64 M, int64 T, bool go, float[3] h0, float[3] v) => (float[3] h, float[A,3] ys)
      <int64 begin = {{2}}, bool yes = {{1}}, int64 largest = {{9223372036854775807}}, int32 most = {{2147483647}}>
      {{ h{outs}, ys = Loop({trips}, {go}, h0{ins}) <body = step (int64 i, bool c, float[3] was{state})
           => (bool going, float[3] is{hand_on}, float[3] y)
           {{ one = Constant<value = int64 {{1}}>() p = Mul(was, v) is = Sin(p) y = Mul(is, is)
              {more} {condition} }}> }}""")


NEXT = "i1 = Add(i, one)"
UP = {"state": ", int64 n", "more": "n1 = Add(one, n)"}
COUNTING = {
    "a bound that the trip count exceeds": counting(f"{NEXT} going = Less(i1, T)"),
    "two bounds": counting(f"{NEXT} a = Less(i1, T) b = Greater(M, i1) going = And(a, b)"),
    "a bound that is the last": counting("going = LessOrEqual(i, T)"),
    "no trip count": counting(f"{NEXT} going = GreaterOrEqual(T, i1)", trips=""),
    "a trip count without end": counting(f"{NEXT} going = Less(i1, T)", trips="largest"),
    "a bound of another type": counting(
        f"{NEXT} k = Cast<to=6>(i1) a = Less(k, most) b = Less(i1, T) ab = And(a, b) going = And(c, ab)"
    ),
    "a state that counts": counting("going = Less(n1, T)", **UP),
    "a state that counts, before it does": counting("going = Less(n, T)", trips="largest", **UP),
    "a first condition that is computed": counting(f"{NEXT} going = Less(i1, T)", go="go"),
}


@pytest.mark.parametrize("name", COUNTING)
def test_a_loop_that_counts_runs_as_often_as_a_scan_and_has_its_gradient(name):
    """The oracle of the steps is onnxruntime's own Loop; of the gradients, central differences."""
    model, vectors = COUNTING[name], feeds_of({"h0": (3,), "v": (3,)})
    plain = expanded(model, ["h0", "v"])
    assert "Loop" not in [node.op_type for node in plain.graph.node]
    for trips, bound, go in [(3, 5, True), (5, 3, True), (0, 4, True), (4, 0, False), (2, -3, True), (4, 4, True)]:
        feeds = {"M": np.array(trips), "T": np.array(bound), "go": np.array(go), **vectors}
        feeds = {value.name: feeds[value.name] for value in model.graph.input}
        for got, expected in zip(PlainSession(plain).run(feeds), PlainSession(model).run(feeds), strict=True):
            np.testing.assert_array_equal(got, expected)
    feeds |= {"M": np.array(3), "T": np.array(5), "go": np.array(True)}
    assert worst_error(model, feeds) < TOLERANCE


@pytest.mark.parametrize(
    "condition",
    [
        "s = ReduceSum<keepdims=0>(is) going = Less(s, s)",
        f"{NEXT} two = Mul(i1, i1) going = Less(two, T)",
        f"{NEXT} a = Less(i1, T) b = Less(T, i1) going = Or(a, b)",
        f"{NEXT} t = Add(T, i) going = Less(i1, t)",
        f"{NEXT} past = GreaterOrEqual(i1, T) going = Not(past)",
    ],
)
def test_a_loop_that_ends_otherwise_is_rejected_without_an_empty_list(condition):
    with pytest.raises(DeriveError, match=r"its condition is computed in the body") as error:
        native(scalar_loss(in_double(counting(condition)), {"h": np.ones(3)}), "check/loss", [], ["v"])
    assert "[]" not in str(error.value)


def test_no_step_at_all_hands_on_the_gradient():
    model, feeds = (
        COUNTING["two bounds"],
        {**feeds_of({"h0": (3,), "v": (3,)}), "M": np.array(0), "T": np.array(0)} | {"go": np.array(True)},
    )
    loss = in_single(scalar_loss(model, {"h": np.float32(1), "ys": np.float32(1)}))
    derived, names = native(loss, "check/loss", [], ["h0", "v"])
    results = PlainSession(derived).run(feeds, [names["h0"], names["v"]])
    np.testing.assert_array_equal(results, [np.ones(3), np.zeros(3)])


def test_bags_of_unequal_length_are_summed_in_a_loop_as_torch_exports_embedding_bag():
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (int64[K] ids, int64[M] offsets, double[5,3] w) => (double loss)
    { zero = Constant<value=int64[1] {0}>()  one = Constant<value=int64[1] {1}>()  yes = Constant<value=bool {1}>()
      count = Shape(ids)  ends = Concat<axis=0>(offsets, count)  bags = Size(offsets)
      sums = Loop(bags, yes) <body = b (int64 i, bool c) => (bool c1, double[3] s)
       { at = Reshape(i, one)  after = Add(at, one)  start = Gather(ends, at)  stop = Gather(ends, after)
         bag = Slice(ids, start, stop, zero)  rows = Gather(w, bag)  t = Tanh(rows)
         s = ReduceSum<keepdims=0>(t, zero)  c1 = Identity(c) }>
      squares = Mul(sums, sums)  loss = ReduceSum<keepdims=0>(squares) }"""
    model = onnx.parser.parse_model(text)
    w = np.random.default_rng(0).normal(size=(5, 3))
    feeds = {"ids": np.array([0, 1, 1, 4, 2, 3, 0]), "offsets": np.array([0, 3, 3, 4]), "w": w}  # the second is empty
    derived, names = native(model, "loss", [], ["w"])
    [got] = PlainSession(derived).run(feeds, [names["w"]])
    np.testing.assert_allclose(got, slopes(model, "loss", feeds, ["w"])["w"], atol=1e-8)
