"""The names of onnxcustom and experimental-experiment, as thin layers over the stages.

A script needs only new import lines. Where the original computed something wrong, the docstring explains it.
"""

import importlib
from typing import Any

_NAMES = {  # module → its public names; `name:original` is offered here under the first name
    "ortpipe.compat.data_loader": ("OrtDataLoader",),
    "ortpipe.compat.derivative": ("DerivativeOptions", "onnx_derivative", "random_feed"),
    "ortpipe.compat.devices": (
        *("ProviderError", "device_to_providers", "get_ort_device", "get_ort_device_from_session"),
        *("get_ort_device_type", "numpy_to_ort_value", "ort_device_to_string", "provider_to_device"),
    ),
    "ortpipe.compat.forward_backward": ("OrtGradientForwardBackward", "OrtGradientForwardBackwardFunction"),
    "ortpipe.compat.forward_backward_optimizer": ("OrtGradientForwardBackwardOptimizer",),
    "ortpipe.compat.functions": ("function_onnx_graph", "get_supported_functions"),
    "ortpipe.compat.initializers": (
        *("_unique_name:unique_name", "add_initializer", "get_train_initializer", "onnx_rename_weights"),
        *("replace_initializers_into_onnx", "select_model_inputs_outputs", "unique_name"),
        *("_rewrite_op_no_grad", "dtype_to_var_type", "get_onnx_opset", "onnx_rewrite_operator", "proto_type_to_dtype"),
    ),
    "ortpipe.compat.learning_rates": ("BaseLearningRate", "LearningRateSGD", "LearningRateSGDNesterov"),
    "ortpipe.compat.learning_terms": (
        *("AbsoluteLearningLoss", "BaseLearningLoss", "ElasticLearningLoss", "NegLogLearningLoss"),
        *("SquareLearningLoss", "unreduced_onnx_loss"),
        *("BaseLearningPenalty", "ElasticLearningPenalty", "NoLearningPenalty"),
    ),
    "ortpipe.compat.losses": (
        *("_loss_elastic", "_loss_l1", "_loss_l2", "_loss_log", "add_loss_output", "penalty_loss_onnx"),
    ),
    "ortpipe.compat.optimizer": ("OrtGradientOptimizer",),
    "ortpipe.compat.plotting": ("plot_onnxs", "to_dot"),
    "ortpipe.errors": ("ConvergenceError", "EvaluationError:EvaluateError"),
    "sklearn.exceptions": ("ConvergenceWarning",),
}
_HOMES = {name.partition(":")[0]: (module, name) for module, names in _NAMES.items() for name in names}
__all__ = sorted(name for name in _HOMES if not name.startswith("_"))


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ortpipe.compat' has no attribute {name!r}")
    module, source_name = _HOMES[name]
    return getattr(importlib.import_module(module), source_name.rpartition(":")[2])
