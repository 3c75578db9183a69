"""Protobuf messages as bytes: what is not edited stays as it was, in whatever order and form it was written.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from mmap import mmap
from typing import NamedTuple

from ortpipe.errors import ModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


class Field(NamedTuple):
    """Where a field of a message stands."""

    number: int
    kind: int  # its wire type
    prefix: int  # of BYTES, where their length is written; else `begin`
    begin: int  # of its value
    end: int
    above: tuple[Field, ...]  # the messages around it, the outermost first


class Edit(NamedTuple):
    """Other bytes for a field's value."""

    field: Field
    new: bytes


def fields(data: bytes | mmap, above: Field | None = None) -> Iterator[Field]:
    """Yield the fields of a message: of all bytes, or of those that are another field's value.

    >>> data = bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69])
    >>> [(field.number, data[field.begin : field.end]) for field in fields(data)]
    [(1, b'\\x96\\x01'), (2, b'hi')]
    """
    place, end = (above.begin, above.end) if above is not None else (0, len(data))
    around = (*above.above, above) if above is not None else ()
    while place < end:
        tag, begin = number_at(data, place, end)
        prefix, kind = begin, tag & 7
        if kind == VARINT:
            stop = number_at(data, begin, end)[1]
        elif kind == BYTES:
            size, begin = number_at(data, begin, end)
            stop = begin + size
        elif kind in (FIXED32, FIXED64):
            stop = begin + (4 if kind == FIXED32 else 8)
        else:
            raise _damaged(place)
        if stop > end:
            raise _damaged(place)
        yield Field(tag >> 3, kind, prefix, begin, stop, around)
        place = stop


def number_at(data: bytes | mmap, place: int, end: int) -> tuple[int, int]:
    """Return the varint that begins at a place, and where it ends."""
    number = shift = 0
    for stop in range(place, min(end, place + 10)):
        number |= (data[stop] & 0x7F) << shift
        if data[stop] < 0x80:
            return number, stop + 1
        shift += 7
    raise _damaged(place)


def varint(number: int) -> bytes:
    """Return a number as a varint; a negative one takes ten bytes.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    number &= 2**64 - 1
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def edited(data: bytes | mmap, edits: Sequence[Edit]) -> bytes:
    """Return the bytes with other values for some fields, and for those around them the lengths that follow.

    >>> data = bytes([0x0A, 0x04, 0x12, 0x02, 0x68, 0x69])
    >>> [outer] = fields(data)
    >>> [inner] = fields(data, outer)
    >>> edited(data, [Edit(inner, b"hello")]).hex(" ")
    '0a 07 12 05 68 65 6c 6c 6f'
    """
    growth: collections.Counter[Field] = collections.Counter()
    pieces = []  # begin, end, what stands there
    for field, new in edits:
        pieces.append((field.begin, field.end, new))
        for one in (*field.above, field) if field.kind == BYTES else field.above:
            growth[one] += len(new) - (field.end - field.begin)
    for field in sorted(growth, key=lambda one: -len(one.above)):  # the lengths of inner ones may grow themselves
        if growth[field]:
            length = varint(field.end - field.begin + growth[field])
            pieces.append((field.prefix, field.begin, length))
            for one in field.above:
                growth[one] += len(length) - (field.begin - field.prefix)
    return b"".join(_joined(data, sorted(pieces)))


def _joined(data: bytes | mmap, pieces: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes]:
    place = 0
    for begin, end, new in pieces:
        yield from (data[place:begin], new)
        place = end
    yield data[place:]


def _damaged(place: int) -> ModelError:
    fix = "The file is damaged, or no .onnx file."
    return ModelError("An .onnx file is a protobuf message.", got=f"something else at byte {place}", fix=fix)
