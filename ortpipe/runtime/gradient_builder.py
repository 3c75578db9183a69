"""The training build's gradient builder, called through its bindings (its Python package needs torch)."""

from collections.abc import Sequence

import onnx

from ortpipe.errors import DeriveError
from ortpipe.runtime.library import ort


def gradient_model(
    model: onnx.ModelProto, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the builder's graph (forward, YieldOp, backward) and the gradient output of each parameter and input.

    No value of the model may have "_grad" in its name, as the builder's own gradients do. Where it gives up, the
    message is its own.
    """
    bindings = ort.capi._pybind_state
    if not hasattr(bindings, "OrtModuleGraphBuilder"):
        raise DeriveError(
            "The ort engine needs onnxruntime-training.",
            got=f"onnxruntime {ort.__version__} without a gradient builder",
            fix="Reinstall in a fresh environment with CPython 3.11: pip install ortpipe.",
        )
    ordered = sorted(parameters)  # the builder takes weights in alphabetical order only
    config = bindings.OrtModuleGraphBuilderConfiguration()
    config.initializer_names = ordered
    config.initializer_names_to_train = ordered
    config.input_names_require_grad = list(inputs)
    builder = bindings.OrtModuleGraphBuilder()
    try:
        builder.initialize(model.SerializeToString(), config)
        builder.build(bindings.TrainingGraphTransformerConfiguration())
    except Exception as error:
        raise DeriveError(str(error).strip()) from error
    built, info = onnx.load_model_from_string(builder.get_gradient_model()), builder.get_graph_info()
    gradients = dict(zip(ordered, info.initializer_grad_names_to_train, strict=False)) | dict(
        info.user_input_grad_names
    )
    return built, {name: gradient for name, gradient in gradients.items() if gradient}
