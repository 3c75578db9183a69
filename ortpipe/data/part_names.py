"""The parts that a column of the data names."""

from typing import Any

import numpy as np

from ortpipe.data.config import PARTS
from ortpipe.data.position import Position
from ortpipe.errors import DataError, nearest


def check_parts(codes: np.ndarray, words: Any, column: str, position: Position) -> None:
    """Reject a split column that holds another word than a part's name (code -1)."""
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        [word] = words[row : row + 1].tolist()
        rule, fix = "split.column may hold only train, validation and test.", nearest(str(word), PARTS)
        raise DataError(rule, got=f"{word!r} in column {column!r}, {position(row)}", fix=fix)
