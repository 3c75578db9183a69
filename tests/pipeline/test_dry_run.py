"""Why a stage would run is found entry by entry: a store of any size takes no more memory."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from pathlib import Path

import pytest

from ortpipe.pipeline.digest import key_of
from ortpipe.pipeline.dry_run import Reason, _compared_with_nearest
from ortpipe.pipeline.store import Entry, Store, _sum

PARTS = {"stage": "train", "version": 1, "config": {"epochs": 5, "lr": 0.1}, "packages": {}, "input": "i", "data": "d"}


def put(store: Store, made: float, **config: object) -> None:
    """Write an entry as the store does, without waiting for the disk."""
    parts = {**PARTS, "config": {**PARTS["config"], **config}}  # type: ignore[dict-item]
    entry = Entry("train", key_of(parts), parts, "0" * 64, {"stage": "train", "version": 1}, 1.0, made, {}, {})
    written = json.loads(json.dumps(dataclasses.asdict(entry)))
    place = store.entry_file("train", entry.key)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({**written, "sha256": _sum(written)}), encoding="utf-8")


def reasons(store: Store) -> tuple[Reason, ...]:
    return _compared_with_nearest(PARTS, store, True)[0]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_the_nearest_entry_is_the_one_that_differs_least_and_of_those_the_newest(store: Store) -> None:
    assert reasons(store) == (Reason("nothing stored"),)
    put(store, 3.0, epochs=7, lr=0.3)
    assert reasons(store) == (Reason("changed", "config.epochs", 7, 5), Reason("changed", "config.lr", 0.3, 0.1))
    put(store, 1.0, epochs=8)
    put(store, 2.0, epochs=9)
    assert reasons(store) == (Reason("changed", "config.epochs", 9, 5),)
    put(store, 0.0)
    assert reasons(store) == (Reason("evicted"),)


def test_a_store_of_many_entries_takes_no_more_memory_than_one_of_few(store: Store) -> None:
    def peak() -> int:
        tracemalloc.start()
        reasons(store)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    for i in range(4):
        put(store, i, epochs=i, text=f"{i}" * 50_000)
    few = peak()
    for i in range(4, 64):
        put(store, i, epochs=i, text=f"{i % 10}" * 50_000)
    assert peak() < 2 * few
