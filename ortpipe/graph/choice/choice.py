"""A choice of float initializers to train, and sentences about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHOWN = 3  # names in a sentence


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
