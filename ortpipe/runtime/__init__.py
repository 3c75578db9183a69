"""The only folder that imports onnxruntime: sessions, providers, and the distributions that bring the library."""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.runtime.library import DISTRIBUTIONS, bindings, check_one_runtime
    from ortpipe.runtime.onnx_teacher import OnnxClassifier, OnnxRegressor
    from ortpipe.runtime.providers import about, check_provider
    from ortpipe.runtime.session import Session
else:
    __getattr__, __dir__, __all__ = door(__name__)
