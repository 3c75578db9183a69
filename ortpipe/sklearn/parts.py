"""Turn the constructors' plain values into configs of the stages."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx

from ortpipe import LOSSES, OPTIMIZERS, SCHEDULES, Artifact, Data, Loss, Optimizer, PenaltyConfig, Schedule
from ortpipe.errors import ConfigError, in_words
from ortpipe.settings import fields_of
from ortpipe.stages import Auto, Forward, Imported
from ortpipe.stages.convert.sources import SOURCES, OnnxFile, from_estimator, from_model, from_module

KEY = re.compile(r"\b(?:data|convert|add_loss|penalty|derive|train)(?:\.\w+)+")  # a setting in a note
ASIDE = re.compile(r" \([^()]*\)")
RATE = 0.003  # Adam's default rate here: small tables have few steps


@dataclass(frozen=True)
class GivenEstimator:
    """A scikit-learn estimator or Pipeline object as a source for convert."""

    estimator: Any

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Fit the estimator if it is not fitted, and build its graph."""
        return from_estimator(self.estimator, data, dtype)


@dataclass(frozen=True)
class GivenGraph(OnnxFile):
    """A ModelProto or a PyTorch module as a source for convert, with the settings of an .onnx file."""

    model: Any = None

    def __call__(self, data: Data | None, dtype: str) -> Imported:
        """Read or export the model, which keeps its types."""
        read = from_model if isinstance(self.model, onnx.ModelProto) else from_module
        return read(self.model, self, data)


def source_of(model: Any, hidden: Any, seed: int, *, log_link: bool, **label_settings: Any) -> Any:
    """Return the source for convert that an estimator's argument `model` means.

    Args:
        model: see `OrtEstimator`.
        hidden: layers of the network for None.
        seed: the seed of the weights of a network given by name.
        log_link: whether the loss treats the prediction as a logarithm, whose target cannot be scaled.
        label_settings: task and classes; they set the fields that a source of networks leaves open.
    """
    if isinstance(model, onnx.ModelProto):
        return GivenGraph("model", model=model)
    if isinstance(model, str | Path) and Path(model).suffix == ".onnx":
        return OnnxFile(str(model))
    if any(base.__module__ == "torch.nn.modules.module" for base in type(model).__mro__):
        return GivenGraph(
            type(model).__name__, task=label_settings["task"], classes=label_settings["classes"], model=model
        )
    if hasattr(model, "fit"):
        return GivenEstimator(model)
    if model is None:
        if not isinstance(hidden, Sequence | np.ndarray) or isinstance(hidden, str):
            rule, fix = "{key} must be a sequence of layer sizes.", "Give (100,) for one layer of 100."
            raise ConfigError(rule, key="hidden", got=repr(hidden), fix=fix)
        settings = {"dropout": 0.0, "weights": "xavier", "scale_target": not log_link}
        model = SOURCES["mlp"](hidden=tuple(hidden), seed=seed, **settings)
    elif isinstance(model, type) or not (callable(model) or isinstance(model, str)):
        raise ConfigError(
            "{key} must be a model.",
            key="model",
            got=f"{model!r:.200}",
            fix="Give None, an estimator, an .onnx file's path, a ModelProto, a module of PyTorch, or the name of a "
            "source of networks.",
        )
    elif isinstance(model, str):
        kind: Any = SOURCES[model]
        settings = {"seed": seed, "scale_target": not log_link}
        model = kind(**{name: value for name, value in settings.items() if name in fields_of(kind)})
    return model if isinstance(model, OnnxFile) else with_defaults(model, **label_settings)


def with_defaults(source: Any, **defaults: Any) -> Any:
    """Return a source with its open fields (None) set to these defaults."""
    kind: Any = type(source)
    open_fields = (name for name in fields_of(kind) if getattr(source, name) is None)
    return dataclasses.replace(
        source, **{name: defaults[name] for name in open_fields if defaults.get(name) is not None}
    )


def optimizer_of(optimizer: str | Optimizer | None, rate: float | None) -> Optimizer:
    """Return the optimizer, by default Adam, with the rate if it is not None."""
    if optimizer is None:
        return OPTIMIZERS["adam"](lr=RATE if rate is None else rate)
    settings = {} if rate is None else {"lr": rate}
    if isinstance(optimizer, str):
        return OPTIMIZERS[optimizer](**settings)
    return dataclasses.replace(cast(Any, optimizer), **settings)


def schedule_of(schedule: str | Schedule | None, default: str) -> Schedule:
    """Return the schedule."""
    return schedule if isinstance(schedule, Schedule) else SCHEDULES[schedule or default]()


def loss_of(loss: str | Loss | None) -> Loss:
    """Return the loss; None means `auto`: that of the estimator's objective, or else one for the task."""
    return LOSSES[loss or "auto"]() if loss is None or isinstance(loss, str) else loss


def check_task(loss: Loss, task: str) -> None:
    """Raise ConfigError for a loss that does not fit the task, in terms of the Python arguments."""
    if task not in getattr(loss, "tasks", (task,)):
        suitable = ", ".join(repr(name) for name in LOSSES if task in LOSSES[name].tasks)
        raise ConfigError(
            f"{{key}} must fit {task} labels.", key="loss", got=str(loss), fix=f"Choose one of {suitable}."
        )


def penalty_of(
    penalty: float | str | Mapping[str, Any] | PenaltyConfig | None, loss: Loss, artifact: Artifact
) -> PenaltyConfig:
    """Return the penalty; a number λ means λ·Σw² over weights, the parameters of two or more dimensions.

    None means that of the estimator's objective if the loss comes from it, too, else none.
    """
    if isinstance(penalty, PenaltyConfig):
        return penalty
    if penalty == "auto":
        return PenaltyConfig(auto=True)
    if isinstance(penalty, str):
        rule, fix = (
            "{key} must be a number, auto, or {parameter or glob: {penalty: strength}}.",
            "Give a number: λ of λ·Σw².",
        )
        raise ConfigError(rule, key="penalty", got=repr(penalty), fix=fix)
    if penalty is None:
        return PenaltyConfig(auto=isinstance(loss, Auto) and bool(artifact.facts.objective))
    if isinstance(penalty, Mapping):
        return PenaltyConfig(penalty)
    weights = [name for name in artifact.facts.parameters if artifact.initializers[name].ndim > 1]
    return PenaltyConfig({name: {"l2": penalty} for name in weights})


def note_in_words(note: str, words: Mapping[str, str]) -> str:
    """Return a note with its settings in the caller's words, without parentheses about settings that have none.

    >>> note_in_words("fixes sizes (convert.source.shape); ties (convert.tie=false)", {"convert.source.": "model."})
    'fixes sizes (model.shape); ties'
    """

    def named(text: re.Match[str]) -> str:
        return "" if any(in_words(key, words) in ("", key) for key in KEY.findall(text[0])) else text[0]

    return KEY.sub(lambda key: in_words(key[0], words), ASIDE.sub(named, note))
