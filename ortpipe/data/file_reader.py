"""Readers of files with labels, such as pictures and sounds: one pass checks them, later ones yield rows."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ortpipe.data.faults import changed_error, listed
from ortpipe.data.labelled_files import LabelledFile
from ortpipe.data.parts import PARTS
from ortpipe.data.reader import Labelled
from ortpipe.data.rows import Rows, row_bytes
from ortpipe.data.stream import LIMIT, Labels
from ortpipe.errors import DataError
from ortpipe.hashing import Hasher

WHOLE = re.compile(r"0|-?[1-9][0-9]*")
CODE = re.compile(r"-?0\d|.*_")  # 007 and 1_000 are no numbers


class FileReader(ABC):
    """Reads files as rows, in groups (see `Reader`); the constructors of readers read, check and hash all.

    Rows that fit in memory are read once. An error lists the first files that cannot be read.
    """

    labels: dict[str, np.ndarray | None]
    notes: tuple[str, ...] = ()

    def __init__(self, stream: bool | None, shape: Sequence[int]) -> None:
        self._stream, self._rows = stream, dict[int, list[Rows]]()
        self.row_bytes = row_bytes([(np.dtype(np.float32), (1, *shape))])

    def _learn(self, kind: str, groups: int, rule: str, fix: str) -> None:
        """Read all groups once; raise an error with this rule and fix for files that cannot be read.

        The digest depends on the kind: a piece of sounds is of one file, so of one part.
        """
        self.counts = np.zeros((groups, len(PARTS)), np.int64)
        hasher, distinct, faults = Hasher(kind), Labels(), list[str]()
        for group in range(groups):
            self._rows[group] = list(self._pieces(group, faults))
            for piece in self._rows[group]:
                part = np.zeros(len(piece), np.int64) if piece.part is None else piece.part
                self.counts[group] += np.bincount(part, minlength=len(PARTS))
                distinct.update(piece.label)
                hasher.add(piece.digest(), int(part[0]) if kind == "sounds" else part)
            if self._stream or self.counts.sum() * self.row_bytes > LIMIT:
                self._rows.clear()
        if faults:
            raise DataError(rule, key="path", got=listed(faults), fix=fix)
        self.digest, self.labels = hasher.hexdigest(), {"": distinct.values}

    @abstractmethod
    def _pieces(self, group: int, faults: list[str]) -> Iterator[Rows]:
        """Yield the rows of a group in pieces of PIECE bytes; add files that cannot be read to the faults."""

    @abstractmethod
    def read_labels(self, group: int) -> Iterator[Labelled]:
        """Yield a group's labels and parts, in one piece."""

    def pieces(self, groups: Iterable[int]) -> Iterator[Iterator[Rows]]:
        """Yield the rows of each group, in pieces."""
        for group in groups:
            yield iter(self._rows[group]) if group in self._rows else self._again(group)

    def _again(self, group: int) -> Iterator[Rows]:
        faults = list[str]()
        yield from self._pieces(group, faults)
        if faults:
            raise changed_error("; ".join(faults))


def label_array(files: Sequence[LabelledFile], *, table: bool) -> np.ndarray:
    """Return the labels of files, [N] or [N, columns]: numbers if all of a column are, otherwise text.

    Names of folders are int64 if all are whole numbers, and never floats: they are classes.
    """
    cells = [[file.labels[place] for file in files] for place in range(len(files[0].labels))]
    columns = [(_numbers_or_text if table else _whole_or_text)(texts) for texts in cells]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _whole_or_text(texts: list[str]) -> np.ndarray:
    if all(WHOLE.fullmatch(text) and abs(int(text)) < 2**63 for text in texts):
        return np.array([int(text) for text in texts], np.int64)
    return np.array(texts)


def _numbers_or_text(texts: list[str]) -> np.ndarray:
    if any(CODE.match(text) for text in texts):
        return np.array(texts)
    for number, dtype in ((int, np.int64), (float, np.float64)):
        try:
            return np.array([number(text) for text in texts], dtype)
        except ValueError:
            continue
        except OverflowError as error:
            largest = max(texts, key=lambda text: abs(int(text)))
            rule, fix = "Whole numbers of {key} must fit in 64 bits.", "Write them with a letter, if they name classes."
            raise DataError(rule, key="labels", got=largest, fix=fix) from error
    return np.array(texts)
