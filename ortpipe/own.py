"""A user's own classes and functions: their import paths, and the errors that they raise."""

import contextlib
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from ortpipe.errors import OrtpipeError

PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_path(name: object) -> bool:
    """Return whether a name is an import path.

    >>> is_path("mypackage.losses:Tilted"), is_path("l2"), is_path("C:\\\\loss.onnx")
    (True, False, False)
    """
    return isinstance(name, str) and PATH.fullmatch(name) is not None


def path_of(part: Any) -> str:
    """Return the import path of a function or a class."""
    return f"{part.__module__}:{part.__qualname__}"


def is_own(part: Any) -> bool:
    """Return whether a function or a class is a user's own, not ortpipe's."""
    return str(getattr(part, "__module__", "")).partition(".")[0] != __name__.partition(".")[0]


@contextlib.contextmanager
def blamed(part: Any, noun: str, error: type[OrtpipeError]) -> Iterator[None]:
    """Add a user's own part, and the line, to the errors that it raises."""
    try:
        yield
    except OrtpipeError as cause:
        if is_own(part):
            cause.add_note(f"  in: the {noun} {path_of(part)}")
        raise
    except Exception as cause:
        if not is_own(part):
            raise
        actual = f"{type(cause).__name__}: {cause}{location(cause, part)}"
        raise error(f"The {noun} {path_of(part)} must run.", got=actual, fix="Correct it.") from cause


def location(error: Exception, part: Any = None) -> str:
    """Return the last line in the part's file, or in any file, of an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    file = None if part is None else getattr(sys.modules.get(part.__module__), "__file__", None)
    for frame in reversed(frames):
        if file is None or frame.filename == file:
            return f", in line {frame.lineno} of {frame.filename}: {frame.line}"
    return ""
