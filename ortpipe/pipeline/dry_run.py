"""Predict which stages of a run would be cache hits or misses, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ortpipe.pipeline.continued import stored_part
from ortpipe.pipeline.digest import Parts, key_of, parts_of
from ortpipe.pipeline.flatten import differing
from ortpipe.pipeline.plan import Plan
from ortpipe.pipeline.store import Entry, Store


@dataclass(frozen=True)
class Reason:
    """Why a stage would be computed, as data that the command line puts into words.

    The kinds: `no store` is configured; `after` stage `name`, which is also computed; `nothing stored` for this stage;
    `changed`: a part of its key differs from the nearest stored entry; `continued`: its first `old` of `new` epochs are
    stored; `unsealed`: the entry is not sealed with this store's key; `evicted`: its artifact was removed; `order`: the
    config's entries have another order.
    """

    kind: Literal["no store", "after", "nothing stored", "changed", "continued", "unsealed", "evicted", "order"]
    name: str = ""  # the dotted name of the changed part: a config key, `version`, `packages.<name>`, `input`, `data` …
    old: Any = None  # its stored value
    new: Any = None  # its value now


@dataclass(frozen=True)
class StageStatus:
    """The predicted status of a stage.

    `hit`: read from the store; `miss`: computed; `blocked`: computed, unless the earlier stages that are computed give
    the same artifacts as before.
    """

    stage: str
    status: Literal["hit", "miss", "blocked"]
    entry: Entry | None = None  # the entry of a hit
    reasons: tuple[Reason, ...] = ()  # why it would be computed
    about: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})  # facts about the data: of the nearest entry, and now


def dry_run(plan: Plan, context: Mapping[str, Any], store: Store | None) -> list[StageStatus]:
    """Return the status of each stage of the plan, without running any."""
    statuses: list[StageStatus] = []
    computed = digest = None  # the last stage that would be computed, and the input's digest if it is known
    for step in plan:
        name = step.stage.name
        parts = parts_of(step, digest if computed is None else None, context)
        if store is None:
            statuses.append(StageStatus(name, "miss", reasons=(Reason("no store"),)))
            continue
        entry = store.find(name, key_of(parts)) if computed is None else None
        if entry is not None and store.has(entry.output):
            statuses.append(StageStatus(name, "hit", entry))
            digest = entry.output
            continue
        part = stored_part(step, parts, context, store) if computed is None and step.stage.continued else None
        if part is None:
            reasons, nearest = _compared_with_nearest(parts, store, computed is None)
        else:
            reasons, nearest = (Reason("continued", old=part[0], new=step.config.epochs),), part[1]
        blocking = () if computed is None else (Reason("after", computed),)
        status: Literal["miss", "blocked"] = "miss" if computed is None or reasons else "blocked"
        about = (nearest.about if nearest is not None else {}, store.about)
        statuses.append(StageStatus(name, status, None, (*blocking, *reasons), about))
        computed = name
    return statuses


def _compared_with_nearest(parts: Parts, store: Store, input_known: bool) -> tuple[tuple[Reason, ...], Entry | None]:
    """Return the reasons and the nearest stored entry: the newest among those that differ in the fewest values."""
    without = () if input_known else ("input",)
    candidates = ((differing(entry.parts, parts, without), entry) for entry in store.entries(parts["stage"]))
    best = min(candidates, key=lambda pair: (len(pair[0]), -pair[1].made), default=None)  # keeps only two in memory
    if best is None:
        return (Reason("nothing stored"),), None
    changes, nearest = best
    if changes or not input_known:
        return tuple(Reason("changed", name, old, new) for name, (old, new) in changes.items()), nearest
    if nearest.key != key_of(parts):
        return (Reason("order"),), nearest
    return (Reason("evicted" if store.trusts(nearest) else "unsealed"),), nearest
