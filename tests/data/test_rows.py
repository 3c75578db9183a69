import dataclasses

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression

from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Data, Rows
from ortpipe.data.sources.bundled import Bundled
from ortpipe.data.split import split
from ortpipe.errors import ConfigError, DataError

X, Y = load_iris(return_X_y=True)
NAMES = load_iris().target_names[Y]


def rows(x=X, y=Y, weight=None, **inputs):
    return Rows({"X": x, **inputs}, y, weight)


def with_value(array, place, value):
    changed = array.astype(float)
    changed[place] = value
    return changed


BAD = {
    "no input": (lambda: Rows({}, Y), "at least one input"),
    "no row": (lambda: rows(X[:0], Y[:0]), "at least one row"),
    "a label that is a number": (lambda: rows(X, np.array(1.0)), "at least one row"),
    "an input that is a number": (lambda: rows(np.array(1.0)), "one entry per row"),
    "fewer labels than rows": (lambda: rows(X, Y[:-1]), "one entry per row"),
    "one of two inputs too short": (lambda: rows(Z=X[:-1]), r"'Z' has shape \(149, 4\)"),
    "fewer weights than rows": (lambda: rows(weight=np.ones(3)), "sample_weight has shape"),
    "weights as a column": (lambda: rows(weight=np.ones((150, 1))), r"shape \[N\](.|\n)*\(150, 1\)"),
    "a negative weight": (lambda: rows(weight=with_value(np.ones(150), 3, -0.5)), r"must not be negative(.|\n)*-0\.5"),
    "weights in words": (lambda: rows(weight=NAMES), "weights must be numbers"),
    "weights as objects": (lambda: rows(weight=np.ones(150, object)), "weights must be numbers"),
    "ragged rows": (lambda: rows(np.array([[1], [2, 3]] * 75, dtype=object)), "array of Python objects"),
    "dates": (lambda: rows(np.full((150, 1), "2020-01-01", "M8[D]")), r"input 'X' of datetime64\[D\]"),
    "complex numbers": (lambda: rows(X + 1j), "input 'X' of complex128"),
    "nan in an input": (lambda: rows(with_value(X, (7, 2), np.nan)), "nan in input 'X', row 7, column 2"),
    "infinity in an input": (lambda: rows(with_value(X, (0, 0), -np.inf)), "-inf in input 'X', row 0"),
    "nan in a label": (lambda: rows(y=with_value(Y, 5, np.nan)), "nan in label, row 5"),
    "nan in a weight": (lambda: rows(weight=with_value(np.ones(150), 9, np.nan)), "nan in sample_weight, row 9"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_rows_that_cannot_be_trained_on_are_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_a_value_that_is_not_finite_is_placed_by_its_columns_name():
    with pytest.raises(DataError, match="column 'petal'"):
        Rows({"X": with_value(X, (1, 2), np.nan)}, Y, columns={"X": ("a", "b", "petal", "d")})


def test_rows_are_counted_and_taken_together():
    taken = rows(weight=np.arange(150.0), Z=X[:, :1]).take(np.array([149, 0]))
    assert len(taken) == 2
    np.testing.assert_array_equal(taken.inputs["X"], X[[149, 0]])
    np.testing.assert_array_equal(taken.inputs["Z"], X[[149, 0], :1])
    np.testing.assert_array_equal(taken.label, Y[[149, 0]])
    np.testing.assert_array_equal(taken.sample_weight, [149, 0])


def test_taking_leaves_the_rows_as_they_are():
    given = rows()
    before = given.digest()
    given.take(np.arange(10)).inputs["X"][:] = 0
    assert given.digest() == before


DIFFERENT = {
    "an input's value": rows(with_value(X, (3, 3), 9.0)),
    "an input's name": Rows({"Z": X}, Y),
    "an input's type": rows(X.astype(np.float32)),
    "an input's shape": rows(X.reshape(150, 2, 2)),
    "a label": rows(y=with_value(Y, 0, 1)),
    "labels in words": rows(y=NAMES),
    "weights": rows(weight=np.ones(150)),
    "the order of rows": rows().take(np.arange(150)[::-1]),
    "one more input": rows(Z=X),
    "the names of columns": rows().replace(columns={"X": ("a", "b", "c", "d")}),
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT)
def test_the_digest_tells_rows_apart(other):
    assert other.digest() != rows().digest()


def test_the_digest_sees_inputs_under_the_names_of_labels_and_weights():
    made = [Rows({"label": x, "sample_weight": z}, Y, np.ones(150)) for x, z in ((X, X), (X + 1, X), (X, X + 1))]
    assert len({r.digest() for r in made}) == 3


def test_the_digest_does_not_depend_on_storage():
    assert rows(np.asfortranarray(X)).digest() == rows().digest()
    assert Rows({"a": X, "b": Y}, Y).digest() == Rows({"b": Y, "a": X}, Y).digest()
    assert rows(y=NAMES.astype(object)).digest() == rows(y=NAMES).digest()


@pytest.mark.parametrize("config", [SplitConfig(), SplitConfig(test=0.2, validation=0.1), SplitConfig(stratify=True)])
def test_every_row_is_in_one_part(config):
    numbered = rows(np.arange(150.0).reshape(-1, 1))
    data = split(numbered, config)
    parts = [part for part in (data.train, data.validation, data.test) if part is not None]
    assert sorted(np.concatenate([part.inputs["X"].ravel() for part in parts])) == list(range(150))
    assert len(data.test) == round(config.test * 150)
    assert (data.validation is not None) == (config.validation > 0)


def test_a_split_is_decided_by_its_seed_alone():
    one, same, other = (split(rows(), SplitConfig(seed=seed)).digest() for seed in (1, 1, 2))
    assert one == same != other


def test_a_stratified_split_keeps_the_classes_proportions():
    data = split(rows(y=NAMES), SplitConfig(test=0.2, validation=0.2, stratify=True))
    for part, count in ((data.test, 10), (data.validation, 10), (data.train, 30)):
        assert np.unique(part.label, return_counts=True)[1].tolist() == [count] * 3


def test_without_fractions_every_row_is_trained_on():
    data = split(rows(), SplitConfig(test=0))
    assert data.train.digest() == rows().digest()
    assert data.test is None
    assert data.validation is None


@pytest.mark.parametrize(
    "config", [SplitConfig(test=0.1), SplitConfig(test=0.5, validation=0.4), SplitConfig(test=0.9)]
)
def test_a_part_without_rows_is_refused(config):
    with pytest.raises(DataError, match=r"must have rows(.|\n)*of 2 rows"):
        split(rows(X[:2], Y[:2]), config)


def test_a_class_with_one_row_cannot_be_stratified():
    with pytest.raises(DataError, match=r"every class(.|\n)*stratify=false"):
        split(rows(X[49:80], Y[49:80]), SplitConfig(stratify=True))


@pytest.mark.parametrize(("test", "validation"), [(1.0, 0), (-0.1, 0), (0.5, 0.5), (0, 1), (float("nan"), 0)])
def test_fractions_that_leave_nothing_to_train_on_are_refused(test, validation):
    with pytest.raises(ConfigError, match=r"^(test|validation|split)"):
        SplitConfig(test=test, validation=validation)


def test_the_digest_of_data_tells_its_parts_apart():
    part = rows()
    made = [Data(part), Data(part, validation=part), Data(part, test=part)]
    assert len({data.digest() for data in made}) == 3


def test_loading_reads_and_splits():
    data = load(DataConfig(Bundled("diabetes"), SplitConfig(test=0.5)))
    assert (len(data.train), len(data.test)) == (221, 221)
    x, _ = load_diabetes(return_X_y=True)
    assert data.train.inputs["X"].shape[1] == x.shape[1]


def test_rows_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        rows().label = Y


@pytest.mark.parametrize("stage", ["convert", "train", "evaluate"])
@pytest.mark.parametrize("given", [Rows({"X": np.eye(3)}, np.arange(3.0)), (np.eye(3), np.arange(3.0))])
def test_a_stage_that_is_given_rows_that_were_not_split_says_how_to_split_them(stage, given):
    import ortpipe

    artifact = ortpipe.convert(LinearRegression().fit(np.eye(3), np.arange(3.0)))
    first = LinearRegression() if stage == "convert" else artifact
    with pytest.raises(DataError, match=rf"got: {type(given).__name__}\n  fix: Give data=split\("):
        getattr(ortpipe, stage)(first, data=given)


def test_rows_whose_elements_have_classes_are_of_none_to_stratify_by():
    rows = Rows({"X": np.zeros((9, 2))}, np.zeros((9, 4, 4), int))
    with pytest.raises(DataError, match=r"one class per row(.|\n)*\(9, 4, 4\)(.|\n)*stratify=false"):
        split(rows, SplitConfig(stratify=True))
    assert len(split(rows, SplitConfig(test=1 / 3)).train) == 6


def test_a_label_of_nan_names_the_way_to_mark_what_has_none():
    with pytest.raises(DataError, match=r"nan in label, row 1(.|\n)*add_loss's padding=-100"):
        Rows({"X": np.zeros((2, 1))}, np.array([[1.0, 2.0], [np.nan, 1.0]]))
