"""Token ids of a text column, by the tokenizer.json beside a model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ortpipe.bounded import parse_json, read
from ortpipe.data.packages import require
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Rows
from ortpipe.errors import DataError, OrtpipeError, nearest
from ortpipe.settings import Config, Count

FILE = "tokenizer.json"
MOST_GROWTH = 1000  # how many times as long a text may become before it is split into tokens
PADS = ("[PAD]", "<pad>", "<|endoftext|>")  # common names of the padding token, tried if the file defines none
ATTRIBUTES = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


@dataclass(frozen=True)
class TokensConfig(Config):
    """How a text column becomes a model's token inputs, each [N, length], int64.

    Attributes:
        path: a tokenizer.json, or its folder.
        column: the column of text.
        length: tokens per row: longer texts are truncated, shorter ones padded; null: the length of the longest text,
            but at most the limit that the tokenizer.json sets.
        inputs: which inputs the text becomes.
    """

    path: str
    column: str = "text"
    length: Count | None = None
    inputs: tuple[Literal["input_ids", "attention_mask", "token_type_ids"], ...] = ("input_ids", "attention_mask")

    def __call__(self, rows: RowSet) -> Rows:
        """Return the rows with tokens in place of the text."""
        if not isinstance(rows, Rows):
            rule, fix = "Text is tokenized in memory.", "Set {at}source.stream=false."
            raise DataError(rule, got="rows that are streamed", fix=fix)
        texts = rows.inputs.get(self.column)
        if texts is None or texts.dtype.kind not in "OU":
            text_columns = [name for name, array in rows.inputs.items() if array.dtype.kind in "OU"]
            raise DataError(
                "{key} must be a column of text.",
                key="tokens.column",
                got=f"{self.column!r}, which {'does not exist' if texts is None else 'holds numbers'}",
                fix=nearest(self.column, text_columns) if text_columns else "Choose a source that has one.",
            )
        tokenizer, words, notes = self._tokenizer(), [str(text) for text in texts], []
        padding, limit = self._padding(tokenizer), (tokenizer.truncation or {}).get("max_length")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        sizes = [len(encoding.ids) for encoding in self._encoded(tokenizer, words)]
        length = self.length or min(max(sizes), limit or max(sizes))
        if truncated := sum(size > length for size in sizes):
            notes.append(
                f"{truncated:,} of {len(sizes):,} texts in {self.column!r} are truncated to {length} tokens "
                "(data.tokens.length)"
            )
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length, **padding)
        encodings = self._encoded(tokenizer, words)
        inputs = {name: array for name, array in rows.inputs.items() if name != self.column}
        inputs |= {
            name: np.array([getattr(encoding, ATTRIBUTES[name]) for encoding in encodings], np.int64)
            for name in self.inputs
        }
        raw_columns = {name: column for name, column in rows.kept.items() if name != self.column}
        return rows.replace(inputs=inputs, kept=raw_columns, notes=(*(rows.notes or ()), *notes))

    def _tokenizer(self) -> Any:
        path = Path(self.path)
        path = path / FILE if path.is_dir() else path
        try:
            content = read(path)
            if (growth := _growth(parse_json(content).get("normalizer"))) > MOST_GROWTH:
                raise ValueError(f"its Replace steps make a text up to {growth:,} times as long")
            require("tokenizers", "a tokenizer.json", "text", key="tokens.path")
            from tokenizers import Tokenizer

            return Tokenizer.from_buffer(content)
        except OrtpipeError:
            raise
        except Exception as error:
            rule, fix = "{key} must be a tokenizer.json, or a folder that holds one.", "Check the path."
            raise DataError(rule, key="tokens.path", got=f"{path}: {error}", fix=fix) from error

    def _encoded(self, tokenizer: Any, texts: Sequence[str]) -> list[Any]:
        try:
            return list(tokenizer.encode_batch(texts))
        except Exception as error:  # the package raises nothing else
            rule, fix = "{key} must encode every text.", "Save the tokenizer again, with its unknown token."
            raise DataError(rule, key="tokens.path", got=f"{self.path}: {error}", fix=fix) from error

    def _padding(self, tokenizer: Any) -> dict[str, Any]:
        """Return the padding arguments: those of the file, else padding on the right with a token named in PADS."""
        padding = tokenizer.padding
        if padding:
            return {name: padding[name] for name in ("direction", "pad_id", "pad_type_id", "pad_token")}
        name = next((name for name in PADS if tokenizer.token_to_id(name) is not None), None)
        return {} if name is None else {"pad_id": tokenizer.token_to_id(name), "pad_token": name}


def _growth(normalizer: Any) -> int:
    """Return how many times as long a tokenizer.json's normalizer may make a text; a step that replaces text may grow
    each of its letters.

    >>> double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    >>> _growth(None), _growth(double), _growth({"type": "Sequence", "normalizers": [double] * 40})
    (1, 2, 1099511627776)
    """
    if not isinstance(normalizer, dict):
        return 1
    steps = normalizer.get("normalizers") if normalizer.get("type") == "Sequence" else ()
    content = normalizer.get("content") if normalizer.get("type") == "Replace" else ""
    return max(1, len(str(content))) * math.prod(map(_growth, steps if isinstance(steps, list) else ()))
