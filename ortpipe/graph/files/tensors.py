"""Named arrays in a .safetensors file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import ml_dtypes  # noqa: F401  NumPy then knows bfloat16 and float8 by name
import numpy as np
from safetensors import SafetensorError, safe_open

from ortpipe.bounded import parse_json
from ortpipe.errors import ModelError
from ortpipe.graph.core.apart import bytes_of

CODES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}  # dtype → safetensors' code
CODES |= {f"{sign}int{bits}": f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
DTYPES = {code: name for name, code in CODES.items()}


def write_tensors(arrays: Mapping[str, np.ndarray], file: IO[bytes], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays as a .safetensors file, one after the other.

    The library's `save` would hold two copies of all arrays; its `save_file` makes the file readable by its owner only.
    """
    header, begin = dict[str, object](), 0
    if metadata:
        header["__metadata__"] = dict(metadata)
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # so that each is aligned
    for name in names:
        dtype, end = arrays[name].dtype.name, begin + arrays[name].nbytes
        if dtype not in CODES:
            rule = "An artifact's tensors must hold numbers or booleans."
            raise ModelError(rule, got=f"{name!r} of {dtype}", fix="Leave it out, or write it as numbers.")
        header[name] = {"dtype": CODES[dtype], "shape": arrays[name].shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        file.write(bytes_of(arrays[name]))


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a .safetensors file, each array into immutable bytes, and its metadata.

    The library would hold two copies, and does not read all these types as NumPy arrays.
    """
    _check_header(path)
    arrays = dict[str, np.ndarray]()
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = parse_json(file.read(size))
        metadata = header.pop("__metadata__", {})
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype = np.dtype(DTYPES[entry["dtype"]])
            file.seek(8 + size + begin)
            raw = np.empty(0, np.uint8) if begin == end else np.frombuffer(file.read(end - begin), np.uint8)
            arrays[name] = raw.view(dtype.newbyteorder("<")).reshape(entry["shape"])
    return arrays, metadata


def _check_header(path: Path) -> None:
    try:
        with safe_open(path, "np"):
            pass
    except (OSError, SafetensorError):  # without an errno for any cause
        path.open("rb").close()  # raises with an errno if the file cannot be opened now
        with safe_open(path, "np"):  # raises if the file is damaged
            pass
