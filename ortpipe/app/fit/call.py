"""fit: rows, a label and settings → a run, by the arguments of the equivalent command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortpipe.app.compose import Composition
from ortpipe.app.fit.inputs import FOLDER, Arguments, model_of, rows_of, teacher_of
from ortpipe.app.fit.leaves import pairs_of, texts
from ortpipe.app.runs import Run, run
from ortpipe.files import atomic_write

NETWORK = "auto"  # the model of a fit without one


def fit(
    rows: Any,
    label: Any = None,
    *,
    model: Any = None,
    teacher: Any = None,
    folder: str | Path | None = None,
    config_dir: str | None = None,
    **settings: Any,
) -> Run:
    """Train a model on rows, as `ortpipe fit` does, and return the run.

    Args:
        rows: the path of a file, a DataFrame, an array X, a dict of arrays, or a function that returns rows. Rows in
            memory are written below paths.outputs, so that the run can be repeated.
        label: the column (or columns) of labels; or, with an array or a frame, the labels themselves.
        model: a network's name, an .onnx file or ModelProto, a scikit-learn estimator or its class path.
        teacher: another model whose predictions the model learns, too: boosting, stack, an estimator, fitted or not, or
            the import path of one.
        folder: the run's folder; by default a new one below paths.outputs.
        config_dir: the folder of the user's own configs.
        settings: keys of the config by their last part, such as epochs=50 or optimizer="adamw"; a whole key such as
            `**{"train.optimizer.lr": 0.01}`, too.

    Raises:
        OrtpipeError: an argument, the data or the model is rejected, or a stage fails.
    """
    pairs = texts(settings) | ({} if folder is None else texts({"hydra.run.dir": str(folder)}))
    return run(*arguments_of(rows, label, model, pairs, config_dir, teacher), config_dir=config_dir)


def arguments_of(
    rows: Any,
    label: Any,
    model: Any,
    settings: Mapping[str, str],
    config_dir: str | None = None,
    teacher: Any = None,
) -> list[str]:
    """Return the arguments of the equivalent run, after writing the files that they need; settings are Hydra's text."""
    data, predictions = rows_of(rows, label), teacher_of(teacher)
    models = (
        Arguments(()) if model is None and "experiment" in settings else model_of(NETWORK if model is None else model)
    )
    before = [*models.arguments, *data.arguments, *predictions.arguments]
    arguments = [*before, *pairs_of(settings, before, config_dir)]
    if files := {**data.files, **models.files, **predictions.files}:
        outputs = Composition(arguments, config_dir).values["paths"]["outputs"]
        for name, content in files.items():
            path = Path(FOLDER.replace("${paths.outputs}", outputs)) / name
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                atomic_write(path, content)
    return arguments
