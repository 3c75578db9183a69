"""The only import of onnxruntime: its version and providers, and the gradient builder of the training build."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import onnx

from ortpipe.errors import DeriveError, ModelError
from ortpipe.hidden import hidden

TRAINING = "onnxruntime.training"
DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-training",
    "onnxruntime-training-cpu",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
)


def check_one_runtime() -> None:
    """Raise if more than one distribution of onnxruntime is installed."""
    installed = []
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            installed.append(name)
    if len(installed) > 1:
        raise ModelError(
            "Only one distribution of onnxruntime may be installed: they overwrite each other's files.",
            got=" and ".join(installed),
            fix=f"pip uninstall -y {' '.join(installed)}, then pip install {installed[-1]}",
        )


def _imported() -> Any:
    """Import onnxruntime without `onnxruntime.training`.

    On import, the training build tries to load that package, and torch with it if installed: seconds and hundreds of
    megabytes, only to determine its version. Both can still be imported before and afterwards.
    """
    check_one_runtime()
    with hidden(TRAINING):
        import onnxruntime
    return onnxruntime


ort = _imported()
ort.set_default_logger_severity(4)  # errors are raised with their message; the rest concerns ort's own optimizations


@dataclass(frozen=True)
class Runtime:
    """An installation of onnxruntime."""

    version: str
    builds_gradients: bool  # whether it is the training build, which the `ort` engine needs
    providers: tuple[str, ...]  # the compiled-in providers, by their long names


def about() -> Runtime:
    """Return the installed runtime; raise if there is more than one distribution."""
    check_one_runtime()  # again: another one may have been installed since the import
    builds_gradients = hasattr(ort.capi._pybind_state, "OrtModuleGraphBuilder")
    return Runtime(ort.__version__, builds_gradients, tuple(ort.get_available_providers()))


def gradient_model(
    model: onnx.ModelProto, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the builder's graph (forward, YieldOp, backward) and the gradient output of each parameter and input.

    The builder is called through its bindings, because its Python package needs torch. No name in the model may contain
    "_grad", which the builder uses itself. If the builder fails, the error carries its message.
    """
    bindings = ort.capi._pybind_state
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
