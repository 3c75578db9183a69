"""The one place that imports onnxruntime: what it is, and the gradient builder of its training build."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from ortpipe.errors import DeriveError
from ortpipe.hidden import hidden
from ortpipe.runtime.distributions import check_one_runtime

TRAINING = "onnxruntime.training"


def _imported() -> Any:
    """Import onnxruntime without `onnxruntime.training`.

    The training build tries to import that package, and with it torch where that is installed: seconds and hundreds of
    megabytes, to find out its own version. Both can be imported before and afterwards.
    """
    check_one_runtime()
    with hidden(TRAINING):
        import onnxruntime
    return onnxruntime


ort = _imported()
ort.set_default_logger_severity(4)  # what fails is raised with its message; the rest is about its own optimizations


@dataclass(frozen=True)
class Runtime:
    """An installation of onnxruntime."""

    version: str
    builds_gradients: bool  # it is the training build, which the `ort` engine needs
    providers: tuple[str, ...]  # those it was made for, by their long names


def about() -> Runtime:
    """Return what is installed; refuse more than one distribution."""
    check_one_runtime()  # again: others may have been installed since the import
    builds_gradients = hasattr(ort.capi._pybind_state, "OrtModuleGraphBuilder")
    return Runtime(ort.__version__, builds_gradients, tuple(ort.get_available_providers()))


def gradient_model(
    model: onnx.ModelProto, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the builder's graph (forward, YieldOp, backward) and the gradient output of each parameter and input.

    It is called through its bindings, for its Python package needs torch. No value of the model may have "_grad" in its
    name, as the builder's own gradients do. Where it gives up, the message is its own.
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
        raise DeriveError(
            "The gradient builder must know every operator of the model.",
            got=str(error).strip(),
            fix="Choose derive=native, or simplify the model.",
        ) from error
    built, info = onnx.load_model_from_string(builder.get_gradient_model()), builder.get_graph_info()
    gradients = dict(zip(ordered, info.initializer_grad_names_to_train, strict=False)) | dict(
        info.user_input_grad_names
    )
    return built, {name: gradient for name, gradient in gradients.items() if gradient}
