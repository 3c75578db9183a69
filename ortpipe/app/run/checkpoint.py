"""Read and write checkpoints: one file in a run's folder with the tensors and, as metadata, the epochs and the key."""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ortpipe.bounded import MOST_BYTES, parse_json, read_below
from ortpipe.errors import ConfigError
from ortpipe.files import atomic_write
from ortpipe.settings import Times, checked
from ortpipe.stages import Checkpoint

FILE = "checkpoint.safetensors"


def write_checkpoint(checkpoint: Checkpoint, run: Path) -> None:
    """Write a checkpoint into a run's folder, replacing the previous one atomically."""
    arrays = {name: np.asarray(array, order="C") for name, array in checkpoint.tensors.items()}
    facts = {"epochs": checkpoint.epochs, "key": checkpoint.key}
    atomic_write(run / FILE, save(arrays, {"checkpoint": json.dumps(facts)}))  # one key: the format does not order them


def read_checkpoint(run: Path) -> Checkpoint | None:
    """Return a run's last checkpoint, or None (with a warning) if it was stopped before its first one."""
    if not run.is_dir():
        fix = "See the run's last lines, or outputs/runs/."
        raise ConfigError("resume must be the folder of a run.", got=str(run), fix=fix)
    try:
        content = read_below(run, FILE, MOST_BYTES)
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        facts = parse_json(header["__metadata__"]["checkpoint"])
        epochs, key = checked(facts["epochs"], Times, "epochs"), checked(facts["key"], str, "key")
        return Checkpoint(epochs, key, load(content))
    except FileNotFoundError:
        print(f"no checkpoint in {run}: training starts from the beginning", file=sys.stderr)
        return None
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        fix = f"Remove {run / FILE} to train from the beginning."
        raise ConfigError("A checkpoint must be intact.", got=f"{run / FILE}: {error}", fix=fix) from error
