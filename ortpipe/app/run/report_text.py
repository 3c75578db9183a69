"""How a report writes times, numbers, and text that others wrote."""

import math
import re


def seconds(value: float) -> str:
    """Return a time as people say it.

    >>> seconds(0.0042), seconds(1.26), seconds(75), seconds(7325)
    ('0.004 s', '1.26 s', '1 min 15 s', '2 h 02 min')
    """
    if value < 60:
        return f"{value:.3f} s" if value < 0.1 else f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def number(value: float) -> str:
    """Return a number to the fourth decimal; of large ones the first, of very large and small ones four digits.

    >>> number(0.97551), number(-3180.44), number(1.5e-9), number(math.nan)
    ('0.9755', '−3,180.4', '1.5e−09', '')
    """
    size = abs(value)
    form = ".4f" if size == 0 or 1e-3 <= size < 1e3 else ",.1f" if 1e3 <= size < 1e6 else ".4g"
    return "" if math.isnan(value) else f"{value:{form}}".replace("-", "−")


def plain(text: object) -> str:
    r"""Return text that Markdown shows as it is, on one line.

    >>> print(plain("a|b <i> *c*"))
    a\|b \<i\> \*c\*
    """
    return re.sub(r"([\\`*_\[\]<>|&#~$])", r"\\\1", " ".join(str(text).split()))


def code(text: object) -> str:
    r"""Return text as Markdown's inline code, in a table too.

    >>> print(code("a|b"), code("a`b"))
    `a\|b` `` a`b ``
    """
    line = " ".join(str(text).split()).replace("|", r"\|")
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return f"{ticks}{line}{ticks}" if len(ticks) == 1 else f"{ticks} {line} {ticks}"


def fenced(text: str, language: str = "text") -> str:
    """Return text as a block of Markdown code that nothing within it ends."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
