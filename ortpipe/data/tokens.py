"""A column of text as token ids, by the tokenizer.json that lies beside a model."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ortpipe.data.rows import Rows, RowSet
from ortpipe.errors import ConfigError, DataError, nearest
from ortpipe.settings import Config, Count

FILE = "tokenizer.json"
PADS = ("[PAD]", "<pad>", "<|endoftext|>")  # what tokenizers call the token that fills a row, where they do not say
ATTRIBUTES = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


@dataclass(frozen=True)
class TokensConfig(Config):
    """How a column of text becomes the inputs of a model of tokens, each [N, length], int64.

    Attributes:
        path: a tokenizer.json, or the folder that it lies in.
        column: the text.
        length: of every row: longer texts are cut, shorter ones filled up; null: that of the longest text, or where the
            file says so its own.
        inputs: what is made of the text.
    """

    path: str
    column: str = "text"
    length: Count | None = None
    inputs: tuple[Literal["input_ids", "attention_mask", "token_type_ids"], ...] = ("input_ids", "attention_mask")

    def __call__(self, rows: RowSet) -> Rows:
        """Return the rows with tokens in the place of their text."""
        if not isinstance(rows, Rows):
            rule, fix = "Texts become tokens in memory.", "Set {at}source.stream=false."
            raise DataError(rule, got="rows that stream", fix=fix)
        texts = rows.inputs.get(self.column)
        if texts is None or texts.dtype.kind not in "OU":
            text = [name for name, array in rows.inputs.items() if array.dtype.kind in "OU"]
            raise DataError(
                "{key} must be a column of text.",
                key="tokens.column",
                got=f"{self.column!r}, which is {'not there' if texts is None else 'numbers'}",
                fix=nearest(self.column, text) if text else "Set {at}source.encode=keep: columns stay as they stand.",
            )
        tokenizer, words, notes = self._tokenizer(), [str(text) for text in texts], []
        padding, limit = self._padding(tokenizer), (tokenizer.truncation or {}).get("max_length")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        sizes = [len(one.ids) for one in tokenizer.encode_batch(words)]
        length = self.length or min(max(sizes), limit or max(sizes))
        if cut := sum(size > length for size in sizes):
            notes.append(
                f"cuts {cut:,} of {len(sizes):,} texts in {self.column!r} to {length} tokens (data.tokens.length)"
            )
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length, **padding)
        encoded = tokenizer.encode_batch(words)
        made = {name: np.array([getattr(one, ATTRIBUTES[name]) for one in encoded], np.int64) for name in self.inputs}
        inputs = {name: array for name, array in rows.inputs.items() if name != self.column} | made
        kept = {name: column for name, column in rows.kept.items() if name != self.column}
        return rows.replace(inputs=inputs, kept=kept, notes=(*(rows.notes or ()), *notes))

    def _tokenizer(self) -> Any:
        if importlib.util.find_spec("tokenizers") is None:
            rule, fix = "A tokenizer.json is read by the package tokenizers.", "pip install 'ortpipe[text]'"
            raise ConfigError(rule, key="tokens.path", got="no package tokenizers", fix=fix)
        from tokenizers import Tokenizer

        path = Path(self.path)
        path = path / FILE if path.is_dir() else path
        try:
            return Tokenizer.from_buffer(path.read_bytes())
        except Exception as error:
            rule, fix = "{key} must be a tokenizer.json, or a folder with one.", "Check the path."
            raise DataError(rule, key="tokens.path", got=f"{path}: {error}", fix=fix) from error

    def _padding(self, tokenizer: Any) -> dict[str, Any]:
        """Return how rows are filled up: as the file says, else on the right with the token that is called so."""
        said = tokenizer.padding
        if said:
            return {name: said[name] for name in ("direction", "pad_id", "pad_type_id", "pad_token")}
        name = next((name for name in PADS if tokenizer.token_to_id(name) is not None), None)
        return {} if name is None else {"pad_id": tokenizer.token_to_id(name), "pad_token": name}
