"""Every operator against ONNX's own node tests, and the fuzzer's derivatives against ONNX's evaluator."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
from autodiff.numeric import every_node_case
from fuzz.draw import case as drawn
from fuzz.judge import _seeds
from fuzz.reference import Reference, as_double, distance
from runtime.c.epochs import SHOWN, STEPS, epoch_of, inputs_of, needs_engine, shapes_of
from sample import ALL, few_of_each

import ortpipe
from ortpipe.errors import EngineError, OrtpipeError
from ortpipe.runtime.c import CompiledEpoch, emit
from ortpipe.runtime.c.reader import SIZES, SUPPORTED

pytestmark = needs_engine
OPERATORS = tuple(sorted(SUPPORTED - SIZES - {"Scan"}))
DRAWS = ("bernoulli", "training_dropout")  # the numbers of one implementation
EACH = 2  # cases of each operator in the sample
FUZZED = range(500 if ALL else 16)
REFUSED = (" computed while it runs", ": mode ", ": reduction ", ": the equation ")


def array(value):
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def compiled(case):
    """Return a case's model and inputs, with sizes as initializers if need be; None if it is not supported."""
    if "_expanded" in case.name or any(word in case.name for word in DRAWS) or not case.model.graph.input:
        return None
    inputs = [array(value) for value in case.data_sets[0][0]]
    names = [value.name for value in case.model.graph.input]
    feeds = dict(zip(names, inputs, strict=True))
    fixed = {name for name, x in feeds.items() if x.dtype.kind in "iub" and x.ndim < 2}
    for constants in (set(), fixed):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        model.graph.initializer.extend(onnx.numpy_helper.from_array(feeds[name], name) for name in constants)
        rest = {name: x for name, x in feeds.items() if name not in constants}
        try:
            if rest and all(x.dtype.kind in "fiub" and x.size for x in rest.values()):
                emit(epoch_of([model], [rest]), {}, shapes_of([rest]))
                return model, rest
        except EngineError:
            continue
    return None


def compare(cases):
    """Run cases of one opset in one compilation: models, inputs and expected outputs."""
    models, feeds, expected = zip(*cases, strict=True)
    results = iter(CompiledEpoch(epoch_of(models, feeds), {}).run(inputs_of(feeds))[len(models) :])
    for model, values in zip(models, expected, strict=True):
        for name, value in zip((y.name for y in model.graph.output), values, strict=True):
            result = next(results)
            assert result.shape == (STEPS, *value.shape), name
            np.testing.assert_allclose(result[SHOWN], value, rtol=1e-4, atol=1e-5, err_msg=model.graph.name)


def test_operators_give_the_results_of_onnx():
    found = [
        (case.model.graph.node[0].op_type, (case, *parts))
        for case in every_node_case()
        if case.model is not None and {n.op_type for n in case.model.graph.node} <= {*OPERATORS}
        if (parts := compiled(case)) is not None
    ]
    chosen = [case for _, case in found] if ALL else few_of_each(found, EACH)
    assert len({op for op, _ in found}) > 90
    by_opset = sorted(chosen, key=lambda part: part[1].opset_import[0].version)
    for _, group in itertools.groupby(by_opset, key=lambda part: part[1].opset_import[0].version):
        compare([(model, fed, [array(y) for y in case.data_sets[0][1]]) for case, model, fed in group])


def derivative(seed):
    """Return a derivative graph in float64, its inputs and its results; None if the evaluator has none."""
    case = drawn(seed, None, OPERATORS)
    double = as_double(case.model)
    feeds = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in case.feeds.items()}
    sources = {t.name: array(t) for t in double.graph.initializer if t.name in case.wrt}
    try:
        outputs = dict(zip(case.of, Reference(double).run(feeds, case.of), strict=True))
        graph = ortpipe.gradient(double, case.of, case.wrt, kind=case.kind)
        feeds |= _seeds(case, {**feeds, **sources}, outputs)
        fed = {i.name: feeds[i.name] for i in graph.graph.input if i.name in feeds}
        results = Reference(graph).run(fed, [y.name for y in graph.graph.output])
    except (OrtpipeError, RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError):
        return None
    return (graph, fed, results) if fed and all(np.isfinite(y).all() for y in results) else None


def test_random_derivatives_give_the_results_of_onnx(monkeypatch):
    agreed = 0
    for seed in FUZZED:
        if (case := derivative(seed)) is None:
            continue
        graph, fed, expected = case
        try:
            [end, *results] = CompiledEpoch(epoch_of([graph], [fed]), {}).run(inputs_of([fed]))
        except EngineError as error:
            assert any(word in str(error.got) for word in REFUSED), error  # noqa: PT017
            continue
        np.testing.assert_array_equal(end, np.flip(next(iter(fed.values()))))
        for value, result in zip(expected, results, strict=True):
            assert result.shape == (STEPS, *np.shape(value)), seed
            assert distance(result[SHOWN].astype(float), np.asarray(value, float)) < 1e-6, seed
        agreed += 1
    assert agreed > 0.7 * len(FUZZED)
