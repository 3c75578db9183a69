"""A CSV file that streams has the types and the batches of one that is read as a whole (pyarrow's own inference)."""

import itertools

import numpy as np
import pytest
from pyarrow import csv

from ortpipe.data import csv_text
from ortpipe.data.csv_text import CsvText, load_batches, spill_batches
from ortpipe.data.rows import Rows
from ortpipe.data.sources import csv as csv_source
from ortpipe.data.sources.csv import Csv
from ortpipe.data.stream import Stream
from ortpipe.errors import DataError

ROWS = 60  # of each kind of value, which are several blocks of text
VALUES = {
    "nothing": "",
    "zero": "0",
    "whole": "7",
    "truth": "true",
    "fraction": "1.5",
    "day": "2013-01-31",
    "time": "05:00",
    "moment": "2013-01-31 05:00:00",
    "fraction of a second": "2013-01-31 05:00:00.25",
    "UTC": "2013-01-31 05:00:00Z",
    "fraction of a second in UTC": "2013-01-31 05:00:00.25Z",
    "word": "abc",
    "quoted": '"a,""b"',
    "beyond int64": "99999999999999999999",
}


def text(file, lines, **convert):
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read = csv.ReadOptions(use_threads=False, block_size=20 * max(map(len, lines)))
    return CsvText(file, read, csv.ParseOptions(), csv.ConvertOptions(**convert), lambda *_: None)


@pytest.mark.parametrize("count", [1, 2])
def test_types_and_batches_are_those_of_the_whole_file(count, tmp_path):
    cases = list(itertools.permutations(VALUES, count))
    header = ",".join(f"column {number}" for number in range(len(cases)))
    lines = [",".join(VALUES[case[stage]] for case in cases) for stage in range(count) for _ in range(ROWS)]
    whole, streamed = (
        read(text(tmp_path / "rows.csv", [f"{header},y", *(f"{line},1" for line in lines)]))
        for read in (load_batches, spill_batches)
    )
    assert dict(zip(cases, streamed.schema.types, strict=False)) == dict(zip(cases, whole.schema.types, strict=False))
    assert streamed.lengths == whole.lengths
    assert len(whole.lengths) > 2
    for number in range(len(whole.lengths)):
        assert streamed.get(number).equals(whole.get(number))


def test_a_column_that_the_user_calls_words_stays_one_of_words(tmp_path):
    lines = ["a,b", *["01,1"] * 100, *["x,2"] * 100]
    for read in (load_batches, spill_batches):
        batches = read(text(tmp_path / "rows.csv", lines, column_types={"a": "string"}))
        assert list(map(str, batches.schema.types)) == ["string", "int64"]
        assert batches.get(0).column(0)[0].as_py() == "01"


def test_what_is_no_text_in_a_late_block_is_refused_by_line_streamed_too(tmp_path, monkeypatch):
    monkeypatch.setattr("ortpipe.data.sources.csv.BLOCK", 200)
    (tmp_path / "rows.csv").write_bytes(b"a,y\n" + b"abc,1\n" * 100 + b"caf\xe9,2\n" + b"abc,3\n" * 100)
    for stream in (False, True):
        with pytest.raises(DataError, match=r"is not utf-8, column 'a', line 102 of "):
            Csv(path=str(tmp_path / "rows.csv"), label="y", stream=stream)()


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("abc", "line 102 of .* has 1: abc"),
        ("inf,2", "inf in column 'a', line 102 of "),
        (",2", "nothing in column 'a', line 102 of "),
    ],
)
def test_a_wrong_line_of_a_late_block_is_named_streamed_too(line, got, tmp_path, monkeypatch):
    monkeypatch.setattr("ortpipe.data.sources.csv.BLOCK", 200)
    (tmp_path / "rows.csv").write_text("a,y\n" + "1.5,1\n" * 100 + f"{line}\n" + "2.5,3\n" * 100)
    for stream in (False, True):
        with pytest.raises(DataError, match=got):
            Csv(path=str(tmp_path / "rows.csv"), label="y", stream=stream)()


def test_what_may_take_more_than_the_limit_is_laid_down_and_said(tmp_path, monkeypatch):
    (tmp_path / "rows.csv").write_text("a,y\n" + "".join(f"{number},{number % 2}.5\n" for number in range(1000)))
    source = Csv(path=str(tmp_path / "rows.csv"), label="y")
    assert isinstance(source(), Rows)
    monkeypatch.setattr("ortpipe.data.sources.csv.LIMIT", 1000)
    monkeypatch.setattr("ortpipe.data.stream.LIMIT", 1000)
    rows = source()
    assert isinstance(rows, Stream)
    place = f"an unnamed temporary file in {csv_text.folder()} (TMPDIR)"
    assert f"the columns of {tmp_path / 'rows.csv'}, 1 MB, are in {place}" in rows.notes[-1]
    held = Csv(path=str(tmp_path / "rows.csv"), label="y", stream=False)()
    assert isinstance(held, Rows)
    np.testing.assert_array_equal(rows.rows().inputs["X"], held.inputs["X"])


def test_a_file_without_room_for_its_columns_is_refused(tmp_path, monkeypatch):
    (tmp_path / "rows.csv").write_text("a,y\n1,2\n3,4\n")
    monkeypatch.setattr(csv_text, "fits", lambda size: False)
    with pytest.raises(DataError, match=r"less than twice as much free space(.|\n)*TMPDIR(.|\n)*stream=false"):
        Csv(path=str(tmp_path / "rows.csv"), label="y", stream=True)()


def test_a_file_of_several_blocks_has_the_digest_that_it_had_as_one_table(tmp_path):
    """Computed by the reader that held whole files in memory, each as one group."""
    lines = (f"{n},{n % 7}.5,{'no' if n % 3 else 'yes'}\n" for n in range(150_000))
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(lines))
    rows = Csv(path=str(tmp_path / "rows.csv"), label="y")()
    assert len(rows.group_sizes) > 1
    assert rows.digest() == "06fd3092fb61b5529932daa6f22d42adb25cff93c6f0f58b01a7417b490df786"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_line_break_in_a_quoted_field_ends_no_row(last, stream, tmp_path):
    """Where a block ends within one, the rest of the field looks like rows."""
    file, note = tmp_path / "log.csv", '"' + "\n".join(["100,0,retry"] * 12) + '"'
    lines = ["y,x,log", *(f"{2 * i},{i},{note}" for i in range(16_000))]
    if not last:
        lines = ["log,y,x", *(f"{note},{2 * i},{i}" for i in range(16_000))]
    file.write_text("\n".join(lines) + "\n")
    assert file.stat().st_size > 2 * csv_source.BLOCK
    rows = Csv(path=str(file), label="y", inputs=("x",), window=4096, stream=stream)()
    assert isinstance(rows, Stream) == stream
    assert len(rows) == 16_000
    part = rows.head(16_000)
    [x] = part.inputs.values()
    np.testing.assert_array_equal(x.ravel(), np.arange(16_000))
    np.testing.assert_array_equal(part.label.ravel(), 2 * np.arange(16_000))


@pytest.mark.parametrize("stream", [False, True])
def test_a_row_may_be_longer_than_a_block(stream, tmp_path):
    file, long = tmp_path / "long.csv", "word " * csv_source.BLOCK
    file.write_text("\n".join(["y,x,text", "1,2,short", f"3,4,{long}", *["5,6,short"] * 100]) + "\n")
    rows = Csv(path=str(file), label="y", inputs=("x",), window=64, stream=stream)()
    [x] = rows.head(3).inputs.values()
    assert x.ravel().tolist() == [2, 4, 6]
    assert len(rows) == 102
    file.write_text("\n".join(["y,x,text", f"3,4,{long * 10}"]) + "\n")
    with pytest.raises(DataError, match=r"long.csv: straddling"):
        Csv(path=str(file), label="y", inputs=("x",), window=64, stream=stream)()
