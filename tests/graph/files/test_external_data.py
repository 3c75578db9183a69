"""Files that ask for data beside them: what is outside, linked, or not plain is never read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortpipe.errors import ModelError
from ortpipe.graph.files.serial import files, read
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert

TEXT = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 2] X) => (float[N, 2] Y) { Y = MatMul(X, w) }"""
WEIGHT = np.array([[1, 2], [3, 4]], np.float32)


def written(folder: Path, **entries: object) -> Path:
    """Write a model whose weight is in another file, as these entries say."""
    model = onnx.parser.parse_model(TEXT)
    tensor = model.graph.initializer.add(name="w", dims=WEIGHT.shape, data_type=onnx.TensorProto.FLOAT)
    tensor.data_location = tensor.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def place(tmp_path):
    """Return a folder with a file of data, beside another that lies outside."""
    folder = tmp_path / "inside"
    (folder / "sub").mkdir(parents=True)
    for file in (tmp_path / "secret", folder / "data", folder / "sub" / "data"):
        file.write_bytes(WEIGHT.tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "near").symlink_to(folder / "data")
    (folder / "linked").symlink_to(tmp_path)
    os.link(tmp_path / "secret", folder / "hard")
    os.mkfifo(folder / "pipe")
    (folder / "short").write_bytes(b"1234")
    return folder


# what it is → the location, and other entries; {} is the folder above
HOSTILE = {
    "traversal": ("../secret", {}),
    "traversal through a folder": ("sub/../../secret", {}),
    "absolute": ("{}/secret", {}),
    "a link": ("link", {}),
    "a link to a neighbour": ("near", {}),
    "a folder that is a link": ("linked/secret", {}),
    "a hard link": ("hard", {}),
    "a folder": ("sub", {}),
    "a pipe": ("pipe", {}),
    "nothing": ("", {}),
    "a file that is not there": ("ghost", {}),
    "a file that is too short": ("short", {}),
    "an offset before the file": ("data", {"offset": -8}),
    "an offset behind the file": ("data", {"offset": 1 << 40}),
    "an offset that is no number": ("data", {"offset": "x"}),
    "a length of more than there is": ("data", {"length": 1 << 40}),
    "a length of less than is needed": ("data", {"length": 4}),
    "an attribute of Python's": ("data", {"__class__": "x"}),
    "a method of the reader": ("data", {"__init__": "x"}),
    "an attribute that is none": ("data", {"trust": "true"}),
}
HARMLESS = ("an attribute of Python's", "a method of the reader", "an attribute that is none")


@pytest.mark.parametrize("name", HOSTILE)
def test_data_that_are_not_plainly_beside_the_model_are_refused(name, place, recwarn):
    location, entries = HOSTILE[name]
    path = written(place, location=location.format(place.parent), **entries)
    allowed = {path, *(place / file for file in ("data", "sub/data", "hard", "short", "sub"))}
    assert set(files(path)) <= allowed
    uses = (read, convert, lambda p: convert(None, ConvertConfig(OnnxFile(str(p)))))
    for use in uses:
        if name in HARMLESS:  # which the reader leaves alone, with a warning
            use(path)
            continue
        with pytest.raises(ModelError, match=r"external data|as many bytes"):
            use(path)


def test_data_beside_the_model_are_read(place):
    for location, entries in (("data", {}), ("sub/data", {"offset": 0, "length": 16})):
        [tensor] = read(written(place, location=location, **entries)).graph.initializer
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), WEIGHT)
