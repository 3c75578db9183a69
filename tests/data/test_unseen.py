"""Tables that a model predicts from."""

from __future__ import annotations

import onnx.parser
import pyarrow as pa
import pytest

from ortpipe.artifact import Facts
from ortpipe.data.unseen import UnseenTable
from ortpipe.errors import DataError


def test_a_table_that_lacks_a_column_is_rejected_with_the_columns_that_the_model_reads() -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[N, 4] X) => (float[N, 4] p) { p = Identity(X) }'
    facts = Facts("regression", ("X",), ("p",), "p", (), columns={"X": ("age", "size", "rooms", "floor")})
    schema = pa.schema([(name, pa.float64()) for name in ("age", "rooms", "floors")])
    with pytest.raises(DataError, match=r"no 'size', 'floor' in a\.csv(.|\n)*It reads age, size, rooms, floor\."):
        UnseenTable(onnx.parser.parse_model(text), facts).check(schema, "a.csv")
