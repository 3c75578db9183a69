"""Files of a folder with labels: the names of their folders, or the columns of a CSV file."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ortpipe.bounded import TEXT, files_below, read
from ortpipe.data.faults import listed
from ortpipe.data.files import paths_of
from ortpipe.data.parts import PARTS, SplitConfig
from ortpipe.data.stream import Windowed
from ortpipe.errors import DataError, nearest
from ortpipe.settings import Catalogue

READERS: Catalogue[Any] = Catalogue(  # they import Pillow and soundfile
    "reader of files",
    {"audio": "ortpipe.data.sound_reader:SoundReader", "images": "ortpipe.data.picture_reader:PictureReader"},
)
FOLDER = "folder"  # split.column: the folders below the path are the parts


@dataclass(frozen=True)
class LabelledFile:
    """A file of one row, with its labels as text, and its part, a place in `PARTS`; None if nothing defines parts."""

    path: Path
    labels: Sequence[str]
    part: int | None


@dataclass(frozen=True, kw_only=True)
class LabelledFolder(Windowed):
    """A folder of files, each with its labels.

    Rows are in an order that follows from a hash of the files' names, which mixes the classes.

    Attributes:
        path: the folder. Without `labels`, each folder in it is a class, and all files below belong to it.
        labels: a CSV file with the column `file`, a path below `path`, and the columns of labels; null: folders are.
        label: the column of labels, or several columns of numbers.
    """

    endings: ClassVar[tuple[str, ...]]
    of_training: ClassVar[tuple[str, ...]] = ("labels", "augment", "outside")  # no settings of rows to predict

    path: str
    labels: str | None = None
    label: str | tuple[str, ...] = "label"

    def files(self, split: SplitConfig | None) -> list[LabelledFile]:
        """Return the files of the path and of the split's folders."""
        column = split.column if split is not None else None
        if self.labels is not None and split is not None and split.files:
            rule, fix = "With {key}, a column names the parts.", "Set {@data.split.column}=part, and add that column."
            raise DataError(rule, key="labels", got=f"{', '.join(split.files.values())} as a part", fix=fix)
        files = [file for path, part in paths_of(self.path, split) for file in self._below(Path(path), part, column)]
        classes = {file.labels[0] for file in files if not file.part}
        if self.labels is None and len(classes) < 2 and not Path(self.path).is_file():
            rule, fix = "{key} must hold a folder for each class.", "Add a folder for another class, or set {at}labels."
            raise DataError(rule, key="path", got=f"only {min(classes)!r} in {self.path}", fix=fix)
        return files

    def _below(self, folder: Path, part: int | None, column: str | None) -> list[LabelledFile]:
        if folder.is_file() and folder.name.endswith(self.endings):
            return [LabelledFile(folder, ("",) * len(self._columns), part)]  # a row to predict
        if not folder.is_dir():
            rule, fix = "The path of the files must be a folder.", "Check {key} and the split's folders."
            raise DataError(rule, key="path", got=str(folder), fix=fix)
        files = {file.relative_to(folder).as_posix(): file for file in visible(folder, self.endings)}
        if not files:
            rule = f"A folder must hold files that end in {', '.join(self.endings)}; links are not followed."
            raise DataError(rule, key="path", got=f"none below {folder}", fix="Name another folder.")
        listed = self._by_folder(files, column) if self.labels is None else self._by_table(files, folder, column)
        rows = [(name, LabelledFile(files[name], texts, of if part is None else part)) for name, texts, of in listed]
        return [file for _, file in sorted(rows, key=lambda row: hashlib.sha256(row[0].encode()).digest())]

    def _by_folder(self, files: Mapping[str, Path], column: str | None) -> Iterator[tuple[str, tuple[str], int | None]]:
        """Yield each file's name, its class and its part."""
        parted = column == FOLDER
        if column is not None and not parted:
            rule, fix = "Without {at}labels, split.column can only be folder.", "Set split.column=folder."
            raise DataError(rule, got=f"split.column={column}", fix=fix)
        for name, file in files.items():
            first, *others = name.split("/")[:-1] or [""]
            rule = fix = ""
            if not parted and first == "train":
                rule, fix = "A folder train is a part of the data, not a class.", "Set split.column=folder."
            elif parted and first and first not in PARTS:
                rule = "With split.column=folder, the folders of {key} must be train, validation and test."
                fix = nearest(first, PARTS)
            elif not first or (parted and not others):
                rule, fix = "A file must be in a folder named after its class.", "Move it, or set {at}labels."
            if rule:
                raise DataError(rule, key="path", got=file, fix=fix)
            yield name, (others[0] if parted else first,), PARTS.index(first) if parted else None

    def _by_table(
        self, files: Mapping[str, Path], folder: Path, column: str | None
    ) -> Iterator[tuple[str, tuple[str, ...], int | None]]:
        """Yield the name, the labels and the part of each file that the CSV file lists."""
        table = self._table(column)
        columns, seen, faults = self._columns, set[tuple[str, ...]](), list[str]()
        for number, row in table:
            name = row["file"]
            fault = {
                f"{name!r}, which is no file below {folder}": name not in files,
                f"{name!r} again": self._key(row) in seen,
                "no label": not all((row[of] or "").strip() for of in columns),
                f"the part {row[column]!r}" if column else "": column is not None and row[column] not in PARTS,
            }
            faults += [f"{words} in line {number}" for words, holds in fault.items() if holds][:1]
            seen.add(self._key(row))
        if faults:
            rule = "Each row of {key} must have another file, its labels, and a part if split.column is set."
            raise DataError(
                rule, key="labels", got=f"{listed(faults, ', ')} of {self.labels}", fix="Correct these rows."
            )
        for _, row in table:
            yield row["file"], tuple(row[of].strip() for of in columns), PARTS.index(row[column]) if column else None

    @property
    def _columns(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label

    def _key(self, row: Mapping[str, str]) -> tuple[str, ...]:
        """Return the cells in which the rows of the CSV file differ."""
        return (row["file"],)

    def _table(self, column: str | None) -> list[tuple[int, dict[str, str]]]:
        """Return the rows of the CSV file, each with the number of its line; raise if it lacks a column."""
        table = self._listed()
        for name in ("file", *self._columns, *([column] if column else [])):
            if not table or name not in table[0][1]:
                rule = "{key} must have rows, and the columns file, {at}label and split.column."
                fix = nearest(name, [of for of in table[0][1] if of]) if table else "Add rows."
                raise DataError(rule, key="labels", got=f"no {name!r} in {self.labels}", fix=fix)
        return table

    def _listed(self) -> list[tuple[int, dict[str, str]]]:
        try:
            reader = csv.DictReader(io.StringIO(read(Path(str(self.labels)), TEXT).decode("utf-8-sig")), strict=True)
            return [(reader.line_num, row) for row in reader]
        except (OSError, ValueError, csv.Error) as error:
            rule, fix = "{key} must be a CSV file in UTF-8.", "Check its path and its content."
            raise DataError(rule, key="labels", got=f"{self.labels}: {error}", fix=fix) from error


def visible(folder: Path, endings: Sequence[str]) -> list[Path]:
    """Return the files below a folder with one of these endings, without hidden files and those in hidden folders."""
    return [
        file
        for file in files_below(folder)
        if file.suffix.lower() in endings and not any(part[0] == "." for part in file.relative_to(folder).parts)
    ]
