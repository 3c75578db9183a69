"""Files of a PyTorch state_dict, as .safetensors or by torch.save: tensors by name, overwritten in place.

Only PyTorch reads its own files, with `weights_only`: nothing in them is executed.
"""

import argparse
import importlib.util
import io
import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ortpipe.bounded import check_archive, check_pickle, read
from ortpipe.errors import ConfigError, ModelError
from ortpipe.files import atomic_write
from ortpipe.graph.core.origins import Place
from ortpipe.graph.files.tensors import read_tensors, write_tensors

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
FLOATS = ("bfloat16", "float16", "float32", "float64")
LEGACY_PICKLES = 5  # at the beginning of a file that PyTorch below 1.6 wrote
SHARED = 8  # how many times tensors may share a byte of the file
SAVE_AGAIN = "Save the state_dict again: torch.save(model.state_dict(), FILE), or safetensors.torch.save_file."


class StateDictFile:
    """The content of a file; `save` writes it with the current values of the tensors.

    Raises:
        ConfigError: the file needs PyTorch, which is not installed.
        ModelError: the file is missing, damaged, or of another format.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ModelError("The file must exist.", got=path, fix="Check the path.")
        self.path = path
        self._content: Any
        self._metadata: dict[str, str] = {}
        try:
            if path.suffix == ".safetensors":
                arrays, self._metadata = read_tensors(path)
                self._content = {name: array.copy() for name, array in arrays.items()}
                stored = {n: Place(n, a) for n, a in self._content.items() if a.dtype.name in FLOATS}
                self.candidates = [stored]
            else:
                self._content = read_torch(path)
                self.candidates = list(_state_dicts(_torch(path), self._content, SHARED * path.stat().st_size))
        except (OSError, ConfigError):
            raise
        except Exception as error:  # a damaged file may raise anything
            actual = f"{path}: {type(error).__name__}: {error}"
            raise ModelError("The file must hold a state_dict.", got=actual, fix=SAVE_AGAIN) from error

    def holding(self, names: set[str]) -> dict[str, Place]:
        """Return the dict of tensors with all of these names, at any depth of a checkpoint, or with most of them.

        A prefix that a wrapper (DataParallel, torch.compile) has put in front of each name is removed.
        """
        renamed = [_without_prefix(tensors, names) for tensors in self.candidates]
        complete = [tensors for tensors in renamed if names <= set(tensors)]
        if len(complete) > 1:
            actual = f"{self.path}: {len(complete)} dicts of tensors with these names"
            raise ModelError("Only one dict of the file may have the weights' names.", got=actual, fix=SAVE_AGAIN)
        if not complete and not self.candidates:
            actual = f"{self.path}: no dict of float tensors"
            raise ModelError("The file must hold a state_dict.", got=actual, fix=SAVE_AGAIN)
        return complete[0] if complete else max(self.candidates, key=lambda tensors: len(names & set(tensors)))

    def save(self, output: Path) -> None:
        """Write the content with the tensors' current values."""
        file = io.BytesIO()
        if self.path.suffix == ".safetensors":
            write_tensors(self._content, file, self._metadata)
        else:
            _torch(self.path).save(self._content, file)
        atomic_write(output, file.getvalue())


def _without_prefix(tensors: dict[str, Place], names: set[str]) -> dict[str, Place]:
    """Return the tensors without the prefix that all their names share, if they then include all of `names`."""
    if names <= set(tensors):
        return tensors
    first = min(names, default="")
    for prefix in sorted({name.removesuffix(first) for name in tensors if name.endswith(first)}):
        if all(name.startswith(prefix) for name in tensors) and all(prefix + name in tensors for name in names):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def read_torch(path: Path) -> Any:
    """Return the tensors, numbers and text of a file that torch.save wrote; nothing in it is executed.

    Raises:
        ConfigError: PyTorch is not installed.
        Exception: any, if the file is damaged, or holds other objects.
    """
    file = io.BytesIO(read(path, sys.maxsize))
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            check_archive(archive)
            programs = [io.BytesIO(archive.read(name)) for name in archive.namelist() if name.endswith(".pkl")]
    else:
        programs = [file] * LEGACY_PICKLES  # one after the other
    file.seek(0)
    for program in programs:
        check_pickle(program)
    if any(b"bytearray" in program.getvalue() for program in programs):
        raise ValueError("it makes a bytearray, which may be larger than any memory")
    torch = _torch(path)
    file.seek(0)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # settings, in many checkpoints
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        lines = str(error).strip().splitlines()
        raise ValueError(next((line.strip() for line in lines if "error:" in line), lines[0])) from error


def _torch(path: Path) -> Any:
    """Import torch, which a file needs."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "Only PyTorch reads files that torch.save wrote.",
            got=f"{path}, and no package torch",
            fix="pip install 'ortpipe[torch]', or save a .safetensors file.",
        )
    import torch

    return torch


def _state_dicts(torch: Any, checkpoint: Any, most: int) -> Iterator[dict[str, Place]]:
    """Yield the dicts of float tensors by name in a checkpoint, each before those that it holds."""
    tensors: dict[tuple[Any, ...], Place] = {}
    stack, seen, count = [checkpoint], set[int](), 0
    while stack:
        value = stack.pop()
        if id(value) in seen or not isinstance(value, dict | list | tuple):
            continue
        seen.add(id(value))
        by_name = {}
        for name, tensor in value.items() if isinstance(value, dict) else ():
            is_float = isinstance(tensor, torch.Tensor) and str(tensor.dtype).removeprefix("torch.") in FLOATS
            if not isinstance(name, str) or not is_float or tensor.layout != torch.strided or tensor.is_meta:
                continue
            part = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if part not in tensors:
                count += tensor.numel() * tensor.element_size()
                if count > most:
                    raise ValueError(f"its tensors have more than {SHARED} times the bytes of the file")
                tensors[part] = Place(name, _array(torch, tensor.detach()))
            by_name[name] = tensors[part]
        if by_name:
            yield by_name
        stack.extend(reversed([*value.values()] if isinstance(value, dict) else value))


def _array(torch: Any, tensor: Any) -> np.ndarray:
    """Return a tensor's own numbers as an array: to write one is to write the other."""
    if tensor.dtype == torch.bfloat16:  # unknown to NumPy
        return np.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())
