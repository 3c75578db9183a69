"""Files of a PyTorch state_dict, .safetensors and what torch.save writes: tensors by name, written over in place.

Neither needs torch, nor runs what a file holds: of a pickle, only what tensors are made of is understood.
"""

import io
import json
import math
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ortpipe.errors import ModelError
from ortpipe.files import atomic_write
from ortpipe.graph.origins import Origin

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
TORCH = {"Double": "F64", "Float": "F32", "Half": "F16", "BFloat16": "BF16"}  # …Storage
TORCH_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
AGAIN = "Save the state_dict again: torch.save(model.state_dict(), FILE), or safetensors.torch.save_file."


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A float tensor of a state_dict."""

    name: str  # the first one of those that share its numbers
    array: np.ndarray = field(repr=False)
    stored: np.ndarray = field(repr=False)  # the same numbers where they lie in the file's bytes


class StateDict:
    """Tensors by name, as `decide` looks for them."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self.tensors = tensors

    def find(self, name: str, origin: Origin | None) -> StoredTensor | None:
        """Return the tensor of a parameter's name, or of the initializer's that it was read from."""
        if origin is not None and "initializer" not in origin:
            return None
        return self.tensors.get(name if origin is None else origin["initializer"])

    def values(self, name: str) -> np.ndarray:
        """Return a tensor's array (KeyError: there is none of that name)."""
        if name not in self.tensors:
            raise KeyError(f"there is no {name!r}")
        return self.tensors[name].array


class StateDictFile:
    """A file's bytes; what is written to its tensors is saved with everything else as it is.

    Raises:
        ModelError: it is missing, damaged, or of another form.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ModelError("The file must exist.", got=path, fix="Check the path.")
        self.path, self._bytes = path, bytearray(path.read_bytes())
        try:
            if path.suffix == ".safetensors":
                self.candidates = [_safetensors(self._bytes)]
            else:
                self.candidates = list(self._torch())
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, struct.error) as error:
            got = f"{path}: {type(error).__name__}: {error}"
            raise ModelError("The file must hold a state_dict.", got=got, fix=AGAIN) from error
        except (zipfile.BadZipFile, pickle.UnpicklingError) as error:
            raise ModelError("The file must hold a state_dict.", got=f"{path}: {error}", fix=AGAIN) from error

    def holding(self, names: set[str]) -> StateDict:
        """Return the one dict of tensors with all of these names, however deep in a checkpoint; or the largest.

        Where a wrapper (DataParallel, torch.compile) has put a prefix in front of each name, it is left out.
        """
        named = [_without_prefix(one, names) for one in self.candidates]
        whole = [one for one in named if names <= set(one)]
        if len(whole) > 1:
            got = f"{self.path}: {len(whole)} dicts of tensors with these names"
            raise ModelError("The weights have one place in the file.", got=got, fix=AGAIN)
        if not whole and not self.candidates:
            got = f"{self.path}: no dict of float tensors"
            raise ModelError("The file must hold a state_dict.", got=got, fix=AGAIN)
        return StateDict(whole[0] if whole else max(self.candidates, key=lambda one: len(names & set(one))))

    def save(self, output: Path) -> None:
        """Write the file with what its tensors are now; the checksums of a zip's entries are those of the new bytes."""
        if self.path.suffix != ".safetensors":
            _renew_checksums(self._bytes)
        atomic_write(output, bytes(self._bytes))

    def _torch(self) -> Iterator[dict[str, StoredTensor]]:
        """Yield the dicts of tensors in a file that torch.save wrote."""
        archive = zipfile.ZipFile(io.BytesIO(self._bytes))
        [program] = [name for name in archive.namelist() if name.endswith("data.pkl")]
        root = program.removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")
        reader = _TensorPickle(io.BytesIO(archive.read(program)))
        tensors: dict[tuple[Any, ...], StoredTensor] = {}
        for stored in _dicts(reader.load(), set()):
            found = {}
            for name, view in stored.items():
                info = archive.getinfo(f"{root}data/{view.key}")
                if info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("its entries are compressed")
                place = (view.key, view.dtype, view.offset, view.size, view.stride)
                if place not in tensors:
                    start = _start(self._bytes, info)
                    numbers = np.frombuffer(memoryview(self._bytes)[start : start + info.file_size], view.dtype)
                    there = view.of(numbers)
                    tensors[place] = StoredTensor(name, there.copy(), there)
                found[name] = tensors[place]
            yield found


def _without_prefix(tensors: dict[str, StoredTensor], names: set[str]) -> dict[str, StoredTensor]:
    """Return tensors by what they are called behind a prefix of all of them, if they then have all names."""
    if names <= set(tensors):
        return tensors
    first = min(names, default="")
    for prefix in sorted({name.removesuffix(first) for name in tensors if name.endswith(first)}):
        if all(name.startswith(prefix) for name in tensors) and all(prefix + name in tensors for name in names):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _safetensors(data: bytearray) -> dict[str, StoredTensor]:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, said in header.items():
        if name == "__metadata__" or said["dtype"] not in DTYPES:
            continue
        begin, end = (8 + size + place for place in said["data_offsets"])
        numbers = np.frombuffer(memoryview(data)[begin:end], DTYPES[said["dtype"]])
        there = numbers.reshape(said["shape"])
        tensors[name] = StoredTensor(name, there.copy(), there)
    return tensors


@dataclass(frozen=True)
class _View:
    """A tensor as a pickle says it: numbers of a storage."""

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
    """Whatever else a pickle makes: it takes everything and does nothing."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, _: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        pass

    def add(self, _: Any) -> None:
        pass


class _TensorPickle(pickle.Unpickler):
    """Reads a pickle without importing anything: tensors are views, and everything else is inert."""

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
    """An OrderedDict, whose attributes, such as a state_dict's _metadata, play no part."""

    def __setstate__(self, state: Any) -> None:
        pass


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Any:
    _, kind, key, *_ = storage
    dtype = next((one for one in rest if isinstance(one, np.dtype)), kind)
    return _View(str(key), dtype, int(offset), tuple(size), tuple(stride)) if isinstance(dtype, np.dtype) else _Other()


_MAKERS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *_: data,
    ("torch._tensor", "_rebuild_from_type_v2"): lambda make, _, arguments, *__: make(*arguments),
}


def _dicts(value: Any, seen: set[int]) -> Iterator[dict[str, _View]]:
    """Yield what a checkpoint holds as dicts of tensors by name, itself first."""
    if id(value) in seen or not isinstance(value, dict | list | tuple):
        return
    seen.add(id(value))
    parts: Any = value
    if isinstance(value, dict):
        views = {name: one for name, one in value.items() if isinstance(one, _View) and isinstance(name, str)}
        if views:
            yield views
        parts = [*value.values(), *([value.state] if isinstance(value, _Other) else [])]
    for part in parts:
        yield from _dicts(part, seen)


def _start(data: bytearray, info: zipfile.ZipInfo) -> int:
    """Return where an entry's bytes begin: its local header may have other extra fields than the directory."""
    name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
    return info.header_offset + 30 + int(name) + int(extra)


def _renew_checksums(data: bytearray) -> None:
    """Write each entry's CRC-32 anew, in the directory, in its header, and behind it where a descriptor follows."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    place = archive.start_dir
    for info in archive.infolist():
        begin = _start(data, info)
        end = begin + info.compress_size
        crc = zlib.crc32(memoryview(data)[begin:end])
        places = [place + 16]
        if not info.flag_bits & 8:
            places.append(info.header_offset + 14)
        elif data[end : end + 4] == b"PK\x07\x08":
            places.append(end + 4)
        if crc != info.CRC and info.compress_type == zipfile.ZIP_STORED:
            for one in places:
                struct.pack_into("<I", data, one, crc)
        name, extra, comment = struct.unpack_from("<HHH", data, place + 28)
        place += 46 + name + extra + comment
