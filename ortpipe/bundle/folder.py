"""The folder of a bundle: graphs, state.bin, bundle.json and a README."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ortpipe.artifact import Arrays, Artifact, Facts
from ortpipe.bounded import has_file
from ortpipe.bundle.checks import check, loss_of_rows
from ortpipe.bundle.graphs import BundleGraphs, training_graphs
from ortpipe.bundle.half import halved
from ortpipe.bundle.reading import DESCRIPTION, FORMAT, STATE, read_bundle
from ortpipe.errors import ModelError, TrainError
from ortpipe.files import atomic_folder
from ortpipe.graph import set_initializers
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS

README = "README.md"
TEXT = Path(__file__).with_name("README.md")
RUNTIME = "1.19"  # 1.17 and 1.18 load the graphs, but with memory patterns some are wrong from the second run on


def write_bundle(
    artifact: Artifact,
    config: TrainConfig,
    folder: Path,
    *,
    trained: Artifact | None = None,
    steps: int | None = None,
    float16: bool = False,
    most_bytes: int | None = None,
    example: Arrays | None = None,
    origin: Mapping[str, Any] | None = None,
    page: Mapping[str, bytes] | None = None,
) -> dict[str, Any]:
    """Write a bundle that trains and predicts with nothing but onnxruntime; return its description.

    The files are checked before the folder appears: see `checks.check`.

    Args:
        artifact: a gradient model with its forward outputs, whose weights training starts from.
        config: the optimizer, its settings and the schedule.
        folder: a new folder, or a bundle to replace; other files in it are kept.
        trained: a result of `train`, whose weights training starts from instead.
        steps: the number of steps of the schedule; by default, until its numbers are constant.
        float16: store the state and constants in float16; the graphs compute in float32. The description's `storage`
            has the loss of the example rows with float32 and with float16 numbers.
        most_bytes: the largest size of all files.
        example: rows of the model's inputs for the check; by default, random ones.
        origin: the origin of the model, for the description.
        page: the files of a page by path, which `most_bytes` does not count.

    Raises:
        TrainError: the model cannot train outside of ortpipe, the graphs differ from each other, the size is too
            large, or a number for float16; nothing is written.
    """
    if folder.exists() and not has_file(folder, DESCRIPTION):
        rule, fix = "A bundle needs a folder of its own.", "Name a new one."
        raise TrainError(rule, got=f"{folder}, which is no bundle", fix=fix)
    exact = training_graphs(artifact if trained is None else started(artifact, trained), config, steps)
    graphs = halved(exact) if float16 else exact
    files = {f"{name}.onnx": model.SerializeToString(deterministic=True) for name, model in graphs.models.items()}
    files[STATE], tensors = _packed({**graphs.state, **{f"scalars/{n}": a for n, a in graphs.scalars.items()}})
    description = _described(graphs, artifact.facts, tensors, config)
    description |= {"origin": dict(origin or {}), "ortpipe": version("ortpipe")}
    every = {**files, **(page or {})}
    description["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in every.items()}
    if most_bytes is not None:
        _check_size([*files.values(), _json(description), TEXT.read_bytes()], most_bytes)
    with atomic_folder(folder) as partial:
        every |= {DESCRIPTION: _json(description), README: TEXT.read_bytes()}
        if folder.exists():
            keep_others(folder, partial, {*every})
        for name, content in every.items():
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).write_bytes(content)
        stored = check(partial, graphs, artifact.facts, example or {})
        if float16:
            loss = loss_of_rows(exact, artifact.facts, example or {})
            description["storage"] = {"dtype": "float16", "loss": stored, "float32_loss": loss}
            (partial / DESCRIPTION).write_bytes(_json(description))
    return description


def _check_size(contents: Iterable[bytes], most_bytes: int) -> None:
    if (size := sum(map(len, contents))) > most_bytes:
        rule = f"The bundle must have at most {most_bytes:,} bytes."
        fix = "Allow more (--max-size), store float16 (--float16), or train fewer parameters, with a simpler optimizer."
        raise TrainError(rule, got=f"{size:,}", fix=fix)


def keep_others(older: Path, folder: Path, names: set[str]) -> None:
    """Link the files of an older folder that are neither a bundle's own nor among the names, such as node_modules."""
    with contextlib.suppress(ModelError):  # of a damaged one, all other files are kept
        names = names | {*read_bundle(older)["files"]}

    def skipped(place: str, entries: list[str]) -> list[str]:
        return [entry for entry in entries if (Path(place) / entry).relative_to(older).as_posix() in names]

    shutil.copytree(older, folder, symlinks=True, ignore=skipped, copy_function=os.link, dirs_exist_ok=True)


def started(artifact: Artifact, trained: Artifact) -> Artifact:
    """Return a model with a loss or gradients, with the weights of a trained one."""
    model = artifact.ir_model()
    set_initializers(model, {n: a for n, a in trained.initializers.items() if n in artifact.initializers})
    return Artifact(model, artifact.facts, artifact.tensors)


def _json(description: Mapping[str, Any]) -> bytes:
    return json.dumps(description, indent=1, default=str).encode()


def _packed(arrays: Arrays) -> tuple[bytes, list[dict[str, Any]]]:
    """Return arrays as bytes in little-endian order, and their places; each begins at a multiple of 8."""
    content, tensors = bytearray(), list[dict[str, Any]]()
    for name, array in arrays.items():
        content += bytes(-len(content) % 8)
        place = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "offset": len(content)}
        tensors.append(place)
        content += np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()
    return bytes(content), tensors


def _described(
    graphs: BundleGraphs, facts: Facts, tensors: list[dict[str, Any]], config: TrainConfig
) -> dict[str, Any]:
    offsets = np.cumsum([0, *(int(np.prod(shape)) for shape in graphs.parameters.values())])
    carried = list(graphs.state)
    return {
        "format": FORMAT,
        "onnxruntime": f">={RUNTIME}",
        "predictions": [_prediction(head, of) for head, of in facts.predictions.items()],
        "sample_weight": facts.sample_weight,
        "reduction": facts.reduction,
        "prepared": dict(facts.prepared),
        "columns": {name: list(columns) for name, columns in (facts.columns or {}).items()},
        "table": _table(facts, graphs.models["predict"]),
        "parameters": [
            {"name": name, "shape": list(shape), "offset": int(offset)}
            for (name, shape), offset in zip(graphs.parameters.items(), offsets, strict=False)
        ],
        "carried": carried,
        "rows": list(graphs.rows),
        "scalars": list(graphs.scalars),
        "weights": list(graphs.weights),
        "optimizer": {"name": OPTIMIZERS.name_of(type(config.optimizer)), **vars(config.optimizer)},
        "batch_size": config.batch_size * config.accumulate,  # rows of an update: bundles accumulate no batches
        "seed": config.seed,
        "graphs": {name: _signature(model) for name, model in graphs.models.items()},
        "state": {"file": STATE, "tensors": tensors},
    }


def _table(facts: Facts, model: onnx.ModelProto) -> dict[str, Any]:
    """Return the kind of each raw column, and its known words if a node looks them up."""
    records = facts.lineage[0].get("table", {}).get("columns", {}) if facts.lineage else {}
    words = {
        node.input[0]: [word.decode() for a in node.attribute if a.name == "keys_strings" for word in a.strings if word]
        for node in model.graph.node
        if node.op_type == "LabelEncoder"
    }
    return {
        name: {"kind": record.get("of") or record["kind"], "words": words.get(name)} for name, record in records.items()
    }


def _prediction(head: str, facts: Facts) -> dict[str, Any]:
    """Return the meaning of an output of predict, and the input that holds its labels."""
    scores = None if facts.classes is None else "logits" if facts.logits == facts.prediction else "probabilities"
    return {
        "head": head,
        "output": facts.prediction,
        "label": facts.label,
        "task": facts.task,
        "classes": None if facts.classes is None else list(facts.classes),
        "scores": scores,
        "class_axis": facts.class_axis,
        "link": facts.link,
        "levels": list(facts.levels),
        "padding": facts.padding,
        "blank": facts.blank,
    }


def _signature(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the inputs and outputs of a graph; a size that is free has its name."""
    return {"inputs": _values(model.graph.input), "outputs": _values(model.graph.output)}


def _values(infos: Iterable[onnx.ValueInfoProto]) -> list[dict[str, Any]]:
    values = [(value.name, value.type.tensor_type) for value in infos]
    return [
        {
            "name": name,
            "dtype": np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).name.replace("object", "string"),
            "shape": [size.dim_value if size.HasField("dim_value") else size.dim_param for size in kind.shape.dim],
        }
        for name, kind in values
    ]
