"""Shared by both estimators: rows checked by scikit-learn, five stages, and the fitted state."""

import contextlib
import dataclasses
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Literal, Self

import numpy as np
import onnx
import onnx_ir as ir
from annotated_types import Lt
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ortpipe import (
    AddLossConfig,
    Artifact,
    CheckpointConfig,
    ConvertConfig,
    Data,
    EarlyStopConfig,
    Facts,
    Loss,
    Optimizer,
    PenaltyConfig,
    Rows,
    RuntimeConfig,
    Schedule,
    SplitConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    penalty,
    split,
    train,
)
from ortpipe.data import feed_inputs, plain
from ortpipe.errors import ConfigError, ConvertError, DataError, words
from ortpipe.facts import Task
from ortpipe.facts_json import read_facts, read_metadata
from ortpipe.graph import keep_outputs, some
from ortpipe.runtime import Session
from ortpipe.settings import Count, Positive, checked
from ortpipe.sklearn.frames import FrameInputs, columns_of, read
from ortpipe.sklearn.parts import (
    check_task,
    loss_of,
    note_in_words,
    optimizer_of,
    penalty_of,
    schedule_of,
    source_of,
    with_defaults,
)
from ortpipe.sklearn.progress import Callback, EndOfFit, Listener, progress_bar
from ortpipe.sklearn.show import html
from ortpipe.sklearn.weights import row_weights, with_mean_one
from ortpipe.stages.convert.sources import OnnxFile, plain_classes

ROWS = 2**14  # per call: a row's activations take many times its memory
WORDS = {  # settings of the stages → arguments
    "add_loss.": "",
    "convert.": "",
    "convert.source.": "model.",
    "convert.tie": "",
    "data.split.validation": "validation_fraction",
    "early_stop.patience": "patience",
    "lr": "learning_rate",
    "optimizer.lr": "learning_rate",
    "source.": "model.",
    "terms": "penalty",
    "train.": "",
    "train.optimizer.lr": "learning_rate",
    "train/": "",
}
FLOATS = (np.float64, np.float32)


class Predictor:
    """Runs a model that is described by its metadata."""

    def __init__(self, model: bytes, threads: int) -> None:
        self._proto = onnx.ModelProto.FromString(model)
        self.facts = read_facts(read_metadata(self._proto))
        inner = ir.from_proto(self._proto)
        keep_outputs(inner, list(dict.fromkeys([self.facts.prediction, self.facts.logits or self.facts.prediction])))
        self._session = Session(inner, RuntimeConfig(threads))

    def __call__(self, inputs: FrameInputs, output: str) -> np.ndarray:
        """Return the prediction for rows, or its logits."""
        count = len(next(iter(inputs.arrays.values())))
        fed = feed_inputs(
            self._proto, self.facts, Rows(inputs.arrays, np.zeros(count, np.int8), kept=inputs.raw_columns)
        )
        cuts = (slice(first, first + ROWS) for first in range(0, count, ROWS))
        outputs = [self._session.run({name: a[cut] for name, a in fed.items()}, [output])[0] for cut in cuts]
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


_PREDICTORS: weakref.WeakKeyDictionary[Any, Predictor] = weakref.WeakKeyDictionary()  # sessions are not pickled


@dataclass(eq=False, repr=False)
class OrtEstimator(BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no type hints
    """Trains a model with ortpipe's stages: convert, add_loss, penalty, derive, train.

    Args:
        model: None is an MLP with `hidden` layers, which standardizes its inputs and a regression's targets; or a
            scikit-learn estimator or Pipeline, fitted first if necessary; an .onnx file's path or a ModelProto; a
            PyTorch module; the name of a source of networks (`mlp`, `tabular`), or one with its settings.
        hidden: sizes of the layers of the MLP for None.
        loss: the name of a loss, or one with its settings; None or `auto`: that of a scikit-learn estimator's
            objective, for other models squared error, log loss or cross-entropy.
        penalty: λ of λ·Σw² over weights (not biases), which is added to the mean loss; or {parameter or glob:
            {penalty: strength}}; `auto`: that of a scikit-learn estimator's objective; None: `auto` if the loss is
            that objective's, else none; 0: none.
        optimizer: the name of an optimizer, or one with its settings; None: Adam of rate 0.003.
        learning_rate: overrides the optimizer's rate.
        schedule: the name of a schedule, or one with its settings; None: cosine (constant in partial_fit and for
            lbfgs).
        epochs: passes over the rows in a fit; for lbfgs, the largest number of iterations.
        batch_size: rows per step; lbfgs uses all of them.
        early_stopping: hold out `validation_fraction` of the rows, stop after `patience` epochs without a better loss
            on them, and keep the best weights.
        init: `random` trains from new weights, `keep` from the model's weights.
        warm_start: fit continues from the previous fit, for `epochs` more.
        callbacks: each is called with an `Epoch` after every epoch; one that returns True ends the fit.
        dtype: `float32` or `float64`; None: that of X, and float32 for DataFrames with raw columns (see `fit`). An
            .onnx model keeps its own.
        n_jobs: threads of the runtime; None is one.
        random_state: seed of initial weights, order and held-out rows; None: a new seed in every fit.
        verbose: 1 shows a progress bar.

    Attributes:
        onnx_: the trained model, a ModelProto; its metadata describe it.
        history_: `loss` and, with early stopping, `validation_loss` of each epoch.
        n_iter_: the number of epochs, including those before a warm start or partial_fit.
        notes_: the stages' notes on their changes and assumptions.
        tensors_: the training's state by name, as the train stage returns it.
        n_features_in_, feature_names_in_: number and names of the features of X.
    """

    model: Any = None
    _: KW_ONLY
    hidden: Sequence[int] = (100,)
    loss: str | Loss | None = None
    penalty: float | str | Mapping[str, Any] | PenaltyConfig | None = None
    optimizer: str | Optimizer | None = None
    learning_rate: float | None = None
    schedule: str | Schedule | None = None
    epochs: int = 50
    batch_size: int = 32
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 10
    init: Literal["keep", "random"] = "keep"
    warm_start: bool = False
    callbacks: Sequence[Callback] = ()
    dtype: Literal["float32", "float64"] | None = None
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 0
    _task: Task = field(default="multiclass", init=False)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train.

        Args:
            X: features [N, K]: an array or a DataFrame; each column of a DataFrame with words, dates or missing values
                (for a network, or a Pipeline that accepts them) becomes an input of its own, with its raw values.
            y: labels.
            sample_weight: [N]; a row of weight 2 counts like two rows. The loss is Σ w·l / Σ w.

        Raises:
            ConfigError: a constructor's argument is not valid.
            ConvergenceError: the loss is not finite.
            ConvertError: the model does not fit these rows and labels.
            DataError: the rows do not fit the model.
        """
        goes_on = self.warm_start and hasattr(self, "tensors_")
        epochs = checked(self.epochs, Count, "epochs", 100)
        data = self._data(X, y, sample_weight, goes_on=goes_on, hold_out=self.early_stopping)
        return self._train(data, epochs, goes_on=goes_on, schedule="cosine")

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> Self:
        if self.schedule not in (None, "constant"):
            rule, fix = "{key} must be constant in partial_fit, which does not know the last step.", "Set {key}=None."
            raise ConfigError(rule, key="schedule", got=self.schedule, fix=fix)
        goes_on = hasattr(self, "tensors_")
        data = self._data(X, y, sample_weight, goes_on=goes_on, hold_out=False, classes=classes)
        return self._train(data, 1, goes_on=goes_on, schedule="constant")

    def _data(self, X: Any, y: Any, sample_weight: Any, *, goes_on: bool, hold_out: bool, classes: Any = None) -> Data:
        """Return checked rows with labels as the model needs them, without rows of weight 0."""
        y = plain(y)
        if not goes_on:
            self._columns = columns_of(X, self.model)
        if self._columns is None:
            X, y = validate_data(self, X, y, reset=not goes_on, dtype=FLOATS, multi_output=True, **self._target_checks)
            inputs = FrameInputs({"X": X}, {})
        else:
            inputs = read(validate_data(self, X, reset=not goes_on, skip_check_array=True), self._columns)
            y = check_array(y, ensure_2d=False, dtype="numeric" if self._task == "regression" else None, input_name="y")
            check_consistent_length(X, y)
        weight = row_weights(sample_weight, getattr(self, "class_weight", None), y)
        if weight is not None and not weight.all():
            inputs, y, weight = inputs.take(weight > 0), y[weight > 0], weight[weight > 0]
        labels = self._read_labels(y, classes, goes_on=goes_on)
        names = (
            {"X": tuple(self.feature_names_in_)} if self._columns is None and hasattr(self, "feature_names_in_") else {}
        )
        rows = Rows(inputs.arrays, labels, weight, columns=names, kept=inputs.raw_columns, notes=())
        if not hold_out:
            return Data(rows)
        if len(labels) == 1:
            rule, fix = "early_stopping holds out rows: X must have at least 2.", "Set early_stopping=False."
            raise DataError(rule, got="1 sample", fix=fix)
        fraction = checked(self.validation_fraction, Annotated[Positive, Lt(1)], "validation_fraction", 0.1)
        counts = np.unique(labels, return_counts=True)[1] if self._task in ("binary", "multiclass") else np.zeros(1)
        stratify = bool(counts.min() > 1 and len(counts) <= fraction * len(labels))  # if each class has enough rows
        share = SplitConfig(test=None, validation=fraction, stratify=stratify, seed=self._seed)
        return split(rows, share)

    @property
    @abstractmethod
    def _target_checks(self) -> dict[str, Any]:
        """Arguments for scikit-learn's check of y."""

    @abstractmethod
    def _read_labels(self, y: np.ndarray, classes: Any, *, goes_on: bool) -> np.ndarray:
        """Return y as labels of rows; set the task and the classes."""

    @abstractmethod
    def _take_classes(self, facts: Facts) -> None:
        """Use the classes of a model that has more of them than the labels."""

    @property
    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        # without a seed, do not draw from NumPy's global state, which belongs to the user
        random = np.random.default_rng() if self.random_state is None else check_random_state(self.random_state)
        return int(random.integers(2**31) if isinstance(random, np.random.Generator) else random.randint(2**31))

    @words(WORDS)
    def _train(self, data: Data, epochs: int, *, goes_on: bool, schedule: str) -> Self:
        seed = self._seed
        forward = self._forward(data, seed) if not goes_on else _artifact(self._trainable)
        data = with_mean_one(data)
        loss = AddLossConfig(loss_of(self.loss), sample_weight=data.weighted)
        check_task(loss.loss, forward.facts.task)
        penalty_config = penalty_of(self.penalty, loss.loss, forward)
        derived = derive(penalty(add_loss(forward, loss, data=data), penalty_config))
        start = self.tensors_ if goes_on else None
        done = 0 if start is None else len(start["losses/train"])
        config = self._config(done + epochs, seed, schedule)
        runtime = RuntimeConfig(effective_n_jobs(self.n_jobs))
        minibatch = config.optimizer.solver == "minibatch"
        with progress_bar(type(self).__name__, done, config.epochs, shown=self.verbose > 0) as bar:
            listener = Listener(self.callbacks or (), bar, EndOfFit if minibatch else StopIteration)
            try:
                with contextlib.nullcontext() if minibatch else listener.until_next():
                    trained = train(derived, config, data=data, runtime=runtime, report=listener, start=start)
            except (EndOfFit, KeyboardInterrupt) as end:
                if listener.checkpoint is None:
                    raise
                listener.interrupted = isinstance(end, KeyboardInterrupt)
                config = dataclasses.replace(config, epochs=max(1, listener.checkpoint.epochs))
                trained = train(derived, config, data=data, runtime=runtime, start=listener.checkpoint)
        self._keep(forward, trained)
        if listener.interrupted:
            text = f"Training was interrupted after {self.n_iter_} of {done + epochs} epochs."
            warnings.warn(text, stacklevel=3)
        return self

    def _forward(self, data: Data, seed: int) -> Artifact:
        """Return the forward model, with the task and classes of these labels."""
        classes = getattr(self, "classes_", None)
        labels = None if classes is None or self._task == "multilabel" else plain_classes(classes)
        log_link = getattr(loss_of(self.loss), "link", None) == "log"
        self._assumed = list[str]()
        source = source_of(self.model, self.hidden, seed, log_link=log_link, task=self._task, classes=labels)
        if not isinstance(source, OnnxFile):
            dtype_setting = checked(self.dtype, Literal["float32", "float64"] | None, "dtype", None)
            kind: Any = dtype_setting or ("float32" if self._columns else data.train.head(1).inputs["X"].dtype.name)
            return self._fitting(convert(None, ConvertConfig(source, kind), data=data), data)
        as_labels = with_defaults(source, task=self._task, classes=labels)
        try:
            artifact = convert(None, ConvertConfig(source), data=data)
        except ConvertError as error:
            if error.key != "source.task":
                raise
            artifact = convert(None, ConvertConfig(as_labels), data=data)
        known_classes = artifact.facts.classes
        if artifact.facts.task == "regression" != self._task:
            artifact = convert(None, ConvertConfig(as_labels), data=data)
        elif (
            known_classes == tuple(range(len(known_classes or ())))
            and labels
            and len(labels) == len(known_classes)
            and labels != known_classes
        ):
            artifact = convert(None, ConvertConfig(with_defaults(source, classes=labels)), data=data)
            self._assumed = [
                f"the model's classes 0 to {len(labels) - 1} are assumed to be {some(list(map(str, labels)))}"
            ]
        return self._fitting(artifact, data)

    def _fitting(self, artifact: Artifact, data: Data) -> Artifact:
        """Return the artifact with its penalty scaled to the row weights; ConvertError: its task does not fit."""
        if (artifact.facts.task == "regression") != (self._task == "regression"):
            raise ConvertError(
                f"{{key}} must fit {type(self).__name__}.",
                key="model",
                got=f"a {artifact.facts.task} model",
                fix="Use the other of OrtClassifier and OrtRegressor, or another model.",
            )
        self._take_classes(artifact.facts)
        weight, objective = data.train.head(len(data.train)).sample_weight, artifact.facts.objective
        if weight is None or "rows" not in objective:
            return artifact
        scaled = {**objective, "weight": objective.get("weight", 1.0) / float(weight.mean())}  # the loss is Σ w·l / Σ w
        return Artifact(artifact.model, dataclasses.replace(artifact.facts, objective=scaled), artifact.tensors)

    def _config(self, epochs: int, seed: int, schedule: str) -> TrainConfig:
        optimizer = optimizer_of(self.optimizer, self.learning_rate)
        finds_rates = "schedule" in getattr(optimizer, "decides", ())
        return TrainConfig(
            optimizer,
            schedule_of(self.schedule, "constant" if finds_rates else schedule),
            epochs=epochs,
            batch_size=self.batch_size,
            init=self.init,
            seed=seed,
            early_stop=EarlyStopConfig(self.patience) if self.early_stopping else EarlyStopConfig(),
            checkpoint=CheckpointConfig(minutes=None),
        )

    def _keep(self, forward: Artifact, trained: Artifact) -> None:
        self._trainable = forward.model.SerializeToString(deterministic=True)  # in training mode, with dropout
        self._trained = trained.model.SerializeToString(deterministic=True)
        self.tensors_ = dict(trained.tensors)
        self.history_ = {"loss": self.tensors_["losses/train"].tolist()}
        if "losses/validation" in self.tensors_:
            self.history_["validation_loss"] = self.tensors_["losses/validation"].tolist()
        self.n_iter_ = len(self.history_["loss"])
        notes = [note for record in trained.facts.lineage for note in record.get("notes", ())]
        self.notes_ = [*self._assumed, *(note_in_words(note, WORDS) for note in notes)]
        _PREDICTORS.pop(self, None)

    @property
    def onnx_(self) -> onnx.ModelProto:
        """A copy of the trained model."""
        check_is_fitted(self)
        return onnx.ModelProto.FromString(self._trained)

    @property
    def _predictor(self) -> Predictor:
        check_is_fitted(self)
        if self not in _PREDICTORS:
            _PREDICTORS[self] = Predictor(self._trained, effective_n_jobs(self.n_jobs))
        return _PREDICTORS[self]

    def _predict(self, X: Any, output: str | None = None) -> np.ndarray:
        """Return the model's prediction for rows, or another of its outputs."""
        predictor = self._predictor
        if self._columns is None:
            inputs = FrameInputs({"X": validate_data(self, X, reset=False, dtype=FLOATS)}, {})
        else:
            inputs = read(validate_data(self, X, reset=False, skip_check_array=True), self._columns)
        return predictor(inputs, output or predictor.facts.prediction)

    def _html_repr(self) -> str:
        return html(self)


def _artifact(model: bytes) -> Artifact:
    proto = onnx.ModelProto.FromString(model)
    return Artifact(proto, read_facts(read_metadata(proto)))
