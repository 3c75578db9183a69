"""Where a row is: the line that an editor shows, however many lines others take."""

import gzip
from pathlib import Path

import pytest

from ortpipe.data.groups import by_line
from ortpipe.data.sources.csv import Csv
from ortpipe.errors import DataError

TEXT = '\n\na;w;y\n1;"x\n\nz";2\n\n3;é;NA\n'


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_row_is_named_by_its_line_whatever_is_in_front_of_it(encoding: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows{suffix}"
    file.write_bytes((gzip.compress if suffix == ".csv.gz" else bytes)(TEXT.encode(encoding)))
    with pytest.raises(DataError, match=rf"nothing in column 'y', line 8 of .*rows{suffix}"):
        Csv(path=str(file), label="y", delimiter=";", encoding=encoding)()


def test_without_a_line_of_names_the_first_row_is_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("1,2\n3,NA\n5\n")
    assert by_line(file, names=False)(0) == f"line 1 of {file}"
    with pytest.raises(DataError, match=r"line 3 of .* has 1: 5"):
        Csv(path=str(file), label="y", names=("a", "y"))()
    file.write_text("1,2\n3,NA\n")
    with pytest.raises(DataError, match="nothing in column 'y', line 2 of"):
        Csv(path=str(file), label="y", names=("a", "y"))()
