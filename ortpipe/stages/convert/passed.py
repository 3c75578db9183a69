"""A source that is passed in Python: an estimator, a model, the path of a file, or a PyTorch module."""

import sys
import warnings
from pathlib import Path
from typing import Any

import onnx

from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError
from ortpipe.stages.convert import sources
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.forward import Forward
from ortpipe.stages.convert.reading.graph_settings import IN_INFERENCE, Given, GraphSettings


def read_passed(source: Any, config: ConvertConfig | None, data: Data | None) -> tuple[Forward, ConvertConfig]:
    """Return the forward model of a source that is no config, as `config.source` describes it, and the config."""
    if source is None:
        rule = "convert needs a source."
        raise ConvertError(rule, got="None and no config", fix="Give an estimator, a model or a path.")
    config = config or ConvertConfig(Given())
    settings = config.source if isinstance(config.source, GraphSettings) else Given()
    torch = sys.modules.get("torch")  # no module exists before this import
    forward: Forward
    if isinstance(source, onnx.ModelProto):
        forward = sources.from_model(source, settings, data)
    elif isinstance(source, str | Path):
        forward = sources.from_path(source, settings, data)
    elif torch is not None and isinstance(source, torch.nn.Module):
        if settings.origin == Given().origin:
            settings = Given(**vars(settings) | {"name": f"torch:{type(source).__name__}"})
        forward = sources.from_module(source, settings, data)
        if IN_INFERENCE in forward.notes:
            advice = "say so with module.train(), and call .eval() on layers that shall stay as they predict"
            warnings.warn(f"{type(source).__name__} {IN_INFERENCE}: {advice}.", stacklevel=3)
    else:
        forward = sources.from_estimator(source, data, config.dtype)
    return forward, config
