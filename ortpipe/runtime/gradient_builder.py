"""The gradient builder of onnxruntime's training build."""

from collections.abc import Sequence

import onnx

from ortpipe.errors import DeriveError
from ortpipe.runtime.library import bindings, ort


def gradient_model(
    model: onnx.ModelProto, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the builder's graph (forward, YieldOp, backward) and the gradient output of each parameter and input.

    The builder is called through its bindings, because its Python package needs torch. No name in the model may contain
    "_grad", which the builder uses itself. If the builder fails, the error carries its message.
    """
    if not hasattr(bindings, "OrtModuleGraphBuilder"):
        raise DeriveError(
            "The ort engine needs onnxruntime-training.",
            got=f"onnxruntime {ort.__version__} without a gradient builder",
            fix="Reinstall in a fresh environment with CPython 3.11: pip install ortpipe.",
        )
    ordered = sorted(parameters)  # the builder only accepts weights in alphabetical order
    config = bindings.OrtModuleGraphBuilderConfiguration()
    config.initializer_names = ordered
    config.initializer_names_to_train = ordered
    config.input_names_require_grad = list(inputs)
    builder = bindings.OrtModuleGraphBuilder()
    try:
        builder.initialize(model.SerializeToString(), config)
        builder.build(bindings.TrainingGraphTransformerConfiguration())
    except Exception as error:
        raise DeriveError(
            "The gradient builder must support every operator of the model.",
            got=str(error).strip(),
            fix="Choose derive=native, or simplify the model.",
        ) from error
    built, info = onnx.load_model_from_string(builder.get_gradient_model()), builder.get_graph_info()
    gradients = dict(zip(ordered, info.initializer_grad_names_to_train, strict=False)) | dict(
        info.user_input_grad_names
    )
    return built, {name: gradient for name, gradient in gradients.items() if gradient}
