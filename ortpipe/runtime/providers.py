"""The installed onnxruntime, and checks that a device is available to the engine that uses it."""

from dataclasses import dataclass
from typing import Any

import onnx

from ortpipe.errors import EngineError
from ortpipe.runtime import c, xla
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.library import bindings, check_one_runtime, ort
from ortpipe.runtime.session import PROVIDERS, TRIVIAL, Session


@dataclass(frozen=True)
class Runtime:
    """An installation of onnxruntime."""

    version: str
    builds_gradients: bool  # whether it is the training build, which the `ort` engine needs
    providers: tuple[str, ...]  # the compiled-in providers, by their long names


def about() -> Runtime:
    """Return the installed runtime; raise if there is more than one distribution."""
    check_one_runtime()  # again: another one may have been installed since the import
    builds_gradients = hasattr(bindings, "OrtModuleGraphBuilder")
    return Runtime(ort.__version__, builds_gradients, tuple(ort.get_available_providers()))


def check_provider(runtime: RuntimeConfig, count: int | None = None) -> None:
    """Raise before any work if `count` devices are missing, or onnxruntime falls back to another provider."""
    if runtime.engine == "auto" and runtime.provider != "cpu":
        rule, fix = "{key}=auto chooses an engine for the CPU.", "Set {key}=xla, or {at}provider=cpu."
        raise EngineError(rule, got=f"the provider {runtime.provider}", fix=fix, key="engine")
    if runtime.engine == "xla":
        xla.check_client(runtime, count)
    elif runtime.engine == "c":
        c.check_compiler(runtime)
    elif runtime.provider != "cpu":
        Session(onnx.parser.parse_model(TRIVIAL), runtime)


def check_compiled_in(provider: str) -> None:
    """Raise if onnxruntime was built without the provider."""
    if PROVIDERS[provider][0] not in ort.get_available_providers():
        raise _missing(provider, "has none")


def check_chosen(session: Any, provider: str) -> None:
    """Raise if onnxruntime has loaded a session with another provider."""
    if (chosen := session.get_providers()[0]) != PROVIDERS[provider][0]:
        raise _missing(provider, f"fell back to {chosen}")


def _missing(provider: str, what: str) -> EngineError:
    return EngineError(
        "{key} must be available on this machine.",
        got=f"{provider}: onnxruntime {ort.__version__} {what}",
        fix="Install the GPU's driver, CUDA and an onnxruntime build for it, or set {key}=cpu.",
        key="provider",
    )
