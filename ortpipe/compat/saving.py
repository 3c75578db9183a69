"""Graphs into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from ortpipe.errors import ConfigError


def saved(graphs: dict[str, onnx.ModelProto], folder: Any, stem: str) -> dict[str, Any]:
    """Write graphs into a folder as `<stem>.<name>.onnx`, or return them as bytes where `bytes` stands for a folder.

    Raises:
        ConfigError: the folder does not exist.
    """
    if folder is bytes:
        return {name: model.SerializeToString() for name, model in graphs.items()}
    if not Path(folder).is_dir():
        raise ConfigError("Graphs are saved into a folder that exists.", got=folder, fix="Create it first.")
    paths = {name: Path(folder) / f"{stem}.{name}.onnx" for name in graphs}
    for name, path in paths.items():
        path.write_bytes(graphs[name].SerializeToString(deterministic=True))
    return {name: str(path) for name, path in paths.items()}
