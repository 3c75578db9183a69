"""Class weights of the data: from the setting to the loss."""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_class_weight

from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Data, Rows
from ortpipe.data.sources.csv import Csv
from ortpipe.errors import ConfigError, DataError, LossError
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.convert.stage import convert

COUNT = 300
X = np.random.default_rng(0).normal(size=(COUNT, 3))
NUMBERS = (X[:, 0] > 0.8).astype(np.int64) + (X[:, 1] > 1)
WORDS = np.array(["no", "perhaps", "yes"])[NUMBERS]
WEIGHT = np.random.default_rng(1).uniform(0.5, 2, COUNT)
SPLIT = SplitConfig(test=0.2, validation=0.1)


@pytest.fixture
def source(tmp_path):
    """Write the rows to a CSV file; return a function that returns its source."""

    def written(labels=WORDS, *, stream=False, **settings):
        frame = pd.DataFrame(X, columns=list("abc")).assign(label=labels, weight=WEIGHT)
        frame.to_csv(tmp_path / "rows.csv", index=False)
        inputs = {"X": ["a", "b", "c"]}
        return Csv(path=str(tmp_path / "rows.csv"), label="label", inputs=inputs, stream=stream, **settings)

    return written


@pytest.mark.parametrize("labels", [NUMBERS, WORDS, NUMBERS > 0], ids=["numbers", "words", "truth values"])
@pytest.mark.parametrize("stream", [False, True], ids=["in memory", "streamed"])
def test_balanced_weights_are_scikit_learns_for_the_training_rows(source, labels, stream):
    data = load(DataConfig(source(labels, stream=stream), SPLIT, class_weight="balanced"))
    rows = np.concatenate([label for label, _ in data.train.read_labels()])
    classes = np.unique(rows)
    expected = compute_class_weight("balanced", classes=classes, y=rows)
    assert data.class_weight == pytest.approx(dict(zip(classes.tolist(), expected, strict=True)))
    assert any(note.startswith("class weights: ") for note in data.notes)


@pytest.mark.parametrize(
    ("labels", "setting", "expected"),
    [
        (WORDS, {"yes": 5}, {"no": 1.0, "perhaps": 1.0, "yes": 5.0}),
        (WORDS, {False: 2, True: 5}, {"no": 2.0, "perhaps": 1.0, "yes": 5.0}),  # as YAML reads no and yes
        (NUMBERS, {1: 0, "2": 3}, {0: 1.0, 1: 0.0, 2: 3.0}),
        (NUMBERS > 0, {True: 4}, {0: 1.0, 1: 4.0}),
    ],
)
def test_a_mapping_names_classes(source, labels, setting, expected):
    weights = load(DataConfig(source(labels), SPLIT, class_weight=setting)).class_weight
    assert {int(k) if labels.dtype == bool and not isinstance(k, str) else k: v for k, v in weights.items()} == expected


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "much"])
def test_a_weight_must_be_a_number_that_is_not_negative(source, wrong):
    with pytest.raises(ConfigError, match=r"class_weight\.yes must be"):
        DataConfig(source(), class_weight={"yes": wrong})


@pytest.mark.parametrize(
    ("labels", "setting", "match"),
    [
        (WORDS, {"yess": 2}, r"class_weight must name classes(.|\n)*Did you mean 'yes'"),
        (NUMBERS, {3: 2}, r"class_weight must name classes(.|\n)*'3'"),
        (NUMBERS, {0: 0, 1: 0, 2: 0}, "must not be zero for all"),
        (X[:, 0], "balanced", "one class each"),
    ],
)
def test_a_setting_that_does_not_fit_the_labels_is_rejected(source, labels, setting, match):
    with pytest.raises(DataError, match=match):
        load(DataConfig(source(labels), SPLIT, class_weight=setting))


def test_a_model_without_classes_is_rejected():
    data = Data(Rows({"X": X}, NUMBERS), class_weight={0: 1.0, 1: 2.0})
    config = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"))
    with pytest.raises(DataError, match=r"need a classifier(.|\n)*a regression model"):
        convert(None, config, data=data)
    forward = convert(LogisticRegression().fit(X, NUMBERS))
    with pytest.raises(LossError, match=r"know the class weights(.|\n)*Give convert the same data"):
        add_loss(forward, AddLossConfig(LOSSES["cross_entropy"]()), data=data)


def test_they_change_the_digest_of_the_data(source):
    settings = [None, "balanced", {"yes": 2.0}, {"yes": 3.0}]
    assert len({load(DataConfig(source(), SPLIT, class_weight=s)).digest() for s in settings}) == len(settings)


@pytest.mark.parametrize("stream", [False, True], ids=["in memory", "streamed"])
def test_a_fit_and_a_loss_count_classes_as_scikit_learn_does(source, stream):
    weights = {"no": 0.5, "yes": 4.0}
    data = load(DataConfig(source(stream=stream, sample_weight="weight"), SPLIT, class_weight=weights))
    path, params = "sklearn.linear_model.LogisticRegression", {"tol": 1e-10}
    artifact = convert(None, ConvertConfig(SklearnEstimator(path, params), dtype="float64"), data=data)
    rows = data.train.sample()
    own = LogisticRegression(**params, class_weight=weights).fit(rows.inputs["X"], rows.label, rows.sample_weight)
    np.testing.assert_allclose(artifact.initializers["coefficient"], own.coef_.T, atol=1e-6)
    scored = add_loss(artifact, AddLossConfig(LOSSES["cross_entropy"](), sample_weight=True), data=data)
    index = np.searchsorted(own.classes_, rows.label)
    feed = {"X": rows.inputs["X"], scored.facts.label: index[:, None], "sample_weight": rows.sample_weight[:, None]}
    [loss], [p] = (Session(scored.model).run(feed, [name]) for name in (scored.facts.loss, "probabilities"))
    factors = np.array([0.5, 1.0, 4.0])[index] * rows.sample_weight
    assert loss == pytest.approx(np.mean(-factors * np.log(p[np.arange(len(p)), index])), rel=1e-9)


def test_a_network_of_two_classes_counts_them_too():
    labels = (X[:, 0] > 1).astype(np.int64)
    data = Data(Rows({"X": X}, labels), class_weight={0: 0.6, 1: 3.0})
    forward = convert(None, ConvertConfig(MLP(hidden=(4,), dropout=0.0), dtype="float64"), data=data)
    assert forward.facts.class_weight == (0.6, 3.0)
    scored = add_loss(forward, AddLossConfig(LOSSES["auto"]()), data=data)
    feed = {"X": X, scored.facts.label: labels[:, None]}
    [loss], [p] = (Session(scored.model).run(feed, [name]) for name in (scored.facts.loss, scored.facts.prediction))
    factors = np.array([0.6, 3.0])[labels]
    assert loss == pytest.approx(np.mean(-factors * np.log(p[np.arange(COUNT), labels])), rel=1e-6)
