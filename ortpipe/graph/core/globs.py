"""Choose names by exact names and globs."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from ortpipe.errors import OrtpipeError, nearest


def select(
    patterns: Sequence[str],
    names: Sequence[str],
    error: type[OrtpipeError],
    key: str,
    fixed_names: Collection[str] = (),
) -> list[str]:
    """Return the names that at least one pattern matches, in the order of `names`.

    Args:
        patterns: exact names or globs.
        names: the names to choose from.
        error: the exception raised for a pattern without a match.
        key: the setting that the patterns come from, for the message.
        fixed_names: names that cannot be chosen; a pattern equal to one of them is not tried as a glob.

    >>> select(["layer0.*", "bias"], ["layer0.weight", "layer1.weight", "bias"], OrtpipeError, "frozen")
    ['layer0.weight', 'bias']
    """
    chosen = set[str]()
    for pattern in patterns:
        matching = [] if pattern in fixed_names and pattern not in names else matches(pattern, names)
        if not matching:
            rule = "Every pattern in {key} must match a parameter."
            raise error(rule, key=key, got=repr(pattern), fix=nearest(pattern, names))
        chosen.update(matching)
    return [name for name in names if name in chosen]


def matches(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the name equal to the pattern, or else the names that match it as a glob (`*`, `?`, `[…]`).

    >>> matches("w[0]", ["w[0]", "w0"]), matches("w[0]", ["w0", "w1"])
    (['w[0]'], ['w0'])
    """
    return [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]
