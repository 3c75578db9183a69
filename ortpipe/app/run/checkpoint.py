"""A checkpoint as one file of a run's folder: tensors, and in the file's own metadata what they belong to."""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ortpipe.errors import ConfigError
from ortpipe.files import atomic_write
from ortpipe.stages.train.training import Checkpoint

FILE = "checkpoint.safetensors"


def write_checkpoint(checkpoint: Checkpoint, run: Path) -> None:
    """Write a checkpoint into a run's folder; one rename replaces the one before it, so that there is always one."""
    arrays = {name: np.asarray(array, order="C") for name, array in checkpoint.tensors.items()}
    facts = {"epochs": checkpoint.epochs, "key": checkpoint.key}
    atomic_write(run / FILE, save(arrays, {"checkpoint": json.dumps(facts)}))  # one key: the format does not order them


def read_checkpoint(run: Path) -> Checkpoint | None:
    """Return a run's last checkpoint, or None (with a warning) if it was stopped before its first one."""
    if not run.is_dir():
        fix = "Take it from that run's last lines, or from outputs/runs/."
        raise ConfigError("resume is the folder of a run.", got=str(run), fix=fix)
    try:
        content = (run / FILE).read_bytes()
    except FileNotFoundError:
        print(f"no checkpoint in {run}: training starts from its beginning", file=sys.stderr)
        return None
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        facts = json.loads(header["__metadata__"]["checkpoint"])
        return Checkpoint(facts["epochs"], facts["key"], load(content))
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        fix = f"Remove {run / FILE} to start anew."
        raise ConfigError("A checkpoint is as it was written.", got=f"{run / FILE}: {error}", fix=fix) from error
