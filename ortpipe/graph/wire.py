"""Edit protobuf messages as bytes: everything else keeps its bytes, in whatever order and form it was written.

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
    """The position of a message's field."""

    number: int
    kind: int  # its wire type
    prefix: int  # where the length of BYTES is written; else `begin`
    begin: int  # of the value
    end: int  # of the value
    above: tuple[Field, ...]  # the enclosing messages, the outermost first


class Edit(NamedTuple):
    """New bytes for a field's value."""

    field: Field
    new: bytes


def fields(data: bytes | mmap, above: Field | None = None) -> Iterator[Field]:
    """Yield the fields of a message: all bytes, or the value of the field `above`.

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
    """Return the varint that begins at `place`, and its end."""
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
    """Return the bytes with the edited values, and with the lengths of the messages around them updated.

    >>> data = bytes([0x0A, 0x04, 0x12, 0x02, 0x68, 0x69])
    >>> [outer] = fields(data)
    >>> [inner] = fields(data, outer)
    >>> edited(data, [Edit(inner, b"hello")]).hex(" ")
    '0a 07 12 05 68 65 6c 6c 6f'
    """
    growth: collections.Counter[Field] = collections.Counter()
    pieces = []  # begin, end, new bytes
    for field, new in edits:
        pieces.append((field.begin, field.end, new))
        for outer in (*field.above, field) if field.kind == BYTES else field.above:
            growth[outer] += len(new) - (field.end - field.begin)
    for field in sorted(
        growth, key=lambda outer: -len(outer.above)
    ):  # inner ones first: their length prefixes may grow, too
        if growth[field]:
            length = varint(field.end - field.begin + growth[field])
            pieces.append((field.prefix, field.begin, length))
            for outer in field.above:
                growth[outer] += len(length) - (field.begin - field.prefix)
    return b"".join(_joined(data, sorted(pieces)))


def _joined(data: bytes | mmap, pieces: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes]:
    place = 0
    for begin, end, new in pieces:
        yield from (data[place:begin], new)
        place = end
    yield data[place:]


def _damaged(place: int) -> ModelError:
    fix = "The file is damaged, or is not an .onnx file."
    return ModelError("An .onnx file must be a protobuf message.", got=f"something else at byte {place}", fix=fix)
