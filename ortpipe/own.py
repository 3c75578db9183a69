"""A user's own classes and functions: their import paths, and the errors that they raise."""

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ortpipe.doors import later
from ortpipe.errors import OrtpipeError

if TYPE_CHECKING:
    from ortpipe.own_code import error_in
else:
    later(__name__)

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
    except Exception as cause:
        if not is_own(part):
            raise
        if not isinstance(cause, OrtpipeError):
            raise error_in(part, f"The {noun} {path_of(part)} must run.", error, cause) from cause
        cause.add_note(f"  in: the {noun} {path_of(part)}")
        raise
