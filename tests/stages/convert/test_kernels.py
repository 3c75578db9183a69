"""Probabilities of several classes from those of their pairs."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import finish
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.dialects.kernels import couple


@pytest.mark.parametrize("count", [3, 7])
def test_coupled_probabilities_are_where_the_objective_of_wu_lin_and_weng_is_least(count):
    """SciPy minimizes Σ (r_ji·p_i − r_ij·p_j)² over the simplex, the second of the paper's objectives."""
    from scipy.optimize import minimize

    pairs = list(itertools.combinations(range(count), 2))
    first = np.random.default_rng(0).uniform(0.02, 0.98, (4, len(pairs)))
    graph = ir.Graph(
        [ir.val("r", ir.DataType.DOUBLE, ["N", len(pairs)])], [], nodes=[], name="g", opset_imports={"": 21}
    )
    op = Builder(graph, "f")
    with op.formulas():
        graph.outputs.append(op.Softmax(couple(op, graph.inputs[0], count), axis=-1))
    found = Session(finish(ir.Model(graph, ir_version=10))).run({"r": first})[0]
    for row, p in zip(first, found, strict=True):

        def objective(p, row=row):
            return sum((p[i] * (1 - r) - p[j] * r) ** 2 for r, (i, j) in zip(row, pairs, strict=True))

        constraint = {"type": "eq", "fun": lambda p: p.sum() - 1}
        start, bounds = np.full(count, 1 / count), [(0, 1)] * count
        least = minimize(objective, start, method="SLSQP", bounds=bounds, constraints=constraint, tol=1e-14).x
        np.testing.assert_allclose(p, least, atol=1e-6)


def test_sure_pairs_give_sure_classes_in_float32():
    first = np.array([[1, 1, 1], [0, 0.5, 1], [0, 0, 0]], np.float32)  # of (0, 1), (0, 2), (1, 2)
    graph = ir.Graph([ir.val("r", ir.DataType.FLOAT, ["N", 3])], [], nodes=[], name="g", opset_imports={"": 21})
    op = Builder(graph, "f")
    with op.formulas():
        graph.outputs.append(op.Softmax(couple(op, graph.inputs[0], 3), axis=-1))
    [found] = Session(finish(ir.Model(graph, ir_version=10))).run({"r": first})
    np.testing.assert_allclose(found, [[1, 0, 0], [0, 1, 0], [0, 0, 1]], atol=2e-6)
