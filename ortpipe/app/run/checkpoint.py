"""A checkpoint as a folder of the run's: `checkpoint/tensors.safetensors` and `checkpoint/checkpoint.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.errors import ConfigError
from ortpipe.files import whole_folder

if TYPE_CHECKING:
    from ortpipe.stages.train.checkpoint import Checkpoint


def write_checkpoint(checkpoint: Checkpoint, run: Path) -> None:
    """Write a checkpoint into a run's folder; the one before it stays until this one is whole."""
    import numpy as np
    from safetensors.numpy import save_file

    with whole_folder(run / "checkpoint") as folder:
        arrays = {name: np.ascontiguousarray(array) for name, array in checkpoint.tensors.items()}
        save_file(arrays, folder / "tensors.safetensors")
        facts = {"epochs": checkpoint.epochs, "key": checkpoint.key}
        (folder / "checkpoint.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def read_checkpoint(run: Path) -> Checkpoint | None:
    """Return a run's last checkpoint, or None (and say so) if it was stopped before its first one.

    Raises:
        ConfigError: there is no such folder, or the checkpoint is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    from ortpipe.stages.train.checkpoint import Checkpoint

    if not run.is_dir():
        fix = "Take it from that run's last lines, or from outputs/runs/."
        raise ConfigError("resume is the folder of a run.", got=str(run), fix=fix)
    folder = run / "checkpoint"
    if not folder.is_dir():
        print(f"no checkpoint in {run}: training starts from its beginning", file=sys.stderr)
        return None
    try:
        facts = json.loads((folder / "checkpoint.json").read_text(encoding="utf-8"))
        return Checkpoint(facts["epochs"], facts["key"], load_file(folder / "tensors.safetensors"))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        fix = f"Remove {folder} to start anew."
        raise ConfigError("A checkpoint is as it was written.", got=f"{folder}: {error}", fix=fix) from error
