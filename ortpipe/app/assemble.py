"""From a typed config to a plan, its store, and the context of its stages: the checked runtime and the rows."""

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import onnx

from ortpipe import FLOW, Artifact, Facts
from ortpipe.app.local_path import cache_folder, is_local
from ortpipe.app.run.checkpoint import read_checkpoint
from ortpipe.app.schema import RunConfig
from ortpipe.artifact import Arrays
from ortpipe.data import Remember
from ortpipe.data.load import load
from ortpipe.errors import under
from ortpipe.pipeline.digest import key_of
from ortpipe.pipeline.plan import Plan, Step
from ortpipe.pipeline.store import Store, key_of_environment
from ortpipe.runtime import check_one_runtime, check_provider


def plan_of(config: RunConfig) -> Plan:
    """Return the flow with each stage's config; folds are runs of the flow, not a setting of evaluate's stage."""
    once = dataclasses.replace(config, evaluate=dataclasses.replace(config.evaluate, folds=0))
    return tuple(Step(stage, getattr(once, stage.name)) for stage in FLOW)


def store_of(config: RunConfig, run: Mapping[str, str | None] | None = None, data: Any = None) -> Store | None:
    """Return the configured store, if any; `run` describes the publisher, `data` the run's rows."""
    if config.paths.cache is None:
        return None
    who = {name: value for name, value in (run or {}).items() if value is not None}
    return open_store(config.paths.cache, config.paths.outputs, who, {"data": data})


def open_store(
    cache: str, outputs: str, run: Mapping[str, str] | None = None, about: Mapping[str, Any] | None = None
) -> Store:
    """Return the store at `paths.cache`; at a URL, it has a folder below `paths.outputs` in front."""
    folder, key = cache_folder(cache, outputs), key_of_environment(os.environ)
    if is_local(cache):
        return Store(folder, run, about, key)
    from ortpipe.remote import SharedStore

    return SharedStore(cache, folder, run, about, key)


def remember_teacher(store: Store | None) -> Remember | None:
    """Return the cache of a teacher's predictions, if there is a store."""
    return None if store is None else remembering(store, "teacher")


def remembering(store: Store, name: str) -> Remember:
    """Return a function that computes arrays, unless the store has those of equal parts of a key.

    A store holds artifacts, so the arrays are the tensors of one whose model only returns its input.
    """

    def remember(parts: Mapping[str, Any], compute: Callable[[], Arrays]) -> Arrays:
        key = key_of(parts)
        with store.lock(key, _notify):
            if (result := store.take(name, key, None, _notify)) is not None:
                return result[0].tensors
            started = time.perf_counter()
            arrays = compute()
            record = {"stage": name, "version": parts["version"], "notes": []}
            artifact = Artifact(_identity(), Facts("regression", ("x",), ("y",), "y", (), lineage=(record,)), arrays)
            store.publish(name, key, parts, artifact, time.perf_counter() - started, _notify)
        return arrays

    return remember


def _notify(text: str) -> None:
    print(f"cache: {text}", file=sys.stderr, flush=True)


def _identity() -> onnx.ModelProto:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N"]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "arrays", [x], [y])
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 18)])


def open_run(
    values: Mapping[str, Any],
    collect: Callable[[str], AbstractContextManager[object]] = under,
    store: Store | None = None,
) -> dict[str, Any]:
    """Return the stages' keyword arguments: check the runtime, read the checkpoint, load the rows.

    Args:
        values: typed config values by key; parts whose key is missing are left out.
        collect: returns the context in which the part of a key is read; if it suppresses an error, the part is left
            out.
        store: caches the predictions of a teacher.
    """
    context: dict[str, Any] = {"report": lambda report: None, "start": None}
    with collect("runtime"):
        check_one_runtime()
        if "runtime" in values:
            context["runtime"] = values["runtime"]
            parallel = values["train"].parallel if "train" in values else None
            workers = parallel.workers if parallel is not None and parallel.transport == "devices" else None
            check_provider(values["runtime"], workers)
    if values.get("resume") is not None:
        with collect("resume"):
            context["start"] = read_checkpoint(Path(values["resume"]))
    if "data" in values:
        with collect("data"):
            context["data"] = load(values["data"], remember_teacher(store))
    return context
