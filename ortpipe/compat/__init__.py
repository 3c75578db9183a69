"""The names of onnxcustom and experimental-experiment, as thin layers over the stages.

A script needs only new import lines. Where the original computed something wrong, the docstring explains it. The names
are those below.

Read first: `optimizer.py` (training as in onnxcustom), `forward_backward.py` (gradients step by step) and
`derivative.py` (the graph of a gradient).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from sklearn.exceptions import ConvergenceWarning

    from ortpipe.compat.data_loader import OrtDataLoader
    from ortpipe.compat.derivative import DerivativeOptions, onnx_derivative, random_feed
    from ortpipe.compat.devices import (
        ProviderError,
        device_to_providers,
        get_ort_device,
        get_ort_device_from_session,
        get_ort_device_type,
        numpy_to_ort_value,
        ort_device_to_string,
        provider_to_device,
    )
    from ortpipe.compat.forward_backward import OrtGradientForwardBackward, OrtGradientForwardBackwardFunction
    from ortpipe.compat.forward_backward_optimizer import OrtGradientForwardBackwardOptimizer
    from ortpipe.compat.functions import function_onnx_graph, get_supported_functions
    from ortpipe.compat.initializers import (
        _rewrite_op_no_grad,
        add_initializer,
        dtype_to_var_type,
        get_onnx_opset,
        get_train_initializer,
        onnx_rename_weights,
        onnx_rewrite_operator,
        proto_type_to_dtype,
        replace_initializers_into_onnx,
        select_model_inputs_outputs,
        unique_name,
    )
    from ortpipe.compat.initializers import unique_name as _unique_name
    from ortpipe.compat.learning_rates import BaseLearningRate, LearningRateSGD, LearningRateSGDNesterov
    from ortpipe.compat.learning_terms import (
        AbsoluteLearningLoss,
        BaseLearningLoss,
        BaseLearningPenalty,
        ElasticLearningLoss,
        ElasticLearningPenalty,
        NegLogLearningLoss,
        NoLearningPenalty,
        SquareLearningLoss,
        unreduced_onnx_loss,
    )
    from ortpipe.compat.losses import _loss_elastic, _loss_l1, _loss_l2, _loss_log, add_loss_output, penalty_loss_onnx
    from ortpipe.compat.optimizer import OrtGradientOptimizer
    from ortpipe.compat.plotting import plot_onnxs, to_dot
    from ortpipe.errors import ConvergenceError
    from ortpipe.errors import EvaluateError as EvaluationError
else:
    __getattr__, __dir__, __all__ = door(__name__)
