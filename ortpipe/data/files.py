"""The files of a source, by part of the data: one file, or those of a folder."""

from pathlib import Path

from ortpipe.data.faults import raise_all
from ortpipe.data.parts import PARTS, SplitConfig
from ortpipe.errors import DataError

Stamp = tuple[int, int, int] | None  # shows whether a file was rewritten: inode, size and modification time


def files_of(path: str, endings: tuple[str, ...]) -> list[Path]:
    """Return the file, or a folder's files with these endings, sorted by name; raise if there are none."""
    place = Path(path)
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise DataError("The data path must exist.", key="path", got=path, fix="Check {key} and the split's files.")
    files = sorted(p for p in place.iterdir() if p.name.endswith(endings) and not p.name.startswith("."))
    if pipe := next((file for file in files if not file.is_file()), None):  # opening a pipe would wait
        rule = "A data folder must hold regular files."
        raise DataError(rule, key="path", got=pipe, fix="Remove it, or name the files.")
    if not files:
        rule = f"A data folder must hold files that end in {' or '.join(endings)}."
        raise DataError(rule, key="path", got=f"none in {path}", fix="Name another folder, or a file.")
    return files


def paths_of(path: str, split: SplitConfig | None) -> list[tuple[str, int | None]]:
    """Return the paths of the source and of the split, each with its part's place in `PARTS`, None if unknown."""
    files = split.files if split is not None else {}
    return [(path, 0 if files else None), *((file, PARTS.index(part)) for part, file in files.items())]


def files_with_parts(path: str, split: SplitConfig | None, endings: tuple[str, ...]) -> list[tuple[Path, int | None]]:
    """Return the files of all of these paths, each with its part's place in `PARTS`, None if unknown."""
    files, errors = list[tuple[Path, int | None]](), list[DataError]()
    for place, part in paths_of(path, split):
        try:
            files += [(file, part) for file in files_of(place, endings)]
        except DataError as error:
            errors.append(error)
    raise_all(errors)
    return files


def stamps(path: str | None, split: SplitConfig) -> dict[str, Stamp]:
    """Return the stamp of every file of a source and its split, those in folders included."""
    paths = [Path(place) for place, _ in paths_of(path, split)] if path is not None else []
    files = [file for place in paths for file in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    return {str(file): stamp(str(file)) for file in files}


def stamp(file: str) -> Stamp:
    """Return a file's stamp; None if it does not exist."""
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
