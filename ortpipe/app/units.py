"""Time spans and sizes as text."""

import re

import humanize

from ortpipe.errors import ConfigError

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def span(seconds: float) -> str:
    """Return a time span in words; a negative span counts as 0.

    >>> span(59), span(7300), span(3 * 86400), span(-5)
    ('59 seconds', '2 hours', '3 days', 'a moment')
    """
    return humanize.naturaldelta(max(0.0, seconds))


def size(count: float) -> str:
    """Return a number of bytes as text, in the largest fitting unit.

    >>> size(12), size(1_234_567)
    ('12 Bytes', '1.2 MB')
    """
    return humanize.naturalsize(count)


def bound(text: str) -> tuple[float | None, int | None]:
    """Parse an age, returned in seconds, or a size, returned in bytes; the other is None.

    >>> bound("30d"), bound("5GB")
    ((2592000.0, None), (None, 5000000000))
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text.strip())
    if match is not None and match[2] in SECONDS:
        return float(match[1]) * SECONDS[match[2]], None
    if match is not None and match[2].upper() in BYTES:
        return None, int(float(match[1]) * BYTES[match[2].upper()])
    raise ConfigError("A bound must be an age or a size.", got=text, fix="Write 30d, 12h, 5GB or 500MB.")
