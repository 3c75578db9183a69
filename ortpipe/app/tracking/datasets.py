"""A run's rows as MLflow's datasets: one for each part, with digest, source, columns and sizes."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortpipe.app.run.record import RunRecord, read_environment

CONTEXT = "mlflow.data.context"  # the tag that says what rows are for
LONGEST = 36  # characters of a digest, MLflow's limit
TYPES = {"f": "double", "i": "long", "u": "long", "b": "boolean"}  # numpy's kinds in MLflow's words; the rest is text


def datasets(run: RunRecord) -> list[Any]:
    """Return the parts of a run's rows as inputs of its MLflow run; none of a sweep, and of runs that did not say."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    digests, source = run.data.get("digests", {}), run.data.get("source", {})
    where = source.get("path") or source.get("function")
    if source.get("path") and (run.folder / "environment.json").exists():
        where = os.path.join(read_environment(run.folder).get("folder", ""), where)
    kind, place = ("local", {"uri": str(where)}) if where else ("code", {"tags": {"mlflow.source.name": "ortpipe"}})
    columns = run.data.get("columns", {})
    fields = [
        {
            "type": TYPES.get(entry["type"], "string"),
            "name": _named(name, entry["shape"]),
            "required": "missing" not in entry,
        }
        for name, entry in {**columns, **_labels(run.data.get("label", {}), source)}.items()
    ]
    numbers = sum(_size(entry["shape"]) for entry in columns.values())
    found = []
    for part, digest in digests.items():
        # MLflow keeps one context of a dataset in a run, also where two parts hold the same rows
        own = hashlib.sha256(f"{part} {digest}".encode()).hexdigest()[:LONGEST]
        rows = run.data["rows"][part]
        profile = {"num_rows": rows, "num_elements": rows * numbers, "ortpipe_digest": digest}
        name = Path(str(where)).name if where else source.get("dataset") or source.get("name", "rows")
        dataset = Dataset(
            f"{name} {part}", own, kind, json.dumps(place), json.dumps({"mlflow_colspec": fields}), json.dumps(profile)
        )
        found.append(DatasetInput(dataset, [InputTag(CONTEXT, "training" if part == "train" else part)]))
    return found


def _labels(entries: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the labels under their own names, where the source gives such."""
    named: dict[str, Any] = {}
    for name, entry in entries.items():
        own = source.get("label") if name == "label" else (source.get("heads") or {}).get(name)
        if isinstance(own, list) and entry["shape"] == [len(own)]:
            named |= {column: {**entry, "shape": []} for column in own}
        else:
            named[own if isinstance(own, str) else name] = entry
    return named


def _named(name: str, shape: list[int]) -> str:
    return f"{name} [{' × '.join(map(str, shape))}]" if shape else name


def _size(shape: list[int]) -> int:
    size = 1
    for dimension in shape:
        size *= dimension
    return size
