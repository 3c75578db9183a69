"""What users of onnxcustom and experimental-experiment know, under the same names, thin over the stages.

A script changes its import lines and runs. Where the original computed something wrong, the docstring says so.
"""

import importlib
from typing import Any

_HOMES = {
    "AbsoluteLearningLoss": "ortpipe.compat.learning_losses",
    "BaseLearningLoss": "ortpipe.compat.learning_losses",
    "BaseLearningPenalty": "ortpipe.compat.learning_penalties",
    "BaseLearningRate": "ortpipe.compat.learning_rates",
    "ConvergenceError": "ortpipe.errors",
    "ConvergenceWarning": "sklearn.exceptions",
    "DerivativeOptions": "ortpipe.compat.derivative",
    "ElasticLearningLoss": "ortpipe.compat.learning_losses",
    "ElasticLearningPenalty": "ortpipe.compat.learning_penalties",
    "EvaluationError": "ortpipe.errors:EvaluateError",
    "LearningRateSGD": "ortpipe.compat.learning_rates",
    "LearningRateSGDNesterov": "ortpipe.compat.learning_rates",
    "NegLogLearningLoss": "ortpipe.compat.learning_losses",
    "NoLearningPenalty": "ortpipe.compat.learning_penalties",
    "OrtDataLoader": "ortpipe.compat.data_loader",
    "OrtGradientForwardBackward": "ortpipe.compat.forward_backward",
    "OrtGradientForwardBackwardFunction": "ortpipe.compat.forward_backward",
    "OrtGradientForwardBackwardOptimizer": "ortpipe.compat.forward_backward_optimizer",
    "OrtGradientOptimizer": "ortpipe.compat.optimizer",
    "ProviderError": "ortpipe.compat.devices",
    "SquareLearningLoss": "ortpipe.compat.learning_losses",
    "_loss_elastic": "ortpipe.compat.loss_nodes",
    "_loss_l1": "ortpipe.compat.loss_nodes",
    "_loss_l2": "ortpipe.compat.loss_nodes",
    "_loss_log": "ortpipe.compat.loss_nodes",
    "_rewrite_op_no_grad": "ortpipe.compat.rewriter",
    "_unique_name": "ortpipe.compat.initializers:unique_name",
    "add_initializer": "ortpipe.compat.initializers",
    "add_loss_output": "ortpipe.compat.losses",
    "device_to_providers": "ortpipe.compat.devices",
    "dtype_to_var_type": "ortpipe.compat.rewriter",
    "function_onnx_graph": "ortpipe.compat.functions",
    "get_onnx_opset": "ortpipe.compat.rewriter",
    "get_ort_device": "ortpipe.compat.devices",
    "get_ort_device_from_session": "ortpipe.compat.devices",
    "get_ort_device_type": "ortpipe.compat.devices",
    "get_supported_functions": "ortpipe.compat.functions",
    "get_train_initializer": "ortpipe.compat.initializers",
    "numpy_to_ort_value": "ortpipe.compat.devices",
    "onnx_derivative": "ortpipe.compat.derivative",
    "onnx_rename_weights": "ortpipe.compat.initializers",
    "onnx_rewrite_operator": "ortpipe.compat.rewriter",
    "ort_device_to_string": "ortpipe.compat.devices",
    "penalty_loss_onnx": "ortpipe.compat.loss_nodes",
    "plot_onnxs": "ortpipe.compat.plotting",
    "proto_type_to_dtype": "ortpipe.compat.rewriter",
    "provider_to_device": "ortpipe.compat.devices",
    "random_feed": "ortpipe.compat.derivative",
    "replace_initializers_into_onnx": "ortpipe.compat.initializers",
    "select_model_inputs_outputs": "ortpipe.compat.initializers",
    "to_dot": "ortpipe.compat.plotting",
    "unique_name": "ortpipe.compat.initializers",
    "unreduced_onnx_loss": "ortpipe.compat.unreduced_loss",
}
__all__ = sorted(name for name in _HOMES if not name.startswith("_"))


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ortpipe.compat' has no attribute {name!r}")
    module, _, own = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), own or name)
