"""The tests and examples that do not pass, each with what they raise: on purpose, or for want of what is gone.

A list is reason → the tests that it explains, `library/file/test` → a pattern of what each raises. A reason of a
deliberate difference is the first cell of a row of the table in docs/howto/onnxcustom.md. A test that fails in another
way, or passes, is reported.
"""

from collections.abc import Mapping

Known = Mapping[str, Mapping[str, str]]

FUNCTIONS = "onnxcustom/test_onnx_function/test_"
DELIBERATE: Known = {
    "`OrtDataLoader`": {"onnxcustom/test_data_loader/test_ort_data_loader_101": "1 != 5"},
    "`OrtGradientOptimizer`": {
        "onnxcustom/test_optimizers/test_ort_gradient_optimizers_use_numpy_nesterov": "DID NOT RAISE",
    },
    "`OrtGradientForwardBackwardOptimizer`": {
        f"onnxcustom/test_optimizers_forward_backward/test_ort_gradient_optimizers_{name}": "DID NOT RAISE"
        for name in ("nn", "nn_w")
    },
    "`LearningRateSGD`": {
        "onnxcustom/test_learning_rate/test_learning_rate_sgd_regressor_optimal": r"0\.00500\d+ < 0\.009",
    },
    "`add_loss_output`": {
        "onnxcustom/test_orttraining_helper/test_add_loss_output_cls": "eps must be a number, positive and below 0.5",
        "experimental_experiment/test_loss_helper/test_add_loss_output_cls": r"'Clip\(probabilities' not found",
    },
    "`onnx_derivative`": {
        **{
            f"{library}/test_grad_helper/test_grad_helper_loss": "Loss needs a loss output of one element"
            for library in ("onnxcustom", "experimental_experiment")
        },
        "onnxcustom/test_training_qdq/test_qat": "Every pattern in parameters must match a parameter",
    },
    "`function_onnx_graph`": {
        **{
            f"{FUNCTIONS}loss_grad_onnx_absolute_error{end}": "Not equal to tolerance"
            for end in ("", "_w", "_w_norand")
        },
        **{f"{FUNCTIONS}loss_grad_onnx_elastic_error{end}": "Not equal to tolerance" for end in ("", "_w")},
    },
}
GONE: Known = {
    "onnxruntime's TrainingSession": {
        f"onnxcustom/plot_orttraining_linear_regression_{device}": "cannot import name 'TrainingParameters'"
        for device in ("cpu", "gpu")
    },
    "onnxruntime's ORTModule": {
        "onnxcustom/plot_orttraining_benchmark_torch": "No module named 'torch'|ORTModule|torch_interop|jit_utils",
    },
}


def reason(known: Known, name: str) -> tuple[str, str] | None:
    """Return why a test is in a list, and the pattern of what it raises."""
    return next(((why, tests[name]) for why, tests in known.items() if name in tests), None)
