"""A run's rows as MLflow datasets: one per part, with digest, source, columns and sizes."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortpipe.app.run.record import RunRecord, read_environment
from ortpipe.bounded import has_file

CONTEXT = "mlflow.data.context"  # the tag with the use of the rows
LONGEST = 36  # characters of a digest, MLflow's limit
MAX_SCHEMA = 1_048_575  # characters of a dataset's schema, MLflow's limit; a longer one is left out
TYPES = {"f": "double", "i": "long", "u": "long", "b": "boolean"}  # MLflow's types by NumPy kind; others are strings


def datasets(run: RunRecord) -> list[Any]:
    """Return the parts of a run's rows as inputs of its MLflow run; [] if the record has none, as a sweep's."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    digests, source = run.data.get("digests", {}), run.data.get("source", {})
    origin = source.get("path") or source.get("function")
    if source.get("path") and has_file(run.folder, "environment.json"):
        origin = os.path.join(read_environment(run.folder).get("folder", ""), origin)
    location = {"uri": str(origin)} if origin else {"tags": {"mlflow.source.name": "ortpipe"}}
    columns = run.data.get("columns", {})
    fields = [
        {
            "type": TYPES.get(entry["type"], "string"),
            "name": _field_name(name, entry["shape"]),
            "required": "missing" not in entry,
        }
        for name, entry in {**columns, **_labels(run.data.get("label", {}), source)}.items()
    ]
    numbers = sum(math.prod(entry["shape"]) for entry in columns.values())
    schema = json.dumps({"mlflow_colspec": fields})
    inputs = []
    for part, digest in digests.items():
        # MLflow stores one context per dataset and run: parts with the same rows need different digests
        short_digest = hashlib.sha256(f"{part} {digest}".encode()).hexdigest()[:LONGEST]
        rows = run.data["rows"][part]
        profile = {"num_rows": rows, "num_elements": rows * numbers, "ortpipe_digest": digest}
        name = Path(str(origin)).name if origin else source.get("dataset") or source.get("name", "rows")
        dataset = Dataset(
            f"{name} {part}",
            short_digest,
            "local" if origin else "code",
            json.dumps(location),
            schema if len(schema) <= MAX_SCHEMA else None,
            json.dumps(profile),
        )
        inputs.append(DatasetInput(dataset, [InputTag(CONTEXT, "training" if part == "train" else part)]))
    return inputs


def _labels(entries: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the labels, under the names of the source if it has names for them."""
    labels: dict[str, Any] = {}
    for name, entry in entries.items():
        column_name = source.get("label") if name == "label" else (source.get("heads") or {}).get(name)
        if isinstance(column_name, list) and entry["shape"] == [len(column_name)]:
            labels |= {column: {**entry, "shape": []} for column in column_name}
        else:
            labels[column_name if isinstance(column_name, str) else name] = entry
    return labels


def _field_name(name: str, shape: list[int]) -> str:
    return f"{name} [{' × '.join(map(str, shape))}]" if shape else name
