"""What a run would take from the store, what it would compute, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ortpipe.pipeline.digest import Parts, key_of, parts_of
from ortpipe.pipeline.flatten import differing
from ortpipe.pipeline.plan import Plan
from ortpipe.pipeline.store import Entry, Store


@dataclass(frozen=True)
class Reason:
    """Why a stage would be computed; the front door says it in words.

    The kinds are `no store`: none is configured; `after`: the stage `name` before it is computed; `nothing stored`: of
    this stage; `changed`: a part of its key is another than in the nearest stored entry; `unsealed`: the entry is not
    sealed with this store's key; `evicted`: its artifact is gone; `order`: of what its config holds.
    """

    kind: Literal["no store", "after", "nothing stored", "changed", "unsealed", "evicted", "order"]
    name: str = ""  # of what changed, dotted: a key of the config, `version`, `packages.<name>`, `input`, `data` …
    old: Any = None  # its stored value
    new: Any = None  # its value now


@dataclass(frozen=True)
class StageStatus:
    """What would become of a stage.

    `hit`: taken from the store; `miss`: computed; `blocked`: computed, unless the stages that are computed before it
    give what they gave before.
    """

    stage: str
    status: Literal["hit", "miss", "blocked"]
    entry: Entry | None = None  # what a hit is taken from
    reasons: tuple[Reason, ...] = ()  # why it would be computed
    about: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})  # what is said of data: in the nearest entry, and now


def dry_run(plan: Plan, context: Mapping[str, Any], store: Store | None) -> list[StageStatus]:
    """Return what a run of the plan would do, stage by stage, without running any."""
    statuses: list[StageStatus] = []
    computed = digest = None  # the last stage that would be computed, and the digest of the input where that is known
    for step in plan:
        name = step.stage.name
        parts = parts_of(step, digest if computed is None else None, context)
        if store is None:
            statuses.append(StageStatus(name, "miss", reasons=(Reason("no store"),)))
            continue
        entry = store.find(name, key_of(parts)) if computed is None else None
        if entry is not None and store.artifact_folder(entry.output).is_dir():
            statuses.append(StageStatus(name, "hit", entry))
            digest = entry.output
            continue
        reasons, nearest = _against_nearest(parts, store, computed is None)
        waits = () if computed is None else (Reason("after", computed),)
        status: Literal["miss", "blocked"] = "miss" if computed is None or reasons else "blocked"
        about = (nearest.about if nearest is not None else {}, store.about)
        statuses.append(StageStatus(name, status, None, (*waits, *reasons), about))
        computed = name
    return statuses


def _against_nearest(parts: Parts, store: Store, input_known: bool) -> tuple[tuple[Reason, ...], Entry | None]:
    """Compare with the stored entry that differs in the fewest values, of those the newest."""
    without = () if input_known else ("input",)
    candidates = ((differing(entry.parts, parts, without), entry) for entry in store.entries(parts["stage"]))
    best = min(candidates, key=lambda pair: (len(pair[0]), -pair[1].made), default=None)  # holds two at a time
    if best is None:
        return (Reason("nothing stored"),), None
    changes, nearest = best
    if changes or not input_known:
        return tuple(Reason("changed", name, old, new) for name, (old, new) in changes.items()), nearest
    if nearest.key != key_of(parts):
        return (Reason("order"),), nearest
    return (Reason("evicted" if store.trusts(nearest) else "unsealed"),), nearest
