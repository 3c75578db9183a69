"""Small graphs of losses, their gradients, penalties and steps; known from `onnxcustom.utils.onnx_function`."""

import re
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike

from ortpipe.compat.initializers import add_initializer
from ortpipe.compat.parameters import check_known
from ortpipe.errors import ConfigError, UnknownNameError

OPSET = 15  # the originals' opset
PAIR, BOTH, STEP = "T[?,?] X1, T[?,?] X2", "T[1] Y, T[?,?] Y_grad", "T[] X1, T[] X2, T[] G, T[1] alpha, T[1] beta"
STRENGTHS = {"l1_weight": 0.01, "l2_weight": 0.01}
WEIGHTED = ("square_error", "grad_square_error", "grad_sigmoid_neg_log_loss_error")  # and every grad_loss_…

# function → formula (w: row weights), inputs, outputs, arguments and constants, nodes. The nodes end in the outputs, or
# in `terms`, whose sum is Y, and `slope`, which is Y_grad; both are then multiplied by the row weights.
FUNCTIONS: dict[str, tuple[str, str, str, dict[str, float], str]] = {
    "copy": ("Y = X", "T[] X", "T[] Y", {}, "Y = Identity(X)"),
    "zero": ("Y = 0·X", "T[] X", "T[] Y", {"zero": 0}, "Y = Mul(X, zero)"),
    "axpy": ("Y = α·X1 + X2", "T[] X1, T[] X2, T[1] alpha", "T[] Y", {}, "step = Mul(X1, alpha) Y = Add(step, X2)"),
    "axpyw": (
        "Z = α·X1 + β·G, Y = Z + X2", STEP, "T[] Y, T[] Z", {},
        "step = Mul(X1, alpha) rest = Mul(G, beta) Z = Add(step, rest) Y = Add(Z, X2)",
    ),
    "axpyw2": (
        "Z = α·X1 + β·G, Y = α·X1 + β·Z + X2", STEP, "T[] Y, T[] Z", {},
        """step = Mul(X1, alpha) rest = Mul(G, beta) Z = Add(step, rest)
           ahead = Mul(Z, beta) both = Add(step, ahead) Y = Add(both, X2)""",
    ),
    "linear_regression": (
        "Y = X·A + B", "T[?,?] X, T[?,?] A, T[?,?] B", "T[] Y", {}, "product = MatMul(X, A) Y = Add(product, B)",
    ),
    "square_error": ("Y = Σ w·(X2 − X1)²", PAIR, "T[1] Y", {}, "d = Sub(X2, X1) terms = Mul(d, d)"),
    "grad_square_error": (
        "Y_grad = 2·w·(X2 − X1)", PAIR, "T[?,?] Y_grad", {"two": 2}, "d = Sub(X2, X1) slope = Mul(d, two)",
    ),
    "grad_loss_square_error": (
        "Y = m/2·Σ w·(X2 − X1)², Y_grad = m·w·(X2 − X1)", PAIR, BOTH, {"multiply": 2, "half": 0.5},
        "d = Sub(X2, X1) slope = Mul(d, multiply) product = Mul(d, slope) terms = Mul(product, half)",
    ),
    "grad_loss_absolute_error": (
        "Y = Σ w·|X2 − X1|, Y_grad = w·sign(X2 − X1)", PAIR, BOTH, {},
        "d = Sub(X2, X1) terms = Abs(d) slope = Sign(d)",
    ),
    "grad_loss_elastic_error": (
        "Y = Σ w·(l1·|X2 − X1| + l2·(X2 − X1)²), Y_grad = w·(l1·sign(X2 − X1) + 2·l2·(X2 − X1))",
        PAIR, BOTH, {**STRENGTHS, "two": 2},
        """d = Sub(X2, X1) size = Abs(d) size1 = Mul(size, l1_weight) sign = Sign(d) sign1 = Mul(sign, l1_weight)
           d2 = Mul(d, l2_weight) square2 = Mul(d, d2) terms = Add(size1, square2)
           twice = Mul(d2, two) slope = Add(sign1, twice)""",
    ),
    "grad_sigmoid_neg_log_loss_error": (
        "p = min(max(σ(X2), ε), 1 − ε), Y = −Σ w·(X1·ln p + (1 − X1)·ln(1 − p)), Y_grad = w·(p − X1)",
        "int64[?,?] X1, T[?,?] X2", BOTH, {"eps": 1e-5, "one": 1},
        """raw = Sigmoid(X2) low = Max(raw, eps) top = Sub(one, eps) p = Min(low, top) y = CastLike(X1, X2)
           q = Sub(one, p) z = Sub(one, y) log_p = Log(p) log_q = Log(q) yes = Mul(y, log_p) no = Mul(z, log_q)
           sum = Add(yes, no) terms = Neg(sum) slope = Sub(p, y)""",
    ),
    "grad_penalty_elastic_error": (
        "Y = l1·Σ|X| + l2·Σ X², Y_grad = l1·sign(X) + 2·l2·X", "T[?,?] X", BOTH, {**STRENGTHS, "two": 2},
        """size = Abs(X) size1 = Mul(size, l1_weight) sign = Sign(X) sign1 = Mul(sign, l1_weight)
           x2 = Mul(X, l2_weight) square2 = Mul(X, x2) terms = Add(size1, square2)
           twice = Mul(x2, two) slope = Add(sign1, twice)""",
    ),
    "n_penalty_elastic_error": ("Y = loss + Σₖ l1·Σ|Wₖ| + l2·Σ Wₖ²", "", "T[1] Y", STRENGTHS, ""),
    "update_penalty_elastic_error": (
        "Y = X − l1·sign(X) − 2·l2·X", "T[] X", "T[] Y", {"l1": 1e-4, "l2": 1e-4, "two": 2},
        """sign = Sign(X) sign1 = Mul(sign, l1) x2 = Mul(X, l2) twice = Mul(x2, two)
           shrunk = Sub(X, twice) Y = Sub(shrunk, sign1)""",
    ),
}  # fmt: skip
CONSTANTS = ("zero", "one", "two", "half")  # values that are no arguments


def get_supported_functions() -> dict[str, str]:
    """Return the formula of every function that `function_onnx_graph` knows.

    >>> get_supported_functions()["axpy"]
    'Y = α·X1 + X2'
    """
    return {name: formula for name, (formula, *_) in FUNCTIONS.items()}


def function_onnx_graph(
    name: str,
    target_opset: int | None = None,
    dtype: DTypeLike = np.float32,
    weight_name: str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """Return the graph of a function; `get_supported_functions()` has the formulas.

    X1 are labels, X2 predictions, and Y_grad is the gradient by X2.

    Args:
        name: the function's name.
        target_opset: by default 15.
        dtype: float32 or float64.
        weight_name: the name of an input for row weights [N], 1 by default; for losses and their gradients.
        kwargs: the function's arguments:  `multiply` (2) of grad_loss_square_error, `l1_weight` and `l2_weight`
            (0.01) of elastic errors and penalties, `n_tensors` (1) and `loss_shape` ((1, 1)) of
            n_penalty_elastic_error, `l1` and `l2` (0.0001) of update_penalty_elastic_error, `eps` (0.00001).

    Raises:
        UnknownNameError: no such function.
        ConfigError: an unknown argument, or a value out of its range.

    Where the original differs: its gradients of the absolute and elastic errors had the sign of X1 − X2, so training
    increased the loss.

    >>> from ortpipe.runtime.session import Session
    >>> x, y = np.array([[1], [2]], np.float32), np.array([[3], [5]], np.float32)
    >>> [a.tolist() for a in Session(function_onnx_graph("grad_loss_square_error")).run({"X1": x, "X2": y})]
    [[13.0], [[4.0], [6.0]]]
    """
    check_known(name, FUNCTIONS, "name must be a function of get_supported_functions().", UnknownNameError)
    _, inputs, outputs, values, nodes = FUNCTIONS[name]
    values = dict(values)
    if name == "n_penalty_elastic_error":
        inputs, nodes = _penalties(kwargs.pop("n_tensors", 1), kwargs.pop("loss_shape", (1, 1)))
        weight_name = None  # accepted and ignored, as in the original
    for argument, value in kwargs.items():
        check_known(argument, values.keys() - set(CONSTANTS), f"{name} does not have this argument.")
        values[argument] = float(value)
    if weight_name is not None and not (name in WEIGHTED or name.startswith("grad_loss_")):
        raise ConfigError(f"{name} does not take row weights.", got=f"weight_name={weight_name!r}", fix="Leave it out.")
    if weight_name is not None and weight_name in re.findall(r"\w+", inputs + nodes):
        raise ConfigError(
            "The weights' name must be new.", got=repr(weight_name), fix="Choose another, such as 'weight'."
        )
    if weight_name is not None:
        inputs += f", T[?] {weight_name}"
        nodes += f" column = Constant<value_ints=[-1, 1]>() by_row = Reshape({weight_name}, column)"
    if "terms" in nodes:
        terms = "terms" if weight_name is None else "weighted"
        nodes += f" {terms} = Mul(terms, by_row)" * (weight_name is not None)
        nodes += f" total = ReduceSum({terms}) flat = Constant<value_ints=[-1]>() Y = Reshape(total, flat)"
    if "slope" in nodes:
        nodes += " Y_grad = Identity(slope)" if weight_name is None else " Y_grad = Mul(slope, by_row)"
    kind = _text_type(dtype)
    constants = ", ".join(f"{kind}[1] {key} = {{{value}}}" for key, value in values.items())
    signature = f"({inputs}) => ({outputs})".replace("T[", f"{kind}[")
    opset = f'<ir_version: 8, opset_import: ["": {target_opset or OPSET}]>'
    model = onnx.parser.parse_model(f"{opset} {name} {signature} <{constants}> {{ {nodes} }}")
    return model if weight_name is None else add_initializer(model, weight_name, np.ones(1, dtype))


def _penalties(count: int, loss_shape: tuple[int, ...]) -> tuple[str, str]:
    """Return the inputs and nodes of a loss plus the penalties of `count` tensors."""
    if count < 1:
        raise ConfigError("A penalty needs a tensor.", got=f"n_tensors={count!r}", fix="Use n_tensors=1 or more.")
    inputs, nodes, total = [f"T[{','.join(map(str, loss_shape))}] loss"], [], "loss"
    for k in range(count):
        inputs.append(f"T[] W{k}")
        nodes += [
            f"a{k} = Abs(W{k}) s{k} = ReduceSum(a{k}) l{k} = Mul(s{k}, l1_weight)",
            f"q{k} = ReduceSumSquare(W{k}) r{k} = Mul(q{k}, l2_weight) p{k} = Add(l{k}, r{k})",
            f"sum{k} = Add({total}, p{k})",
        ]
        total = f"sum{k}"
    nodes.append(f"flat = Constant<value_ints=[-1]>() Y = Reshape({total}, flat)")
    return ", ".join(inputs), " ".join(nodes)


def _text_type(dtype: DTypeLike) -> str:
    """Return a float type's name in ONNX's text form."""
    kinds, name = {"float32": "float", "float64": "double"}, np.dtype(dtype).name
    check_known(name, kinds, "dtype must be float32 or float64.")
    return kinds[name]
