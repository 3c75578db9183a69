"""Every operator against ONNX's own node tests: a few cases of each, or with `ORTPIPE_TESTS=all` every case.

The tests import JAX when they run, because an import at the top would cost every worker seconds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os

import numpy as np
import onnx
import pytest
from autodiff.numeric import every_node_case
from onnx.reference import ReferenceEvaluator
from sample import few_of_each

from ortpipe.errors import ModelError
from ortpipe.graph.importing.opsets import at_opset
from ortpipe.runtime.config import RuntimeConfig

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="runtime.engine=xla needs jax: pip install 'ortpipe[xla]'"
)

QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # to compile
PARTS = 4  # of the cases, so that one that hangs or breaks is found
EACH = 2  # cases of each operator in the sample
LEFT_OUT = ("bernoulli", "training_dropout", "scan_sum")  # the numbers of one implementation; Scan of opset 8
WITHOUT = {"Bernoulli", "GlobalLpPool", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
POOLED = {"AveragePool", "LpPool", "MaxPool"}
LARGEST = 6_000  # numbers of a pool's input; onnx's evaluator takes seconds for larger ones
# part of a case's name → what the message says of what cannot be compiled
REFUSED = {
    "FLOAT8": "values of type",
    "FLOAT4": "values of type",
    "INT4": "values of type",
    "INT2": "values of type",
    "e4m3fn": "values of type",
    "e5m2": "values of type",
    "int4": "values of type",
    "int2": "values of type",
    "float4": "values of type",
    "string": "values of type",
    "blocked": "scales by block",
    "loop11": "places computed while it runs",
    "maxunpool_export_with_output_shape": "the windows' own",
    "convtranspose_output_shape": "kernels reach",
}


@functools.cache
def cases():
    """Return ONNX's cases of models whose operators are in the table; what functions expand to is left out."""
    from ortpipe.runtime.xla.interpret import check_operators

    found = []
    for case in every_node_case():
        if "_expanded" in case.name or any(word in case.name for word in LEFT_OUT):
            continue
        if case.model.graph.node[0].op_type in POOLED and array(case.data_sets[0][0][0]).size > LARGEST:
            continue
        try:
            check_operators(case.model)
        except ModelError:
            continue
        found.append(case)
    return found


def array(value):
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def function(model, inputs, traced):
    """Return the model as a function of the inputs of these numbers; the others are known before."""
    from ortpipe.runtime.xla.interpret import Interpreter

    def run(*given):
        values = dict(zip(traced, given, strict=True))
        return tuple(Interpreter(model, {}).run(model.graph, [values.get(i, x) for i, x in enumerate(inputs)]))

    return run, [inputs[i] for i in traced]


@contextlib.contextmanager
def in_jax():
    """Compute in 64 bits, precisely, on the device that is tested."""
    import jax

    from ortpipe.runtime.xla.client import devices

    provider = os.environ.get("ORTPIPE_TEST_PROVIDER", "cpu")
    device = devices(RuntimeConfig(engine="xla", provider=provider))[0]  # starts JAX as the engine does, once
    with jax.enable_x64(True), jax.default_device(device), jax.default_matmul_precision("highest"):
        yield


def computed(programs):
    """Return the outputs of each function for its inputs; one compilation is cheaper than one for each."""
    import jax

    runs, inputs = zip(*programs, strict=True)

    def every(given):
        return [run(*values) for run, values in zip(runs, given, strict=True)]

    with in_jax():
        results = jax.jit(every).lower(inputs).compile(QUICKLY)(inputs)
        return [[np.asarray(y) for y in outputs] for outputs in results]


def program(case, given):
    """Return a case as a function of as many inputs as its operator takes while it runs, and these inputs."""
    import jax

    model = at_opset(case.model) if "loop11" in case.name else case.model  # its body is of opset 11
    inputs = [array(value) for value in given]
    every = [i for i, x in enumerate(inputs) if x.dtype.kind in "fiub"]
    sizes = [i for i in every if inputs[i].dtype.kind in "iu" and inputs[i].ndim < 2]
    for traced in (every, [i for i in every if i not in sizes], []):
        run, arrays = function(model, inputs, traced)
        try:
            with in_jax():
                jax.eval_shape(run, *arrays)
        except ModelError as error:
            refused = error
        else:
            return run, arrays
    raise refused


def difference(case, given, expected, got):
    """Return what differs from what ONNX says, in words, or nothing."""
    expected = [array(value) for value in expected]
    if not expected[0].any() and POOLED & {node.op_type for node in case.model.graph.node}:  # see `every_node_case`
        names = [value.name for value in case.model.graph.input]
        expected = ReferenceEvaluator(case.model).run(None, dict(zip(names, map(array, given), strict=True)))
    kinds = [[(y.dtype.name, y.shape) for y in values] for values in (got, expected)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]}, not {kinds[1]}"
    for y, right in zip(got, expected, strict=True):
        half = right.dtype.itemsize == 2 and right.dtype.kind not in "iu"  # rounded in other places
        y, right = (v.astype(np.float64) if v.dtype.name == "bfloat16" else v for v in (y, right))
        relative, absolute = 2e-3 if half else case.rtol, max(case.atol, 1e-6)
        if not np.allclose(y, right, relative, absolute, equal_nan=y.dtype.kind == "f"):
            return f"{y}, not {right}"
    return ""


@pytest.mark.parametrize("part", range(PARTS))
def test_operators_give_what_onnx_says(part):
    chosen = few_of_each(((case.model.graph.node[0].op_type, case) for case in cases()), EACH)
    rows = [(case, *data) for case in chosen[part::PARTS] for data in case.data_sets]
    programs, wrong = {}, {}
    for place, (case, given, _) in enumerate(rows):
        try:
            programs[place] = program(case, given)
        except ModelError as error:
            if not any(words in str(error) for part, words in REFUSED.items() if part in case.name):
                wrong[case.name] = str(error)
    for place, got in zip(programs, computed(programs.values()), strict=True):
        if said := difference(*rows[place], got):
            wrong[rows[place][0].name] = said
    assert wrong == {}


def test_every_operator_has_a_case_but_those_that_onnx_has_none_of():
    from ortpipe.runtime.xla.operators import OPERATORS

    assert {*OPERATORS} - {node.op_type for case in cases() for node in case.model.graph.node} == WITHOUT


@pytest.mark.parametrize("traced", [[0, 1], []])
@pytest.mark.parametrize(
    ("text", "x", "e", "expected"),
    [
        ("y = Pow(x, e)", [2, 3, 1, -1, -1, 2], [-1, -2, -1, -1, -2, 3], [0, 0, 1, -1, 1, 8]),
        ("y = ReduceMean(x, a)", [2, 3], [0], [2]),
        ("y = ReduceMean(x, a)", [-2, -3], [0], [-2]),
    ],
)
def test_fractions_of_integers_are_cut_off_as_in_onnxruntime(text, x, e, expected, traced):
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]> g (int32[X] x, int32[E] e) => (int32[Y] y)
          {{ a = Constant<value_ints = [0]>() {text} }}"""
    )
    [[y]] = computed([function(model, [np.array(x, np.int32), np.array(e, np.int32)], traced)])
    assert y.dtype == np.int32
    assert y.tolist() == expected


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32])
def test_products_with_ones_and_of_columns_are_products(kind):
    name, rng = {"float32": "float", "float64": "double"}.get(np.dtype(kind).name, "int32"), np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]> g ({name}[3] a, {name}[3,2] b, {name}[2,1] c)
          => ({name}[Y] y, {name}[3,1] z, {name}[2,1] t)
          {{ y = MatMul(a, b) z = MatMul(b, c) s = MatMul(b, c) t = Gemm<transA=1>(b, s) }}"""
    )
    b, c = (rng.integers(-9, 9, shape).astype(kind) for shape in ((3, 2), (2, 1)))
    for a in (np.ones(3, kind), np.arange(3).astype(kind)):
        [[y, z, t]] = computed([function(model, [a, b, c], [1, 2])])
        assert {x.dtype for x in (y, z, t)} == {np.dtype(kind)}
        np.testing.assert_array_equal(y, a @ b)
        np.testing.assert_array_equal(z, b @ c)
        np.testing.assert_array_equal(t, b.T @ b @ c)


def test_neighbours_have_the_constants_that_onnx_gives_where_a_model_names_none():
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,4,1,1] x) => (float[Y] y) { y = LRN<size=3>(x) }'
    x = np.array([100, -200, 300, 50], np.float32).reshape(1, 4, 1, 1)
    [[y]] = computed([function(onnx.parser.parse_model(text), [x], [0])])
    around = np.array([5e4, 14e4, 13.25e4, 9.25e4])  # sums of three squares
    np.testing.assert_allclose(y.ravel(), x.ravel() / (1 + 1e-4 / 3 * around) ** 0.75, rtol=1e-6)
