"""Tensors of an .onnx file by their byte ranges: read, and overwritten in the encoding that they have there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx

from ortpipe.errors import ModelError
from ortpipe.graph.wire import BYTES, VARINT, Edit, Field, fields, varint

# Numbers of fields in onnx.proto.
GRAPH, NODE, INITIALIZER = 7, 1, 5
INPUT, OUTPUT, ATTRIBUTE = 1, 2, 5
ATTRIBUTE_NAME, ATTRIBUTE_FLOAT, ATTRIBUTE_TENSOR, ATTRIBUTE_FLOATS = 1, 2, 5, 7
ATTRIBUTE_GRAPHS = (6, 11)
TENSOR_NAME, RAW, EXTERNAL = 8, 9, 13
NUMBERS = (RAW, 4, 5, 7, 10, 11)  # or float_data, int32_data, int64_data, double_data, uint64_data
FLOAT_DATA, DOUBLE_DATA = 4, 10
KEY, VALUE = 1, 2


@dataclass(frozen=True)
class ExternalPart:
    """A tensor in a file of external data."""

    location: str
    offset: int
    size: int  # in bytes
    place: Field  # the location's field in the .onnx file
    checksum: Field | None  # the field with the data file's SHA-1, if the file has it


@dataclass(frozen=True, eq=False)
class Slot:
    """The numbers of a tensor or a float attribute in an .onnx file."""

    name: str
    array: np.ndarray = field(repr=False)
    number_fields: tuple[Field, ...]  # the protobuf fields of its numbers, one or several in a row
    fixed: bool  # each number takes its type's size in bytes (not a varint)
    stored: ExternalPart | None = None


class OnnxBytes:
    """An .onnx file as bytes, with the positions of its weights.

    Raises:
        ModelError: the file is missing, damaged, or refers to data outside its folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            rule, fix = "The .onnx file must exist.", "Check the path; relative ones start at the current folder."
            raise ModelError(rule, got=path, fix=fix)
        self.path, self.data = path, path.read_bytes()
        self._initializers: dict[str, list[Field]] = {}
        self._nodes: dict[str, list[Field]] = {}
        for graph in (part for part in fields(self.data) if part.number == GRAPH and part.kind == BYTES):
            self._index(graph)
        if not self._nodes:
            fix = "Name the file that the model was converted from."
            raise ModelError("The file must hold an ONNX model with at least one node.", got=f"{path}: none", fix=fix)

    def _index(self, graph: Field) -> None:
        """Record a graph's initializers and nodes by name, and those of the graphs inside it."""
        for child in (child for child in fields(self.data, graph) if child.kind == BYTES):
            if child.number == INITIALIZER:
                self._initializers.setdefault(self._text(child, TENSOR_NAME), []).append(child)
            elif child.number == NODE:
                self._nodes.setdefault(self._text(child, OUTPUT), []).append(child)
                for attribute in (part for part in fields(self.data, child) if part.number == ATTRIBUTE):
                    for inner in (part for part in fields(self.data, attribute) if part.number in ATTRIBUTE_GRAPHS):
                        self._index(inner)

    def find(self, name: str, origin: Mapping[str, Any] | None) -> Slot | None:
        """Return the slot that an origin names; without an origin, the initializer of that name."""
        if origin is None:
            return self.initializer(name)
        if "initializer" in origin:
            return self.initializer(origin["initializer"])
        if "node" not in origin:  # the origin is an estimator's attribute
            return None
        if "attribute" in origin:
            return self.attribute(origin["node"], origin["attribute"])
        return self.input(origin["node"], origin["input"])

    def initializer(self, name: str) -> Slot | None:
        """Return the initializer of that name, None if there are several (in branches) or none."""
        places = self._initializers.get(name, ())
        return self._tensor(name, places[0]) if len(places) == 1 else None

    def values(self, name: str) -> np.ndarray:
        """Return an initializer's array (KeyError: there is none of that name)."""
        slot = self.initializer(name)
        if slot is None:
            raise KeyError(f"the file has no {name!r}")
        return slot.array

    def attribute(self, node: str, name: str) -> Slot | None:
        """Return an attribute of floats, or a tensor, of the node whose first output has that name."""
        names = ("value", "value_floats", "value_float") if name == "value" else (name,)  # of a Constant
        for attribute in self._parts(node, ATTRIBUTE):
            if self._text(attribute, ATTRIBUTE_NAME) not in names:
                continue
            inner = list(fields(self.data, attribute))
            tensor = next((part for part in inner if part.number == ATTRIBUTE_TENSOR), None)
            if tensor is not None:
                return self._tensor(f"{name} of {node}", tensor)
            number_fields = tuple(part for part in inner if part.number in (ATTRIBUTE_FLOAT, ATTRIBUTE_FLOATS))
            array = np.frombuffer(b"".join(self.data[part.begin : part.end] for part in number_fields), "<f4")
            shape = () if number_fields and number_fields[0].number == ATTRIBUTE_FLOAT else array.shape
            return Slot(f"{name} of {node}", array.reshape(shape), number_fields, fixed=True) if number_fields else None
        return None

    def input(self, node: str, place: int) -> Slot | None:
        """Return the slot of a node's input number `place`: an initializer's, or a Constant node's."""
        names = [self._read(text) for text in self._parts(node, INPUT)]
        return (self.initializer(names[place]) or self.attribute(names[place], "value")) if place < len(names) else None

    def _parts(self, node: str, number: int) -> list[Field]:
        """Return the node's fields of that number; `node` names its first output, [] if that is not unique."""
        places = self._nodes.get(node, ())
        return [part for part in fields(self.data, places[0]) if part.number == number] if len(places) == 1 else []

    def edits(self, slot: Slot, array: np.ndarray) -> Iterator[Edit]:
        """Yield the edits that give a slot of this file another array of the same type and shape.

        The numbers are spread over the existing fields: packed, one in each, or in pieces.
        """
        little, place = array.astype(array.dtype.newbyteorder("<"), copy=False), 0
        if slot.fixed:
            numbers = little.tobytes()
            for part in slot.number_fields:
                yield Edit(part, numbers[place : (place := place + part.end - part.begin)])
            return
        plain = little if little.dtype.kind in "iu" else little.view(f"<u{little.dtype.itemsize}")
        codes = [varint(number) for number in plain.ravel().tolist()]
        for part in slot.number_fields:
            count = 1 if part.kind == VARINT else sum(byte < 0x80 for byte in self.data[part.begin : part.end])
            yield Edit(part, b"".join(codes[place : (place := place + count)]))

    def _tensor(self, name: str, place: Field) -> Slot:
        tensor = onnx.TensorProto.FromString(self.data[place.begin : place.end])
        stored = self._stored(tensor, place)
        number_fields = tuple(part for part in fields(self.data, place) if part.number in NUMBERS)
        fixed = not number_fields or number_fields[0].number in (RAW, FLOAT_DATA, DOUBLE_DATA)
        if stored is not None:
            with open(self.data_file(stored.location), "rb") as file:
                file.seek(stored.offset)
                tensor.raw_data = file.read(stored.size)
            tensor.data_location = tensor.DEFAULT
            del tensor.external_data[:]
        try:
            return Slot(name, onnx.numpy_helper.to_array(tensor), number_fields, fixed, stored)
        except ValueError as error:
            fix = "The file, or its external data, is damaged."
            raise ModelError(
                "A tensor must have as many bytes as its shape needs.", got=f"{name!r}: {error}", fix=fix
            ) from error

    def _stored(self, tensor: onnx.TensorProto, place: Field) -> ExternalPart | None:
        if tensor.data_location != tensor.EXTERNAL:
            return None
        entries = {entry.key: entry.value for entry in tensor.external_data}
        value_fields: dict[str, Field] = {}
        for entry in (part for part in fields(self.data, place) if part.number == EXTERNAL):
            value_fields |= {self._text(entry, KEY): part for part in fields(self.data, entry) if part.number == VALUE}
        item = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
        size = int(entries.get("length", math.prod(tensor.dims) * item))
        return ExternalPart(
            entries["location"],
            int(entries.get("offset", 0)),
            size,
            value_fields["location"],
            value_fields.get("checksum"),
        )

    def data_file(self, location: str) -> Path:
        """Return the path of a file of external data; ModelError: it is outside the folder of the .onnx file."""
        folder = self.path.parent.resolve()
        file = (folder / location).resolve()
        if not (file.is_relative_to(folder) and file.is_file()):
            actual = f"{location!r} of {self.path}"
            raise ModelError(
                "External data must lie in the folder of the .onnx file.",
                got=actual,
                fix="Keep the model's files together.",
            )
        return file

    def moved(self, places: Mapping[Path, str | None], sha1: Mapping[Path, str]) -> Iterator[Edit]:
        """Yield the edits for data files that are rewritten: the location with a prefix, and the SHA-1."""
        for message in (part for places in self._initializers.values() for part in places):
            stored = self._stored(onnx.TensorProto.FromString(self.data[message.begin : message.end]), message)
            if stored is None or (file := self.data_file(stored.location)) not in places:
                continue
            if (prefix := places[file]) is not None:
                yield Edit(stored.place, renamed(stored.location, prefix).encode())
            if stored.checksum is not None:
                yield Edit(stored.checksum, sha1[file].encode())

    def _text(self, message: Field, number: int) -> str:
        """Return a message's first string field of that number, or ""."""
        return next((self._read(part) for part in fields(self.data, message) if part.number == number), "")

    def _read(self, text: Field) -> str:
        return self.data[text.begin : text.end].decode(errors="replace")


def renamed(location: str, prefix: str) -> str:
    """Return a location with a prefix in front of the file's name.

    >>> renamed("weights/w.bin", "new.")
    'weights/new.w.bin'
    """
    place = PurePosixPath(location)
    return str(place.with_name(prefix + place.name))
