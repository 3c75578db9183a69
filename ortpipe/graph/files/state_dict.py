"""Files of a PyTorch state_dict, as .safetensors or by torch.save: tensors by name, overwritten in place.

Reading needs no torch and executes nothing from the file: the unpickler knows only what tensors are built of.
"""

import io
import math
import pickle
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import safe_open

from ortpipe.bounded import TEXT, check_archive, check_pickle, parse_json, read
from ortpipe.errors import ModelError
from ortpipe.files import atomic_write
from ortpipe.graph.core.origins import Place

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
TORCH = {"Double": "F64", "Float": "F32", "Half": "F16", "BFloat16": "BF16"}  # …Storage
TORCH_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
VIEWS = 8  # how many times tensors may share a byte of the file
SAVE_AGAIN = "Save the state_dict again: torch.save(model.state_dict(), FILE), or safetensors.torch.save_file."


@dataclass(frozen=True, eq=False)
class StoredTensor(Place):
    """A float tensor of a state_dict; if several names share its data, with the first one."""

    stored: np.ndarray = field(repr=False)  # a view of the same data in the file's bytes


class StateDictFile:
    """A file's bytes: `save` writes them with the new tensor values and everything else unchanged.

    Raises:
        ModelError: the file is missing, damaged, or of another format.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ModelError("The file must exist.", got=path, fix="Check the path.")
        self.path = path
        try:
            self._bytes = bytearray(read(path, sys.maxsize))
            if path.suffix == ".safetensors":
                self.candidates = [_safetensors(self._bytes, path)]
            else:
                self.candidates = list(self._torch())
        except OSError:
            raise
        except Exception as error:  # a damaged file may raise anything
            actual = f"{path}: {type(error).__name__}: {error}"
            raise ModelError("The file must hold a state_dict.", got=actual, fix=SAVE_AGAIN) from error

    def holding(self, names: set[str]) -> dict[str, StoredTensor]:
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
        """Write the file with the tensors' current values and, for a zip, the checksums of the new bytes."""
        if self.path.suffix != ".safetensors":
            _update_checksums(self._bytes)
        atomic_write(output, bytes(self._bytes))

    def _torch(self) -> Iterator[dict[str, StoredTensor]]:
        """Yield the dicts of tensors in a file that torch.save wrote."""
        archive = zipfile.ZipFile(io.BytesIO(self._bytes))
        check_archive(archive, TEXT)
        [program] = [name for name in archive.namelist() if name.endswith("data.pkl")]
        root = program.removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")
        content = archive.read(program)
        check_pickle(content)
        reader = _TensorPickle(io.BytesIO(content))
        tensors: dict[tuple[Any, ...], StoredTensor] = {}
        count, most = 0, VIEWS * len(self._bytes)
        for stored in _dicts(reader.load()):
            by_name = {}
            for name, view in stored.items():
                info = archive.getinfo(f"{root}data/{view.key}")
                if info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("its entries are compressed")
                part = (view.key, view.dtype, view.offset, view.size, view.stride)
                if part not in tensors:
                    start = _data_offset(self._bytes, info)
                    numbers = np.frombuffer(memoryview(self._bytes)[start : start + info.file_size], view.dtype)
                    in_file = view.of(numbers)
                    count += in_file.nbytes
                    if count > most:
                        raise ValueError(f"its tensors have more than {VIEWS} times the bytes of the file")
                    tensors[part] = StoredTensor(name, in_file.copy(), in_file)
                by_name[name] = tensors[part]
            yield by_name


def _without_prefix(tensors: dict[str, StoredTensor], names: set[str]) -> dict[str, StoredTensor]:
    """Return the tensors without the prefix that all their names share, if they then include all of `names`."""
    if names <= set(tensors):
        return tensors
    first = min(names, default="")
    for prefix in sorted({name.removesuffix(first) for name in tensors if name.endswith(first)}):
        if all(name.startswith(prefix) for name in tensors) and all(prefix + name in tensors for name in names):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _safetensors(data: bytearray, path: Path) -> dict[str, StoredTensor]:
    size = int.from_bytes(data[:8], "little")
    header = parse_json(data[8 : 8 + size])
    with safe_open(path, "np"):  # raises if tensors overlap
        pass
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in DTYPES:
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        numbers = np.frombuffer(memoryview(data)[begin:end], DTYPES[entry["dtype"]])
        in_file = numbers.reshape(entry["shape"])
        tensors[name] = StoredTensor(name, in_file.copy(), in_file)
    return tensors


@dataclass(frozen=True)
class _View:
    """A tensor as a pickle describes it: a view of a storage."""

    key: str
    dtype: np.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, numbers: np.ndarray) -> np.ndarray:
        last = self.offset + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        if (math.prod(self.size) and not 0 <= self.offset <= last < numbers.size) or min(self.stride, default=0) < 0:
            raise ValueError(f"a tensor lies outside of its storage {self.key!r}")
        steps = [step * numbers.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(numbers[self.offset :], self.size, steps)


class _Other(dict[Any, Any]):
    """Replaces any other object of a pickle: accepts every call and does nothing."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, _: Any) -> None:
        pass

    extend = add = append


class _TensorPickle(pickle.Unpickler):
    """Reads a pickle without importing anything: tensors become views, everything else inert objects."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _Dict
        if module == "torch" and name.removesuffix("Storage") in TORCH:
            return DTYPES[TORCH[name.removesuffix("Storage")]]
        if module == "torch" and name in TORCH_DTYPES:
            return DTYPES[TORCH_DTYPES[name]]
        return _MAKERS.get((module, name), _Other)

    def persistent_load(self, pid: Any) -> Any:
        return pid


class _Dict(dict[Any, Any]):
    """An OrderedDict without attributes, such as a state_dict's _metadata."""

    def __setstate__(self, state: Any) -> None:
        pass


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *options: Any) -> Any:
    _, storage_dtype, key, *_ = storage
    dtype = next((option for option in options if isinstance(option, np.dtype)), storage_dtype)
    return _View(str(key), dtype, int(offset), tuple(size), tuple(stride)) if isinstance(dtype, np.dtype) else _Other()


_MAKERS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *_: data,
    ("torch._tensor", "_rebuild_from_type_v2"): lambda make, _, arguments, *__: make(*arguments),
}


def _dicts(checkpoint: Any) -> Iterator[dict[str, _View]]:
    """Yield the dicts of tensors by name in a checkpoint, each before those that it holds."""
    stack, seen = [checkpoint], set[int]()
    while stack:
        value = stack.pop()
        if id(value) in seen or not isinstance(value, dict | list | tuple):
            continue
        seen.add(id(value))
        parts: Any = value
        if isinstance(value, dict):
            views = {name: view for name, view in value.items() if isinstance(view, _View) and isinstance(name, str)}
            if views:
                yield views
            parts = [*value.values(), *([value.state] if isinstance(value, _Other) else [])]
        stack.extend(reversed(parts))


def _data_offset(data: bytearray, info: zipfile.ZipInfo) -> int:
    """Return where an entry's bytes begin; its local header may have other extra fields than the directory."""
    name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
    return info.header_offset + 30 + int(name) + int(extra)


def _update_checksums(data: bytearray) -> None:
    """Update each entry's CRC-32: in the directory, in its header, and in the data descriptor if one follows."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    record = archive.start_dir
    for info in archive.infolist():
        begin = _data_offset(data, info)
        end = begin + info.compress_size
        crc = zlib.crc32(memoryview(data)[begin:end])
        crc_offsets = [record + 16]
        if not info.flag_bits & 8:
            crc_offsets.append(info.header_offset + 14)
        elif data[end : end + 4] == b"PK\x07\x08":
            crc_offsets.append(end + 4)
        if info.compress_type == zipfile.ZIP_STORED:
            for offset in crc_offsets:
                struct.pack_into("<I", data, offset, crc)
        name, extra, comment = struct.unpack_from("<HHH", data, record + 28)
        record += 46 + name + extra + comment
