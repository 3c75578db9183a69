"""Parts that the data say themselves: by column or by file; fractions are tested with the rows."""

import numpy as np
import pandas as pd
import pytest

from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.sources.bundled import Bundled
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.npy import Npy
from ortpipe.data.sources.npz import Npz
from ortpipe.data.sources.parquet import Parquet
from ortpipe.data.split import split
from ortpipe.errors import ConfigError, DataError

COUNT = 60
PART = np.array(["train", "validation", "test"])[np.arange(COUNT) % 3]
FRAME = pd.DataFrame(
    {"x": np.arange(COUNT) * 1.0, "city": np.where(PART == "test", "Oslo", "Rome"), "y": 0, "set": PART}
)


def arrays(frame):
    words = {"set": frame.set.to_numpy(str)} if "set" in frame else {}
    return {"X": frame[["x"]].to_numpy(), "y": frame.y.to_numpy(), **words}


def written(kind, frame, folder, name="rows"):
    """Write a frame and return its source."""
    path = folder / f"{name}.{kind}"
    inputs = {"X": ("x",), **({"city": ("city",)} if "city" in frame else {})}
    if kind == "csv":
        frame.to_csv(path, index=False)
        return Csv(path=str(path), label="y", inputs=inputs)
    if kind == "npz":
        np.savez(path, **arrays(frame))
        return Npz(str(path))
    if kind == "npy":
        (folder / name).mkdir()
        for key, array in arrays(frame).items():
            np.save(folder / name / f"{key}.npy", array)
        return Npy(str(folder / name))
    frame.to_parquet(path, row_group_size=7)
    return Parquet(path=str(path), label="y", inputs=inputs, stream=kind == "stream")


KINDS = ["csv", "parquet", "stream", "npy", "npz"]


def numbers(rows):
    """Return which rows of the frame these are."""
    return np.concatenate([piece.inputs["X"][:, 0] for piece in rows.pieces()]).astype(int).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_says_which_part_a_row_is_in_and_is_no_feature(kind, tmp_path):
    data = load(DataConfig(written(kind, FRAME, tmp_path), SplitConfig(column="set")))
    assert numbers(data.train) == list(range(0, COUNT, 3))
    assert numbers(data.validation) == list(range(1, COUNT, 3))
    assert numbers(data.test) == list(range(2, COUNT, 3))
    assert len(data.train) == len(data.test) == COUNT // 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_a_part_and_the_rest_may_be_drawn(kind, tmp_path):
    frame = FRAME.drop(columns="set")
    source = written(kind, frame[:40], tmp_path)
    other = written(kind, frame[40:], tmp_path, "held")
    data = load(DataConfig(source, SplitConfig(test=other.path, validation=0.25)))
    assert numbers(data.test) == list(range(40, COUNT))
    assert len(data.validation) == 10
    assert sorted(numbers(data.train) + numbers(data.validation)) == list(range(40))


@pytest.mark.parametrize("kind", KINDS)
def test_another_word_in_the_column_is_refused_with_its_row(kind, tmp_path):
    frame = FRAME.copy()
    frame.loc[8, "set"] = "tset"
    with pytest.raises(DataError, match=r"'tset'(.|\n)*(row 8|line 10) of(.|\n)*Did you mean 'test'"):
        load(DataConfig(written(kind, frame, tmp_path), SplitConfig(column="set")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_not_there_is_refused(kind, tmp_path):
    with pytest.raises(DataError, match=r"split\.column(.|\n)*'sett'(.|\n)*Did you mean 'set'"):
        load(DataConfig(written(kind, FRAME, tmp_path), SplitConfig(column="sett")))


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_to_train_on_are_refused(kind, tmp_path):
    with pytest.raises(DataError, match="no train rows in column 'set'"):
        load(DataConfig(written(kind, FRAME[FRAME.set != "train"], tmp_path), SplitConfig(column="set")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_the_column_does_not_name_is_not_there(kind, tmp_path):
    data = load(DataConfig(written(kind, FRAME[FRAME.set != "validation"], tmp_path), SplitConfig(column="set")))
    assert data.validation is None
    assert len(data.test) == 20


def test_a_column_of_numbers_does_not_say_parts(tmp_path):
    with pytest.raises(DataError, match=r"may hold only train, validation and test(.|\n)*'x' of float64"):
        load(DataConfig(written("csv", FRAME, tmp_path), SplitConfig(column="x")))


@pytest.mark.parametrize("config", [SplitConfig(column="age"), SplitConfig(test="held.csv")])
def test_a_source_without_columns_or_files_says_so(config):
    with pytest.raises(DataError, match=r"needs a source of columns or files"):
        load(DataConfig(Bundled("diabetes"), config))


def test_a_column_and_files_are_not_both_taken():
    with pytest.raises(ConfigError, match=r"a column, times, groups or files(.|\n)*got: column, files(.|\n)*test"):
        SplitConfig(test="held.csv", column="set")


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_an_array_of_another_width_in_another_part_is_refused(kind, tmp_path):
    source = written(kind, FRAME.drop(columns="set"), tmp_path)
    other = tmp_path / "held.npz"
    np.savez(other, X=np.ones((5, 3)), y=np.ones(5))
    if kind == "npy":
        (tmp_path / "held").mkdir()
        other = tmp_path / "held"
        np.save(other / "X.npy", np.ones((5, 3)))
        np.save(other / "y.npy", np.ones(5))
    with pytest.raises(DataError, match=r"same width(.|\n)*'X' of .*held.* has shape \(5, 3\), but \(1,\) per row"):
        load(DataConfig(source, SplitConfig(test=str(other))))


@pytest.mark.parametrize("part", ["test", "validation"])
@pytest.mark.parametrize("kind", ["parquet", "stream", "npy", "npz"])
def test_a_file_of_a_part_without_rows_is_rejected(kind, part, tmp_path):
    frame = FRAME.drop(columns=["set", "city"])
    source = written(kind, frame, tmp_path)
    other = written(kind, frame[:0], tmp_path, "held")
    with pytest.raises(DataError, match=rf"must have rows(.|\n)*no {part} rows in .*held"):
        load(DataConfig(source, SplitConfig(**{part: other.path})))


def test_a_stratified_split_depends_on_the_order_of_the_labels_and_not_on_their_hashes():
    """A set of words has another order in each process; one of small integers has the same in all."""
    numbers = np.random.default_rng(0).integers(0, 20, 400)
    words = np.array([f"class {number:02d}" for number in numbers])
    config = SplitConfig(test=0.25, validation=0.1, stratify=True)
    by_number, by_word = (split(Rows({"X": np.arange(400.0)[:, None]}, y), config) for y in (numbers, words))
    for part in ("train", "validation", "test"):
        expected = getattr(by_number, part).inputs["X"]
        np.testing.assert_array_equal(getattr(by_word, part).inputs["X"], expected)
