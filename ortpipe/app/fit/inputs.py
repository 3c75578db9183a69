"""Rows and models as arguments of a run; those in memory become files named after their content."""

from __future__ import annotations

import hashlib
import inspect
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from ortpipe import own
from ortpipe.app.compose import group_choices, packaged_conf
from ortpipe.app.fit.leaves import argument
from ortpipe.data import SOURCES, arrow_table, column_names
from ortpipe.errors import ConfigError, nearest
from ortpipe.settings import fields_of

FOLDER = "${paths.outputs}/inputs"  # of files for rows and models from memory
ROWS = "the path of a file, a DataFrame, arrays X and y, a dict of arrays, or a function that returns rows"
MODELS = "a network's name, an .onnx file or ModelProto, or a scikit-learn estimator or its class path"
LABEL = "label"  # the column of labels that come as an array


@dataclass(frozen=True)
class Arguments:
    """Arguments of a run, and the files below FOLDER that they need, by name."""

    arguments: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def stored(cls, group: str, name: str, content: bytes) -> Arguments:
        """Return the arguments that choose `group=name` with a file of this content."""
        file = _named(content, name)
        return cls((f"{group}={name}", f"{group}.source.path={FOLDER}/{file}"), {file: content})


def _named(content: bytes, ending: str) -> str:
    """Return a file's name after its content."""
    return f"{hashlib.sha256(content).hexdigest()[:32]}.{ending}"


def rows_of(rows: Any, label: Any) -> Arguments:
    """Return the arguments for rows and their labels: names of columns or of an array, or the array itself."""
    named = label is None or isinstance(label, str) or (isinstance(label, list | tuple) and _are_names(label))
    more = (argument("data.source.label", label),) if named and label is not None else ()
    if isinstance(rows, str | Path):
        if not named:
            raise ConfigError("The labels of a file must be named.", got=f"label: {type(label).__name__}", fix=_LABEL)
        chosen = _of_path(str(rows), labelled=label is not None)
    elif column_names(rows):
        chosen = _of_frame(rows, None if named else label, labelled=label is not None)
        more = more if named else (argument("data.source.label", _label_name(label)),)
    elif callable(rows):
        chosen = Arguments(("data=function", argument("data.source.function", own.path_of(rows))))
    elif isinstance(rows, Mapping):
        chosen = _of_arrays(dict(rows) if named else {**rows, "y": label})
        more = more if named else ()
    elif hasattr(rows, "__array__") or isinstance(rows, list):
        if named:
            rule, fix = "Rows in one array need an array of labels.", "Pass it second: fit(X, y)."
            raise ConfigError(rule, got=f"label: {label!r}", fix=fix)
        chosen, more = _of_arrays({"X": rows, "y": label}), ()
    else:
        raise ConfigError(f"Rows must be {ROWS}.", got=type(rows).__name__, fix="Pass one of them.")
    return Arguments((*chosen.arguments, *more), chosen.files)


_LABEL = "Pass the name of the column as label (ortpipe fit: --label COLUMN)."


def _are_names(label: Any) -> bool:
    return bool(label) and all(isinstance(name, str) for name in label) and len(label) < 1000


def _of_path(path: str, *, labelled: bool) -> Arguments:
    """Return the arguments for a file or a folder, or for a data set of the package's configs."""
    names = [path, *(file.name for file in sorted(Path(path).iterdir()))] if Path(path).is_dir() else [path]
    readers = {name: SOURCES[name] for name in SOURCES if "path" in fields_of(SOURCES[name])}
    for name, reader in readers.items():
        if any(file.endswith(getattr(reader, "endings", ())) for file in names if getattr(reader, "endings", ())):
            if not labelled and hasattr(reader, "labels_of"):
                raise ConfigError("A table needs the name of its column of labels.", got=path, fix=_LABEL)
            return Arguments((f"data={name}", argument("data.source.path", path)))
    sets = group_choices([packaged_conf()])["data"] - {*SOURCES, "own"}
    if path in sets:
        return Arguments((f"data={path}",))
    endings = [ending for reader in readers.values() for ending in getattr(reader, "endings", ())]
    fix = f"Its name may end in {', '.join(endings)}; or name a data set: {', '.join(sorted(sets))}."
    raise ConfigError("Rows must be a file that a data source reads.", got=path, fix=fix)


def _of_frame(frame: Any, label: Any, *, labelled: bool) -> Arguments:
    """Return the arguments for a DataFrame, which becomes a Parquet file; `label` is an array of labels, or None."""
    if not labelled:
        raise ConfigError("A table needs the name of its column of labels.", got="none", fix=_LABEL)
    table = arrow_table(frame, "the rows")
    if label is not None:
        name = _label_name(label)
        if name in table.column_names:
            rule, fix = "The labels must have another name than the columns of the rows.", "Rename one."
            raise ConfigError(rule, got=repr(name), fix=fix)
        if len(label) != table.num_rows:
            rule, fix = "Rows and labels must have one length.", "Pass a label for each row."
            raise ConfigError(rule, got=f"{table.num_rows} rows, {len(label)} labels", fix=fix)
        table = table.append_column(name, [np.asarray(label)])
    buffer = io.BytesIO()
    parquet.write_table(table.replace_schema_metadata(None), buffer)
    return Arguments.stored("data", "parquet", buffer.getvalue())


def _label_name(label: Any) -> str:
    return str(getattr(label, "name", None) or LABEL)


def _of_arrays(arrays: Mapping[str, Any]) -> Arguments:
    """Return the arguments for arrays, which become an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{str(name): np.asarray(array) for name, array in arrays.items()})
    return Arguments.stored("data", "npz", buffer.getvalue())


def model_of(model: Any) -> Arguments:
    """Return the arguments for a model."""
    choices = group_choices([packaged_conf()])["experiment/networks"]
    if isinstance(model, str) and model in choices:
        return Arguments((f"experiment=networks/{model}",))
    if isinstance(model, str | Path) and (str(model).endswith(".onnx") or Path(model).is_dir()):
        return Arguments(("~experiment", "convert=onnx", argument("convert.source.path", str(model))))
    if isinstance(model, str) and "." in model and ":" not in model:
        return _of_estimator(model, {})
    if isinstance(model, str):
        raise ConfigError(f"A model must be {MODELS}.", got=repr(model), fix=nearest(model, choices))
    if hasattr(model, "SerializeToString") and hasattr(model, "graph"):
        stored = Arguments.stored("convert", "onnx", model.SerializeToString(deterministic=True))
        return Arguments(("~experiment", *stored.arguments), stored.files)
    if hasattr(model, "get_params") and hasattr(model, "fit") and not isinstance(model, type):
        standard = {name: entry.default for name, entry in inspect.signature(type(model)).parameters.items()}
        params = {name: v for name, v in model.get_params(deep=False).items() if not _same(v, standard.get(name))}
        return _of_estimator(f"{type(model).__module__}.{type(model).__qualname__}", params)
    if any(base.__module__ == "torch.nn.modules.module" for base in getattr(model, "__mro__", ())):
        return Arguments(("~experiment", "convert=torch", argument("convert.source.module", own.path_of(model))))
    fix = "Pass one of them. For a PyTorch module pass its class, or build it stage by stage (docs/howto/pytorch.md)."
    raise ConfigError(f"A model must be {MODELS}.", got=type(model).__name__, fix=fix)


def teacher_of(teacher: Any) -> Arguments:
    """Return the arguments for a teacher: a choice of data/teacher, an import path, a file or an estimator."""
    if teacher is None:
        return Arguments(())
    choices = group_choices([packaged_conf()])["data/teacher"]
    if isinstance(teacher, str) and teacher in choices:
        return Arguments((f"data/teacher={teacher}",))
    if isinstance(teacher, str | Path) and str(teacher).endswith(".onnx"):
        return Arguments(("data/teacher=onnx", argument("data.teacher.path", str(teacher))))
    if isinstance(teacher, str) and ("." in teacher or ":" in teacher):
        return Arguments(("data/teacher=boosting", argument("data.teacher.estimator", teacher)))
    if not hasattr(teacher, "predict") or isinstance(teacher, type):
        got = repr(teacher) if isinstance(teacher, str) else f"teacher: {type(teacher).__name__}"
        rule = "A teacher must be an estimator with predict, an import path, or an .onnx file."
        raise ConfigError(rule, got=got, fix=f"Pass one, or {' or '.join(sorted(choices - {'file', 'onnx'}))}.")
    content = pickle.dumps(teacher)
    file = _named(content, "pkl")
    path = f"data.teacher.path={FOLDER}/{file}"
    return Arguments(("data/teacher=file", path, "data.teacher.trust=true"), {file: content})


def _same(value: Any, standard: Any) -> bool:
    return value is standard or (type(value) is type(standard) and value == standard)


def _of_estimator(path: str, params: Mapping[str, Any]) -> Arguments:
    path = ".".join(part for part in path.split(".") if not part.startswith("_"))  # sklearn.linear_model._base
    try:
        settings = (argument("convert.source.params", params),) if params else ()
    except ConfigError as error:
        fix = "Write its steps in a config (docs/howto/pipeline.md), or use ortpipe.sklearn or ortpipe.convert."
        raise ConfigError(
            "An estimator's parameters must be plain values.", got=f"{path}: {error.got}", fix=fix
        ) from None
    return Arguments(("~experiment", "convert=sklearn", f"convert.source.estimator={path}", *settings))
