"""The names of onnxcustom and experimental-experiment, as thin layers over the stages.

A script needs only new import lines. Where the original computed something wrong, the docstring explains it. The names
are those below.

Read first: `optimizer.py` (training as in onnxcustom), `forward_backward.py` (gradients step by step) and
`derivative.py` (the graph of a gradient).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from sklearn.exceptions import ConvergenceWarning as ConvergenceWarning

    from ortpipe.compat.data_loader import OrtDataLoader as OrtDataLoader
    from ortpipe.compat.derivative import DerivativeOptions as DerivativeOptions
    from ortpipe.compat.derivative import onnx_derivative as onnx_derivative
    from ortpipe.compat.derivative import random_feed as random_feed
    from ortpipe.compat.devices import ProviderError as ProviderError
    from ortpipe.compat.devices import device_to_providers as device_to_providers
    from ortpipe.compat.devices import get_ort_device as get_ort_device
    from ortpipe.compat.devices import get_ort_device_from_session as get_ort_device_from_session
    from ortpipe.compat.devices import get_ort_device_type as get_ort_device_type
    from ortpipe.compat.devices import numpy_to_ort_value as numpy_to_ort_value
    from ortpipe.compat.devices import ort_device_to_string as ort_device_to_string
    from ortpipe.compat.devices import provider_to_device as provider_to_device
    from ortpipe.compat.forward_backward import OrtGradientForwardBackward as OrtGradientForwardBackward
    from ortpipe.compat.forward_backward import OrtGradientForwardBackwardFunction as OrtGradientForwardBackwardFunction
    from ortpipe.compat.forward_backward_optimizer import (
        OrtGradientForwardBackwardOptimizer as OrtGradientForwardBackwardOptimizer,
    )
    from ortpipe.compat.functions import function_onnx_graph as function_onnx_graph
    from ortpipe.compat.functions import get_supported_functions as get_supported_functions
    from ortpipe.compat.initializers import _rewrite_op_no_grad as _rewrite_op_no_grad
    from ortpipe.compat.initializers import add_initializer as add_initializer
    from ortpipe.compat.initializers import dtype_to_var_type as dtype_to_var_type
    from ortpipe.compat.initializers import get_onnx_opset as get_onnx_opset
    from ortpipe.compat.initializers import get_train_initializer as get_train_initializer
    from ortpipe.compat.initializers import onnx_rename_weights as onnx_rename_weights
    from ortpipe.compat.initializers import onnx_rewrite_operator as onnx_rewrite_operator
    from ortpipe.compat.initializers import proto_type_to_dtype as proto_type_to_dtype
    from ortpipe.compat.initializers import replace_initializers_into_onnx as replace_initializers_into_onnx
    from ortpipe.compat.initializers import select_model_inputs_outputs as select_model_inputs_outputs
    from ortpipe.compat.initializers import unique_name as _unique_name
    from ortpipe.compat.initializers import unique_name as unique_name
    from ortpipe.compat.learning_rates import BaseLearningRate as BaseLearningRate
    from ortpipe.compat.learning_rates import LearningRateSGD as LearningRateSGD
    from ortpipe.compat.learning_rates import LearningRateSGDNesterov as LearningRateSGDNesterov
    from ortpipe.compat.learning_terms import AbsoluteLearningLoss as AbsoluteLearningLoss
    from ortpipe.compat.learning_terms import BaseLearningLoss as BaseLearningLoss
    from ortpipe.compat.learning_terms import BaseLearningPenalty as BaseLearningPenalty
    from ortpipe.compat.learning_terms import ElasticLearningLoss as ElasticLearningLoss
    from ortpipe.compat.learning_terms import ElasticLearningPenalty as ElasticLearningPenalty
    from ortpipe.compat.learning_terms import NegLogLearningLoss as NegLogLearningLoss
    from ortpipe.compat.learning_terms import NoLearningPenalty as NoLearningPenalty
    from ortpipe.compat.learning_terms import SquareLearningLoss as SquareLearningLoss
    from ortpipe.compat.learning_terms import unreduced_onnx_loss as unreduced_onnx_loss
    from ortpipe.compat.losses import _loss_elastic as _loss_elastic
    from ortpipe.compat.losses import _loss_l1 as _loss_l1
    from ortpipe.compat.losses import _loss_l2 as _loss_l2
    from ortpipe.compat.losses import _loss_log as _loss_log
    from ortpipe.compat.losses import add_loss_output as add_loss_output
    from ortpipe.compat.losses import penalty_loss_onnx as penalty_loss_onnx
    from ortpipe.compat.optimizer import OrtGradientOptimizer as OrtGradientOptimizer
    from ortpipe.compat.plotting import plot_onnxs as plot_onnxs
    from ortpipe.compat.plotting import to_dot as to_dot
    from ortpipe.errors import ConvergenceError as ConvergenceError
    from ortpipe.errors import EvaluateError as EvaluationError
else:
    __getattr__, __dir__, __all__ = door(__name__)
