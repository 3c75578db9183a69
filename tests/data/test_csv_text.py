"""A CSV file that streams has the types and the batches of one that is read as a whole (pyarrow's own inference)."""

import gzip
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv
from sample import pairs

from ortpipe.data import csv_text
from ortpipe.data.csv_text import CsvFile
from ortpipe.data.rows import Rows
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


def read_by(file, lines, *, on_disk, **types):
    """Return the table of a file of these lines, read in several blocks, and the batches of its groups."""
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = CsvFile(file, types=types, block=20 * max(map(len, lines))).table(on_disk=on_disk)
    names = table.schema.names
    return table.schema, [batch for group in table.groups for batch in group.read(names, 10**9)]


@pytest.mark.parametrize("count", [1, 2])
def test_types_and_batches_are_those_of_the_whole_file(count, tmp_path):
    cases = [(kind,) for kind in VALUES] if count == 1 else pairs([*VALUES], [*VALUES], every=3)
    file = tmp_path / "rows.csv"
    header = ",".join(f"column {number}" for number in range(len(cases)))
    lines = [",".join(VALUES[case[stage]] for case in cases) for stage in range(count) for _ in range(ROWS)]
    lines = [f"{header},y", *(f"{line},1" for line in lines)]
    (schema, streamed), (_, held) = (read_by(file, lines, on_disk=on_disk) for on_disk in (True, False))
    whole = csv.read_csv(file)
    times = [name for name, kind in zip(whole.column_names, whole.schema.types, strict=True) if pa.types.is_time(kind)]
    as_words = csv.ConvertOptions(column_types=dict.fromkeys(times, pa.string()))
    whole = csv.read_csv(file, convert_options=as_words)
    assert dict(zip(cases, schema.types, strict=False)) == dict(zip(cases, whole.schema.types, strict=False))
    assert pa.Table.from_batches(streamed).equals(whole)
    assert len(streamed) == len(held) > 2
    assert all(map(pa.RecordBatch.equals, streamed, held))


def test_a_column_that_the_user_calls_words_stays_one_of_words(tmp_path):
    lines = ["a,b", *["01,1"] * 100, *["x,2"] * 100]
    for on_disk in (False, True):
        schema, [first, *_] = read_by(tmp_path / "rows.csv", lines, on_disk=on_disk, a=pa.string())
        assert list(map(str, schema.types)) == ["string", "int64"]
        assert first.column(0)[0].as_py() == "01"


def test_what_is_no_text_in_a_late_block_is_refused_by_line_streamed_too(tmp_path, monkeypatch):
    monkeypatch.setattr("ortpipe.data.csv_text.BLOCK", 200)
    (tmp_path / "rows.csv").write_bytes(b"a,y\n" + b"abc,1\n" * 100 + b"caf\xe9,2\n" + b"abc,3\n" * 100)
    for stream in (False, True):
        with pytest.raises(DataError, match=r"is not utf-8, line 102 of "):
            Csv(path=str(tmp_path / "rows.csv"), label="y", stream=stream)()


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("abc", "line 102 of .* has 1: abc"),
        ("inf,2", "inf in column 'a', line 102 of "),
        ("1,", "nothing in column 'y', line 102 of "),
    ],
)
def test_a_wrong_line_of_a_late_block_is_named_streamed_too(line, got, tmp_path, monkeypatch):
    monkeypatch.setattr("ortpipe.data.csv_text.BLOCK", 200)
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
    np.testing.assert_array_equal(rows.rows().inputs["a"], held.inputs["a"])


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
    assert rows.digest() == "9bc8e48e4f5cd9791233cd47d91e5b398c460dba9c2449e7eab4b9effa09f8a2"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_line_break_in_a_quoted_field_ends_no_row(last, stream, tmp_path):
    """Where a block ends within one, the rest of the field looks like rows."""
    file, note = tmp_path / "log.csv", '"' + "\n".join(["100,0,retry"] * 12) + '"'
    lines = ["y,x,log", *(f"{2 * i},{i},{note}" for i in range(16_000))]
    if not last:
        lines = ["log,y,x", *(f"{note},{2 * i},{i}" for i in range(16_000))]
    file.write_text("\n".join(lines) + "\n")
    assert file.stat().st_size > 2 * csv_text.BLOCK
    rows = Csv(path=str(file), label="y", inputs=("x",), window=4096, stream=stream)()
    assert isinstance(rows, Stream) == stream
    assert len(rows) == 16_000
    part = rows.head(16_000)
    [x] = part.inputs.values()
    np.testing.assert_array_equal(x.ravel(), np.arange(16_000))
    np.testing.assert_array_equal(part.label.ravel(), 2 * np.arange(16_000))


@pytest.mark.parametrize("stream", [False, True])
def test_a_row_may_be_longer_than_a_block(stream, tmp_path):
    file, long = tmp_path / "long.csv", "word " * csv_text.BLOCK
    file.write_text("\n".join(["y,x,text", "1,2,short", f"3,4,{long}", *["5,6,short"] * 100]) + "\n")
    rows = Csv(path=str(file), label="y", inputs=("x",), window=64, stream=stream)()
    [x] = rows.head(3).inputs.values()
    assert x.ravel().tolist() == [2, 4, 6]
    assert len(rows) == 102
    file.write_text("\n".join(["y,x,text", f"3,4,{long * 10}"]) + "\n")
    with pytest.raises(DataError, match=r"long.csv: straddling"):
        Csv(path=str(file), label="y", inputs=("x",), window=64, stream=stream)()


OPEN = {  # each ends within a field that a quote opens; whatever Arrow reads of it, rows are missing
    "in the last column": ("a,y,note\n" + '1,2,"it"\n' * 5 + '3,4,"12 inch\n' + "5,6,x\n" * 5, 7),
    "in the first column": ("note,a,y\n" + "x,1,2\n" * 5 + '"12,3,4\n' + "x,5,6\n" * 5, 7),
    "in a number": ('a,y\n1,2\n3,"4\n', 3),
    "before the end of the file": ('y,a,note\n1,2,"x', 2),
    "in the first line": ('a,"y\n1,2\n3,4\n', 1),
    "behind line breaks of others": ('a,y,note\n1,2,"b\n\nc"\n3,4,"x\n', 5),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "line"), OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_a_quote_that_is_never_closed_is_an_error_with_its_line(text, line, stream, suffix, tmp_path):
    """pandas rejects these files, too."""
    file = tmp_path / f"rows.{suffix}"
    file.write_bytes(gzip.compress(text.encode()) if suffix == "csv.gz" else text.encode())
    with pytest.raises(pd.errors.ParserError, match="EOF inside string"):
        pd.read_csv(file)
    with pytest.raises(DataError, match=rf"must end with one(.|\n)*line {line} of .*rows.{suffix}"):
        Csv(path=str(file), label="y", stream=stream)()


CLOSED = [
    'a,y,note\n1,2,12" pipe\n3,4,"a ""b"\n',  # a quote within a field, and two within a quoted one
    'a,y,note\n1,2,"x"\n\n\n3,4,"\n"\n\n',
    '\ufeff"a","y","note"\n"1","2",""\n3,4,"5"',
    'a,y,note\r\n1,2,"x"\r\n3,4,"y\r\n"',
]


@pytest.mark.parametrize("text", CLOSED)
def test_quotes_that_are_closed_or_within_a_field_are_text(text, tmp_path):
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8", newline="")
    rows = Csv(path=str(tmp_path / "rows.csv"), label="y", inputs=("a",))()
    assert rows.inputs["a"].tolist() == [1, 3]
    assert rows.label.tolist() == [2, 4]


@pytest.mark.parametrize("block", [1, 2, 3, 7])
def test_quotes_are_matched_wherever_a_block_ends(block, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_text, "BLOCK", block)
    for text, line in [*OPEN.values(), *((text, None) for text in CLOSED)]:
        (tmp_path / "rows.csv").write_text(text, encoding="utf-8", newline="")
        with nullcontext() if line is None else pytest.raises(DataError, match=f"line {line} of"):
            CsvFile(tmp_path / "rows.csv").check()


@pytest.mark.parametrize("stream", [False, True])
def test_times_of_day_are_hours_and_as_category_the_words_of_the_file(stream, tmp_path):
    (tmp_path / "rows.csv").write_text("at,y\n" + "05:00,1\n17:30,2\n" * 30)
    rows = Csv(path=str(tmp_path / "rows.csv"), label="y", stream=stream)()
    assert rows.head(2).inputs["at"].tolist() == [5, 17.5]
    rows = Csv(path=str(tmp_path / "rows.csv"), label="y", stream=stream, categorical=("at",))()
    assert rows.head(2).inputs["at"].tolist() == ["05:00", "17:30"]
