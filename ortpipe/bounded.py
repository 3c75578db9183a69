"""Read files that others wrote: regular files below a folder, with bounds on bytes and depth.

A value that exceeds a bound raises ValueError, with the bound in its text.
"""

import errno
import json
import os
import pickletools
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml

MUTABLE = ([pickletools.pylist], [pickletools.pydict], [pickletools.pyset])
TEXT = 2**25  # bytes of a record
MOST_BYTES = 2**30  # bytes of any other file that is read at once, and of decompressed content
DEPTH = 100  # of nested lists and mappings
VALUES = 2**22  # of a JSON text or a pickle
EVENTS = 10**5  # values of a YAML text, each of which takes a hundred times as long
HUGE = 1000  # weight of an integer of more than 64 bits: any number of them may have one hash
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast; PyYAML may be built without it


def files_below(folder: Path, name: str = "") -> Iterator[Path]:
    """Yield the regular files below a folder, in order; with `name`, only that file, or those of that folder.

    Links, pipes, sockets and devices are skipped, and so is the target of a link. A name that leaves the folder
    has no files.
    """
    return filter(_is_regular, _below(folder, name))


def all_regular(folder: Path, name: str) -> bool:
    """Return whether nothing below a folder's folder of this name is left out by `files_below`."""
    return all(map(_is_regular, _below(folder, name)))


def _below(folder: Path, name: str) -> Iterator[Path]:
    """Yield every path at or below a name, except folders; if one of its parts is a link, yield only the link."""
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/") or "\0" in name:
        return
    place = folder
    for part in parts:
        place = place / part
        if place.is_symlink():
            yield place
            return
    if not place.is_dir():
        yield place
    for root, folders, names in os.walk(place):
        folders.sort()
        links = [name for name in folders if Path(root, name).is_symlink()]
        yield from (Path(root, name) for name in sorted([*names, *links]))


def has_file(folder: Path, name: str) -> bool:
    """Return whether a folder has a regular file of this name."""
    return next(files_below(folder, name), None) == folder / name


def file_below(folder: Path, name: str) -> Path:
    """Return the path of a regular file below a folder.

    Raises:
        OSError: there is none, or it is a folder.
        ValueError: it or a folder above it is a link, or it is no regular file.
    """
    file = folder / name
    if has_file(folder, name):
        return file
    if os.path.lexists(file) and not file.is_dir():
        raise ValueError(f"{file} is a link, or no regular file of the folder")
    code = errno.EISDIR if file.is_dir() else errno.ENOENT
    raise OSError(code, os.strerror(code), str(file))


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def read(file: Path, most: int = MOST_BYTES, *, end: bool = False) -> bytes:
    """Return the bytes of a regular file; a pipe, which would block, raises ValueError, as a larger file does.

    With `end`, a larger file gives its last bytes.
    """
    with open(file, "rb", opener=_without_waiting) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{file} is no regular file")
        if end:
            stream.seek(max(0, status.st_size - most))
        else:
            check_size(status.st_size, most)
        return stream.read(min(status.st_size, most))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # opening a pipe would wait for its writer


def read_below(folder: Path, name: str, most: int = TEXT) -> bytes:
    """Return the bytes of a regular file below a folder; raises as `file_below` and `read`."""
    return read(file_below(folder, name), most)


def check_size(size: int, most: int = MOST_BYTES) -> None:
    """Raise ValueError if content has more bytes than the bound."""
    if size > most:
        raise ValueError(f"it has more than {most:,} bytes")


def check_depth(value: Any) -> None:
    """Raise ValueError if lists and mappings are nested deeper than the bound."""
    level = [value]
    for _ in range(DEPTH + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [part for item in containers for part in (item.values() if isinstance(item, dict) else item)]
    raise ValueError(f"it is nested more than {DEPTH} deep")


def parse_json(text: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text."""
    content = text.encode() if isinstance(text, str) else text
    _check_count(sum(map(content.count, (b",", b"[", b"{"))), VALUES)
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEPTH} deep") from None
    check_depth(value)
    return value


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text."""
    check_yaml(text)
    value = yaml.load(text, LOADER)
    check_depth(value)
    return value


def check_yaml(text: str) -> None:
    """Raise ValueError if a YAML text is nested deeply or has many values, counting those that an alias repeats."""
    count, levels, counts = 0, list[tuple[str | None, int]](), dict[str | None, int]()
    for event in yaml.parse(text, LOADER):
        if isinstance(event, yaml.AliasEvent):
            count += counts.get(event.anchor, EVENTS)  # within its own value, it is endless
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = levels.pop()
            counts[anchor] = count - before
        elif isinstance(event, yaml.CollectionStartEvent):
            levels.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.ScalarEvent):
            counts[event.anchor] = 1
            count += 1
        _check_count(count, EVENTS)
        if len(levels) > DEPTH:
            raise ValueError(f"it is nested more than {DEPTH} deep")


def check_pickle(program: bytes | IO[bytes]) -> None:
    """Raise ValueError if a pickle would take much memory, or much time or a deep recursion to hash an object.

    An object weighs as much as its parts, each as often as it occurs: the hash of a tuple visits all of them each time.
    """
    stack, memo, total = list[int](), dict[int | None, int](), 0  # weights; that of a mark is 0
    for opcode, argument, _ in pickletools.genops(program):
        before, after, parts = opcode.stack_before, opcode.stack_after, list[int]()
        if opcode.name == "MEMOIZE" or opcode.name.endswith("PUT"):
            memo[len(memo) if argument is None else argument] = stack[-1]
            continue
        if pickletools.markobject in before:
            while part := stack.pop():
                parts.append(part)
            before = before[: before.index(pickletools.markobject)]
        parts += [stack.pop() for _ in before]
        if opcode.name.endswith("GET"):
            weight = memo[argument]
        elif after == [pickletools.markobject]:
            weight = 0
        elif after in MUTABLE:
            weight = 1  # they have no hash
        else:
            weight = 1 + sum(parts) + HUGE * (isinstance(argument, int) and argument.bit_length() > 64)
        stack += [weight] * len(after)
        total += weight
        _check_count(total, VALUES)


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise ValueError(f"it has more than {most:,} values")


def inflate(data: bytes, most: int = MOST_BYTES) -> bytes:
    """Return the content of data that zlib compressed."""
    stream = zlib.decompressobj()
    content = stream.decompress(data, most + 1)
    check_size(len(content), most)
    if not stream.eof:
        raise ValueError("its compressed data end too early")
    return content


def check_archive(archive: zipfile.ZipFile, most: int = MOST_BYTES) -> None:
    """Raise ValueError if a zip file's compressed entries have more bytes together, decompressed, than the bound."""
    entries = [entry for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
    check_size(sum(entry.file_size for entry in entries), most)
