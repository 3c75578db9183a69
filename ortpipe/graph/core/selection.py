"""Select names, such as of parameters, by exact names and globs; sentences about a selection."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ortpipe.errors import OrtpipeError, nearest

SHOWN = 3  # names in a sentence


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


@dataclass(frozen=True)
class Choice:
    """The parameters to train by default."""

    trained: tuple[str, ...]  # names, in the graph's order
    untrained: Mapping[str, str]  # the other float initializers that the output depends on, with the reason
    shared: Mapping[str, int]  # how many nodes read a trained one as a weight, if more than one


def sentence(trained: Sequence[str], untrained: Mapping[str, str], *, by_default: bool = False) -> str:
    """Return a sentence on which float initializers are trained and which are not.

    >>> sentence(["w", "b"], {"mask": "a mask", "t": "one number", "s": "one number"})
    'trains 2 of 5 float initializers: w, b; leaves mask (a mask), t, s (one number)'
    """
    reasons: dict[str, list[str]] = {}
    for name, reason in untrained.items():
        reasons.setdefault(reason, []).append(name)
    text = f"trains {len(trained)} of {len(trained) + len(untrained)} float initializers{' by default' * by_default}"
    text += f": {some(trained)}" if trained else ""
    whys = ", ".join(f"{some(names)} ({reason})" for reason, names in reasons.items())
    return text + (f"; leaves {whys}" if whys else "")


def some(names: Sequence[str], shown: int = SHOWN) -> str:
    """Return the first of these names, and the number of the others.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - shown
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:shown])} and {more} more"
