import os
from inspect import signature

import numpy as np
import pytest
from sklearn import datasets

from ortpipe.data.load import DataConfig, load
from ortpipe.data.sources import SOURCES, bundled
from ortpipe.data.sources.audio import Audio
from ortpipe.data.sources.bundled import LOADERS, Bundled
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.excel import Excel
from ortpipe.data.sources.function import Function
from ortpipe.data.sources.images import Images
from ortpipe.data.sources.npy import Npy
from ortpipe.data.sources.npz import Npz
from ortpipe.data.sources.parquet import Parquet
from ortpipe.data.sources.synthetic import Synthetic
from ortpipe.data.table import TableSource
from ortpipe.errors import ConfigError, DataError, under
from ortpipe.settings import fields_of

SHAPES = {
    "breast_cancer": ((569, 30), (569,)),
    "diabetes": ((442, 10), (442,)),
    "digits": ((1797, 64), (1797,)),
    "iris": ((150, 4), (150,)),
    "linnerud": ((20, 3), (20, 3)),
    "wine": ((178, 13), (178,)),
}


def test_rows_that_are_changed_leave_those_of_the_next_job_as_they_are():
    first = Bundled("digits")()
    first.inputs["X"][:] = -1
    first.label[:] = -1
    x, y = datasets.load_digits(return_X_y=True)
    again = Bundled("digits")()
    np.testing.assert_array_equal(again.inputs["X"], x)
    np.testing.assert_array_equal(again.label, y)


def test_a_source_of_files_has_what_predict_reads_new_files_with():
    of_files = [SOURCES[name] for name in SOURCES if "path" in fields_of(SOURCES[name])]
    without = {cls.__name__ for cls in of_files if not isinstance(getattr(cls, "endings", None), tuple)}
    tables = [cls for cls in of_files if issubclass(cls, TableSource)]
    assert not without | {
        cls.__name__ for cls in tables if [*signature(cls.new_rows).parameters] != ["self", "columns"]
    }


def test_the_catalogue_names_every_source():
    assert {
        "audio": Audio,
        "bundled": Bundled,
        "csv": Csv,
        "excel": Excel,
        "function": Function,
        "images": Images,
        "npy": Npy,
        "npz": Npz,
        "parquet": Parquet,
        "synthetic": Synthetic,
    } == SOURCES


@pytest.mark.parametrize("name", LOADERS)
def test_every_bundled_set_loads_the_same_rows_twice(name):
    rows = Bundled(name)()
    assert (rows.inputs["X"].shape, rows.label.shape) == SHAPES[name]
    assert len(rows.columns["X"]) == rows.inputs["X"].shape[1]
    assert rows.digest() == Bundled(name)().digest()


@pytest.mark.parametrize("name", ["breast_cancer", "iris"])
def test_classes_have_their_own_names(name):
    bunch = getattr(datasets, LOADERS[name])()
    np.testing.assert_array_equal(Bundled(name)().label, bunch.target_names[bunch.target])


def test_digits_without_scikit_learn_are_those_of_its_loader():
    rows, bunch = bundled._digits(), datasets.load_digits()
    assert rows is not None
    assert rows.columns == {"X": tuple(bunch.feature_names)}
    for own, theirs in ((rows.inputs["X"], bunch.data), (rows.label, bunch.target)):
        assert own.dtype == theirs.dtype
        np.testing.assert_array_equal(own, theirs)
    assert rows.digest() == Bundled("digits", params={"n_class": 10})().digest()


def test_digits_are_numbers():
    assert sorted(set(Bundled("digits")().label.tolist())) == list(range(10))


def test_a_loaders_keywords_are_passed_on():
    rows = Bundled("digits", params={"n_class": 3})()
    assert set(rows.label.tolist()) == {0, 1, 2}
    raw = Bundled("diabetes", params={"scaled": False})()
    assert raw.inputs["X"][:, 0].max() > 70


@pytest.mark.parametrize("params", [{"as_frame": True}, {"return_X_y": True}])
def test_keywords_that_change_the_form_do_not_change_the_rows(params):
    rows = Bundled("iris", params=params)()
    assert type(rows.label) is type(rows.inputs["X"]) is np.ndarray
    assert rows.digest() == Bundled("iris")().digest()


def test_an_unknown_keyword_is_refused():
    with pytest.raises(DataError, match=r"keyword arguments of sklearn\.datasets\.load_iris(.|\n)*colour"):
        Bundled("iris", params={"colour": 1})()


def test_an_unknown_set_is_refused_with_a_guess():
    with pytest.raises(ConfigError, match=r"^dataset(.|\n)*Did you mean 'diabetes'"):
        Bundled("diabetis")


def test_a_column_can_weigh_the_rows():
    plain, weighed = Bundled("wine")(), Bundled("wine", sample_weight="alcohol")()
    np.testing.assert_array_equal(weighed.sample_weight, plain.inputs["X"][:, 0])
    np.testing.assert_array_equal(weighed.inputs["X"], plain.inputs["X"][:, 1:])
    assert weighed.columns["X"] == plain.columns["X"][1:]


def test_a_weight_column_that_does_not_exist_is_refused():
    with pytest.raises(DataError, match="Did you mean 'alcohol'"):
        Bundled("wine", sample_weight="alcohols")()


def test_a_weight_column_with_negative_values_is_refused():
    with pytest.raises(DataError, match="must not be negative"):
        Bundled("diabetes", sample_weight="age")()


def saved(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_arrays_are_read_by_their_names(tmp_path):
    x, y = datasets.load_iris(return_X_y=True)
    path = saved(tmp_path / "rows.npz", a=x[:, :2], b=x[:, 2:], target=y, w=np.ones(150))
    rows = Npz(path, label="target", sample_weight="w")()
    assert sorted(rows.inputs) == ["a", "b"]
    np.testing.assert_array_equal(rows.label, y)
    np.testing.assert_array_equal(rows.sample_weight, np.ones(150))


def test_the_order_in_the_file_does_not_matter(tmp_path):
    x, y = datasets.load_iris(return_X_y=True)
    one = Npz(saved(tmp_path / "1.npz", a=x, b=x, y=y))()
    two = Npz(saved(tmp_path / "2.npz", y=y, b=x, a=x))()
    assert one.digest() == two.digest()


def test_one_array_may_be_label_and_weight(tmp_path):
    rows = Npz(saved(tmp_path / "rows.npz", X=np.ones((2, 1)), y=np.ones(2)), sample_weight="y")()
    assert list(rows.inputs) == ["X"]
    assert rows.sample_weight.tolist() == rows.label.tolist() == [1, 1]


@pytest.mark.parametrize(("label", "weight"), [("z", None), ("y", "z")])
def test_an_array_that_is_not_there_is_refused(tmp_path, label, weight):
    path = saved(tmp_path / "rows.npz", X=np.ones((2, 1)), y=np.ones(2))
    with pytest.raises(DataError, match=r"every array that is named(.|\n)*'z'(.|\n)*Valid: X, y"):
        Npz(path, label=label, sample_weight=weight)()


def test_a_file_with_labels_alone_is_refused(tmp_path):
    with pytest.raises(DataError, match="at least one input"):
        Npz(saved(tmp_path / "rows.npz", y=np.ones(2)))()


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"must be an \.npz file"):
        Npz(str(tmp_path / "nope.npz"))()


def damaged(path):
    np.savez_compressed(path, X=np.arange(3000.0).reshape(-1, 3), y=np.ones(1000))
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)


def single_array(path):
    with path.open("wb") as file:
        np.save(file, np.ones(3))


NO_NPZ = {
    "nothing": lambda p: p.write_bytes(b""),
    "text": lambda p: p.write_text("1,2,3"),
    "half a zip": lambda p: p.write_bytes(b"PK\x03\x04abc"),
    "damaged": damaged,
    "a single array": single_array,
    "objects": lambda p: np.savez(p, X=np.array([[1], [2, 3]], dtype=object), y=np.ones(2)),
}


@pytest.mark.parametrize("make", NO_NPZ.values(), ids=NO_NPZ)
def test_a_file_that_holds_no_plain_arrays_is_refused(tmp_path, make):
    path = tmp_path / "rows.npz"
    make(path)
    with pytest.raises(DataError, match=r"arrays of numbers or text(.|\n)*rows\.npz"):
        Npz(str(path))()


def test_a_pipe_is_rejected_as_an_npz_file_without_waiting_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "rows.npz")
    with pytest.raises(DataError, match="not a file"):
        Npz(str(tmp_path / "rows.npz"))()


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
def test_a_pipe_in_a_folder_is_rejected_without_waiting_for_its_writer(kind, tmp_path):
    os.mkfifo(tmp_path / f"rows.{kind}")
    with pytest.raises(DataError, match=rf"must hold regular files(.|\n)*rows\.{kind}"):
        SOURCES[kind](path=str(tmp_path), label="y")()


SETTINGS = {
    "a path": (lambda p: Npz(str(p / "no.npz")), "path", "{0} must be an .npz file"),
    "a label": (lambda p: Csv(path=str(p / "rows.csv"), label="z"), "label", "{0} must name columns"),
    "parameters": (lambda p: Bundled("iris", params={"colour": 1}), "params", "Correct {0} or"),
    "words": (lambda p: Csv(path=str(p / "rows.csv"), label="1"), None, "list it: {0}categorical=[a]"),
}


@pytest.mark.parametrize(("make", "key", "words"), SETTINGS.values(), ids=SETTINGS)
def test_a_source_speaks_of_its_own_settings_and_the_data_of_where_they_lie(make, key, words, tmp_path):
    (tmp_path / "rows.csv").write_text("a,1\n1,2\nx,3\n2,4\n")
    with pytest.raises(DataError) as own:
        make(tmp_path)()
    with pytest.raises(DataError) as placed, under("data"):
        load(DataConfig(make(tmp_path)))
    assert (own.value.key, placed.value.key) == (key, ".".join(filter(None, ["data.source", key])))
    assert words.format(key or "") in str(own.value)
    assert words.format(placed.value.key if key else "data.source.") in str(placed.value)


def written(name, folder):
    """Write scikit-learn's iris in a source's own form and return the source."""
    frame = datasets.load_iris(as_frame=True).frame
    x, y = frame.drop(columns="target").to_numpy(), frame.target.to_numpy()
    if name == "npz":
        return Npz(saved(folder / "iris.npz", X=x, y=y))
    if name == "npy":
        np.save(folder / "X.npy", x)
        np.save(folder / "y.npy", y)
        return Npy(str(folder))
    if name == "function":
        return Function(function="sklearn.datasets:load_iris", params={"return_X_y": True})
    if name == "csv":
        frame.to_csv(folder / "iris.csv", index=False)
        return Csv(path=str(folder / "iris.csv"), label="target", inputs={"X": None})
    frame.to_parquet(folder / "iris.parquet")
    return Parquet(path=str(folder / "iris.parquet"), label="target", inputs={"X": None})


@pytest.mark.parametrize("name", ["csv", "function", "npy", "npz", "parquet"])
def test_every_source_reads_the_rows_that_scikit_learn_has(name, tmp_path):
    """scikit-learn 1.9."""
    source = written(name, tmp_path)
    assert isinstance(source, SOURCES[name])
    rows, (x, y) = source(), datasets.load_iris(return_X_y=True)
    np.testing.assert_array_equal(rows.inputs["X"], x)
    np.testing.assert_array_equal(rows.label, y)
    assert rows.digest() == source().digest()


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_made_up_rows_are_those_of_scikit_learn_with_the_seed(task):
    """scikit-learn 1.9."""
    rows = Synthetic(task, rows=30, features=5, seed=3)()
    X, y = getattr(datasets, f"make_{task}")(n_samples=30, n_features=5, random_state=3)
    np.testing.assert_array_equal(rows.inputs["X"], X)
    np.testing.assert_array_equal(rows.label, y)
    assert rows.sample_weight is None
    assert rows.digest() != Synthetic(task, rows=30, features=5, seed=4)().digest()


def test_made_up_rows_take_the_makers_keywords():
    plain, moved = (Synthetic(params=params)() for params in ({}, {"bias": 2.0}))
    np.testing.assert_allclose(moved.label, plain.label + 2)


def test_made_up_rows_can_be_weighed():
    rows = Synthetic(rows=50, sample_weight=True)()
    assert rows.sample_weight.shape == (50,)
    assert 0.5 <= rows.sample_weight.min() < rows.sample_weight.max() < 1.5
    np.testing.assert_array_equal(rows.label, Synthetic(rows=50)().label)


@pytest.mark.parametrize("params", [{"colour": 1}, {"noise": "much"}])
def test_an_unknown_keyword_of_a_maker_is_refused(params):
    with pytest.raises(DataError, match=r"keyword arguments of sklearn\.datasets\.make_regression") as error:
        Synthetic(params=params)()
    assert "set rows, features and seed by their own keys" in str(error.value)


def test_an_unknown_task_is_refused_with_a_guess():
    with pytest.raises(ConfigError, match=r"^task(.|\n)*Did you mean 'regression'"):
        Synthetic("regresion")


def test_no_rows_can_not_be_made():
    with pytest.raises(ConfigError, match="at least 1"):
        Synthetic(rows=0)
