"""Every function's graph gives its formula, here written in NumPy, in onnxruntime and in onnx.reference."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from scipy.special import expit

from ortpipe.compat import function_onnx_graph, get_supported_functions
from ortpipe.compat.functions import FUNCTIONS
from ortpipe.errors import ConfigError, UnknownNameError
from ortpipe.runtime.session import Session

rng = np.random.default_rng(0)
A, B, C = (rng.normal(size=(6, 1)) for _ in range(3))
ALPHA, BETA, W = np.array([0.3]), np.array([-0.7]), rng.uniform(0.1, 2, 6)
D, V = B - A, W.reshape(-1, 1)
LABELS, SCORES = (A > 0).astype(np.int64), np.array([[0.0], [80], [-80], [1], [-1], [0.3]])
P = np.clip(expit(SCORES), 1e-3, 1 - 1e-3)
PAIR, STEP = {"X1": A, "X2": B}, {"X1": A, "X2": B, "G": C, "alpha": ALPHA, "beta": BETA}
VELOCITY = 0.3 * A - 0.7 * C


def _l1l2(x: np.ndarray) -> np.ndarray:
    return 0.1 * abs(x) + 0.9 * x**2


# function, its arguments, inputs, outputs
CASES = [
    ("copy", {}, {"X": A}, {"Y": A}),
    ("zero", {}, {"X": A}, {"Y": 0 * A}),
    ("axpy", {}, {**PAIR, "alpha": ALPHA}, {"Y": 0.3 * A + B}),
    ("axpyw", {}, STEP, {"Z": VELOCITY, "Y": VELOCITY + B}),
    ("axpyw2", {}, STEP, {"Z": VELOCITY, "Y": 0.3 * A - 0.7 * VELOCITY + B}),
    ("linear_regression", {}, {"X": A, "A": B.T, "B": C.T}, {"Y": A @ B.T + C.T}),
    ("square_error", {}, PAIR, {"Y": [(D**2).sum()]}),
    ("square_error", {"weight_name": "w"}, {**PAIR, "w": W}, {"Y": [(V * D**2).sum()]}),
    ("square_error", {"weight_name": "w"}, PAIR, {"Y": [(D**2).sum()]}),
    ("grad_square_error", {}, PAIR, {"Y_grad": 2 * D}),
    ("grad_square_error", {"weight_name": "w"}, {**PAIR, "w": W}, {"Y_grad": 2 * V * D}),
    ("grad_loss_square_error", {}, PAIR, {"Y": [(D**2).sum()], "Y_grad": 2 * D}),
    (
        "grad_loss_square_error",
        {"multiply": 1, "weight_name": "w"},
        {**PAIR, "w": W},
        {"Y": [(V * D**2).sum() / 2], "Y_grad": V * D},
    ),
    ("grad_loss_absolute_error", {}, PAIR, {"Y": [abs(D).sum()], "Y_grad": np.sign(D)}),
    (
        "grad_loss_absolute_error",
        {"weight_name": "w"},
        {**PAIR, "w": W},
        {"Y": [(V * abs(D)).sum()], "Y_grad": V * np.sign(D)},
    ),
    (
        "grad_loss_elastic_error",
        {"l1_weight": 0.1, "l2_weight": 0.9},
        PAIR,
        {"Y": [_l1l2(D).sum()], "Y_grad": 0.1 * np.sign(D) + 1.8 * D},
    ),
    (
        "grad_loss_elastic_error",
        {"weight_name": "w"},
        {**PAIR, "w": W},
        {"Y": [0.01 * (V * (abs(D) + D**2)).sum()], "Y_grad": 0.01 * V * (np.sign(D) + 2 * D)},
    ),
    (
        "grad_sigmoid_neg_log_loss_error",
        {"eps": 1e-3, "weight_name": "w"},
        {"X1": LABELS, "X2": SCORES, "w": W},
        {"Y": [-(V * (LABELS * np.log(P) + (1 - LABELS) * np.log(1 - P))).sum()], "Y_grad": V * (P - LABELS)},
    ),
    (
        "grad_penalty_elastic_error",
        {"l1_weight": 0.1, "l2_weight": 0.9},
        {"X": A},
        {"Y": [_l1l2(A).sum()], "Y_grad": 0.1 * np.sign(A) + 1.8 * A},
    ),
    (
        "n_penalty_elastic_error",
        {"l1_weight": 0.1, "l2_weight": 0.9, "n_tensors": 2},
        {"loss": np.array([[2.0]]), "W0": A, "W1": B.T},
        {"Y": [2 + _l1l2(A).sum() + _l1l2(B).sum()]},
    ),
    ("update_penalty_elastic_error", {"l1": 0.1, "l2": 0.9}, {"X": A}, {"Y": A - 0.1 * np.sign(A) - 1.8 * A}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "arguments", "inputs", "outputs"), CASES)
def test_a_function_gives_its_formula(
    name: str, arguments: dict, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray], dtype: type
) -> None:
    model = function_onnx_graph(name, dtype=dtype, **arguments)
    feeds = {k: v if v.dtype == np.int64 else v.astype(dtype) for k, v in inputs.items()}
    for run in (Session(model).run, lambda f, names: ReferenceEvaluator(model).run(names, f)):
        for key, got in zip(outputs, run(feeds, list(outputs)), strict=True):
            np.testing.assert_allclose(got, outputs[key], rtol=1e-5, atol=1e-6)
            assert got.dtype == dtype
            assert got.shape == np.shape(outputs[key])


def test_every_function_is_tested_and_has_its_formula() -> None:
    assert {name for name, *_ in CASES} == set(FUNCTIONS) == set(get_supported_functions())


def test_a_graph_has_the_opset_that_is_asked_for() -> None:
    assert [function_onnx_graph("copy", opset).opset_import[0].version for opset in (None, 18)] == [15, 18]
    onnx.checker.check_model(function_onnx_graph("square_error", 18), full_check=True)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("copy", {"dtype": np.int64}),
        ("copy", {"weight_name": "w"}),
        ("square_error", {"weight_name": "d"}),
        ("zero", {"zero": 3}),
        ("axpy", {"beta": 1}),
        ("n_penalty_elastic_error", {"n_tensors": 0}),
    ],
)
def test_what_a_function_does_not_know_is_rejected(name: str, arguments: dict) -> None:
    with pytest.raises(ConfigError):
        function_onnx_graph(name, **arguments)


def test_an_unknown_function_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'axpyw'"):
        function_onnx_graph("axpyw3")


def test_labels_of_one_column_are_spread_over_the_predictions_columns() -> None:
    scores = np.float32([[0.5, -1], [2, 0]])
    labels = np.array([[1], [0]])
    loss, slope = Session(function_onnx_graph("grad_sigmoid_neg_log_loss_error")).run({"X1": labels, "X2": scores})
    p = expit(scores)
    np.testing.assert_allclose(slope, p - labels, rtol=1e-5)
    np.testing.assert_allclose(loss, [-(labels * np.log(p) + (1 - labels) * np.log(1 - p)).sum()], rtol=1e-5)
