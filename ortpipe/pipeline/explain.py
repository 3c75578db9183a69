"""What a run would take from the store, what it would compute, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ortpipe.pipeline.digest import Parts, key_of, parts_of
from ortpipe.pipeline.flatten import flatten
from ortpipe.pipeline.plan import Plan
from ortpipe.pipeline.store import Entry, Store
from ortpipe.pipeline.trust import VARIABLE

UNSET = "unset"
MOST = 5  # differences that are told


@dataclass(frozen=True)
class Forecast:
    """What becomes of a stage.

    Attributes:
        stage: its name.
        fate: `hit`: taken from the store; `run`: computed; `after`: computed, unless the stages that run before it give
            what they gave before.
        entry: what a hit is taken from.
        reasons: why it would be computed: what is another value than in the nearest stored entry.
    """

    stage: str
    fate: Literal["hit", "run", "after"]
    entry: Entry | None = None
    reasons: tuple[str, ...] = ()


def foresee(plan: Plan, context: Mapping[str, Any], store: Store | None) -> list[Forecast]:
    """Return what a run of the plan would do, stage by stage, without running any."""
    found: list[Forecast] = []
    given: str | None = None
    for step in plan:
        name, known = step.stage.name, not found or found[-1].fate == "hit"
        parts = parts_of(step, given if known else None, context)
        if store is None:
            found.append(Forecast(name, "run", reasons=("there is no store: paths.cache is null",)))
            continue
        entry = store.find(name, key_of(parts)) if known else None
        if entry is not None and store.path(entry.output).is_dir():
            found.append(Forecast(name, "hit", entry))
            given = entry.output
            continue
        given = None
        before = () if known else (f"after {next(f.stage for f in reversed(found) if f.fate != 'hit')}",)
        why = _against_nearest(parts, store, known)
        found.append(Forecast(name, "run" if known or why else "after", reasons=(*before, *why)))
    return found


def _against_nearest(parts: Parts, store: Store, known: bool) -> tuple[str, ...]:
    """Return what differs from the stored entry that differs in the fewest values, of those the newest."""
    unknown = () if known else ("input",)
    differences = ((differing(entry.parts, parts, unknown), entry) for entry in store.entries(parts["stage"]))
    found = min(differences, key=lambda found: (len(found[0]), -found[1].made), default=None)  # holds two at a time
    if found is None:
        return ("nothing of it is stored",)
    least, nearest = found
    if not least and known:
        same = nearest.key == key_of(parts)
        if same and not store.trusts(nearest):
            return (f"the one that is stored is not sealed with this {VARIABLE}",)
        return ("its artifact is gone from the store" if same else "the order of what its config holds",)
    said = [_said(name, least[name], parts["stage"], nearest, store.about) for name in least]
    return (*said[:MOST], *([f"and {len(said) - MOST} more"] if len(said) > MOST else ()))


def differing(
    one: Mapping[str, Any], other: Mapping[str, Any], without: Sequence[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ, with both values.

    >>> differing({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4})
    {'a.c': (2, 3), 'd': ('unset', 4)}
    """
    first, second = flatten(one), flatten(other)
    keys = [key for key in dict.fromkeys((*first, *second)) if key not in without]
    pairs = {key: (first.get(key, UNSET), second.get(key, UNSET)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _said(name: str, pair: tuple[Any, Any], stage: str, nearest: Entry, about: Mapping[str, Any]) -> str:
    """Return a difference as a person would say it."""
    old, new = pair
    if name == "data":
        settings = differing(nearest.about, about)
        changed = ", ".join(f"{key} {a} → {b}" for key, (a, b) in settings.items())
        return changed or "the content of its data"
    if name == "input":
        return "its input"
    if name.endswith(".files"):
        return f"the content of {name.removesuffix('.files')}"
    if name == "version":
        name = f"{stage}'s code, version"
    return f"{name.removeprefix('packages.')} {old} → {new}"
