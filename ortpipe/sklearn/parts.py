"""What the constructors' plain values stand for: configs of the stages."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx

from ortpipe.artifact import Artifact
from ortpipe.data.rows import Data
from ortpipe.errors import ConfigError, nearest
from ortpipe.settings import Catalogue, article, fields_of
from ortpipe.stages.add_loss.losses import LOSSES, Loss
from ortpipe.stages.add_loss.losses.auto import Auto
from ortpipe.stages.convert.sources import SOURCES, Forward
from ortpipe.stages.convert.sources.onnx_file import OnnxFile, from_model
from ortpipe.stages.convert.sources.sklearn_estimator import from_estimator
from ortpipe.stages.convert.sources.torch_export import from_module
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS, Optimizer
from ortpipe.stages.train.schedules import SCHEDULES, Schedule

RATE = 0.003  # of Adam, where no optimizer is named: small tables have few steps
SCHEDULE = "cosine"


@dataclass(frozen=True)
class GivenEstimator:
    """A scikit-learn estimator or Pipeline at hand, as one of convert's sources."""

    estimator: Any

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Fit it if it is not, and build its graph."""
        return from_estimator(self.estimator, data, dtype)


@dataclass(frozen=True)
class GivenGraph(OnnxFile):
    """A ModelProto or a module of PyTorch at hand, with what there is to say of an .onnx file."""

    model: Any = None

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Read or export the model, which keeps its own types."""
        read = from_model if isinstance(self.model, onnx.ModelProto) else from_module
        return read(self.model, self, data)


def source_of(model: Any, hidden: Any, seed: int, *, log_link: bool, **told: Any) -> Any:
    """Return the source of convert's that a model stands for.

    Args:
        model: see `OrtEstimator`.
        hidden: layers of the network for None.
        seed: of the weights of a network by name.
        log_link: whether the loss takes the prediction for a logarithm, which has no unit to scale.
        told: task and classes; a source of networks takes those that it does not say itself.
    """
    if isinstance(model, onnx.ModelProto):
        return GivenGraph("model", model=model)
    if isinstance(model, str | Path) and Path(model).suffix == ".onnx":
        return OnnxFile(str(model))
    if any(base.__module__ == "torch.nn.modules.module" for base in type(model).__mro__):
        return GivenGraph(type(model).__name__, task=told["task"], classes=told["classes"], model=model)
    if hasattr(model, "fit"):
        return GivenEstimator(model)
    if model is None:
        if not isinstance(hidden, Sequence | np.ndarray) or isinstance(hidden, str):
            rule, fix = "{key} must be a sequence of layers' sizes.", "Give (100,) for one layer of 100."
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
        kind: Any = member(SOURCES, "model", model)
        settings = {"seed": seed, "scale_target": not log_link}
        model = kind(**{name: value for name, value in settings.items() if name in fields_of(kind)})
    return model if isinstance(model, OnnxFile) else telling(model, **told)


def telling(source: Any, **told: Any) -> Any:
    """Return a source with what it does not say itself."""
    kind: Any = type(source)
    open_fields = (name for name in fields_of(kind) if getattr(source, name) is None)
    return dataclasses.replace(source, **{name: told[name] for name in open_fields if told.get(name) is not None})


def member(catalogue: Catalogue[Any], key: str, name: str) -> Any:
    """Return the member of a name or import path.

    Raises:
        ConfigError: there is none.
    """
    if name not in catalogue:
        rule = f"{{key}} must be the name of {article(catalogue.noun)}, or one with its settings."
        raise ConfigError(rule, key=key, got=repr(name), fix=nearest(name, catalogue))
    return catalogue[name]


def optimizer_of(given: str | Optimizer | None, rate: float | None) -> Optimizer:
    """Return the optimizer, with another rate where one is given."""
    if given is None:
        return OPTIMIZERS["adam"](lr=RATE if rate is None else rate)
    settings = {} if rate is None else {"lr": rate}
    if isinstance(given, str):
        return member(OPTIMIZERS, "optimizer", given)(**settings)
    return dataclasses.replace(cast(Any, given), **settings)


def schedule_of(given: str | Schedule | None, usual: str) -> Schedule:
    """Return the schedule."""
    return given if isinstance(given, Schedule) else member(SCHEDULES, "schedule", given or usual)()


def loss_of(given: str | Loss | None) -> Loss:
    """Return the loss; without one the model's own: by its estimator's objective, else by its task."""
    return member(LOSSES, "loss", given or "auto")() if given is None or isinstance(given, str) else given


def check_task(loss: Loss, task: str) -> None:
    """Refuse a loss that is none for labels of a task, in the words of Python."""
    if task not in getattr(loss, "tasks", (task,)):
        fitting = ", ".join(repr(name) for name in LOSSES if task in LOSSES[name].tasks)
        raise ConfigError(
            f"{{key}} must be one for {task} labels.", key="loss", got=str(loss), fix=f"Take one of {fitting}."
        )


def penalty_of(
    given: float | str | Mapping[str, Any] | PenaltyConfig | None, loss: Loss, artifact: Artifact
) -> PenaltyConfig:
    """Return the penalty; a number λ is λ·Σw² over weights: parameters of two dimensions and more.

    Without one it is that of the estimator's objective, where the loss is: the one without the other is not what it
    was fitted by.
    """
    if isinstance(given, PenaltyConfig):
        return given
    if given == "auto":
        return PenaltyConfig(auto=True)
    if isinstance(given, str):
        rule, fix = (
            "{key} is a number, auto, or {parameter or glob: {penalty: strength}}.",
            "Give a number: λ of λ·Σw².",
        )
        raise ConfigError(rule, key="penalty", got=repr(given), fix=fix)
    if given is None:
        return PenaltyConfig(auto=isinstance(loss, Auto) and bool(artifact.facts.objective))
    if isinstance(given, Mapping):
        return PenaltyConfig(given)
    weights = [name for name in artifact.facts.parameters if artifact.initializers[name].ndim > 1]
    return PenaltyConfig({name: {"l2": given} for name in weights})
