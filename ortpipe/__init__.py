"""ortpipe trains ONNX models from config files."""

import importlib
from typing import Any

_HOMES = {
    "Artifact": "artifact",
    "Facts": "artifact",
    "Data": "data.rows",
    "Rows": "data.rows",
    "split": "data.split",
    "SplitConfig": "data.config",
    "FLOW": "flow",
    "OrtpipeError": "errors",
    "RuntimeConfig": "runtime.config",
    "load_artifact": "artifact_folder",
    "save_artifact": "artifact_folder",
    "convert": "stages.convert.stage",
    "ConvertConfig": "stages.convert.config",
    "Given": "stages.convert.reading.graph_settings",
    "restore": "stages.convert.restore",
    "add_loss": "stages.add_loss.stage",
    "AddLossConfig": "stages.add_loss.config",
    "LOSSES": "stages.add_loss.losses",
    "penalty": "stages.penalty.stage",
    "PenaltyConfig": "stages.penalty.config",
    "derive": "stages.derive.stage",
    "DeriveConfig": "stages.derive.config",
    "Lora": "stages.derive.config",
    "gradient": "autodiff.gradient",
    "train": "stages.train.stage",
    "TrainConfig": "stages.train.config",
    "OPTIMIZERS": "stages.train.optimizers",
    "SCHEDULES": "stages.train.schedules",
    "evaluate": "stages.evaluate.stage",
    "run": "app.runs",
    "Run": "app.runs",
    "Sweep": "app.runs",
    "EvaluateConfig": "stages.evaluate.config",
}
__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    """Return the public names, which are imported on first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `ortpipe --help` does not wait for any of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ortpipe' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ortpipe.{_HOMES[name]}"), name)
