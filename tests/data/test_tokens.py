"""A column of text as token ids, where the package tokenizers is installed (no test environment has it)."""

import json
import os

import numpy as np
import pytest

from ortpipe.data.load import DataConfig, load
from ortpipe.data.rows import Rows
from ortpipe.data.sources import SOURCES
from ortpipe.data.tokens import TokensConfig
from ortpipe.errors import ConfigError, DataError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film"]


@pytest.fixture
def folder(tmp_path):
    special = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "[UNK]"}
    said = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    said |= {"pre_tokenizer": {"type": "Whitespace"}, "post_processor": special, "decoder": None, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    (tmp_path / "films.csv").write_text("text,kind\na good film,1\nbad,0\na a a good film,1\nugly,0\n")
    return tmp_path


def rows(folder, **settings):
    source = SOURCES["csv"](path=str(folder / "films.csv"), label="kind")
    return load(DataConfig(source, tokens=TokensConfig(str(folder), **settings)))


def test_a_text_becomes_ids_and_a_mask_that_leaves_out_what_fills_it_up(folder):
    pytest.importorskip("tokenizers")
    data = rows(folder)
    parts = [part.inputs for part in (data.train, data.test)]
    ids, mask = (np.concatenate([part[name] for part in parts]) for name in ("input_ids", "attention_mask"))
    assert {tuple(row) for row in ids.tolist()} == {
        (2, 4, 5, 7, 3, 0, 0),
        (2, 6, 3, 0, 0, 0, 0),
        (2, 4, 4, 4, 5, 7, 3),
        (2, 1, 3, 0, 0, 0, 0),
    }
    np.testing.assert_array_equal(mask, ids != 0)
    assert set(parts[0]) == {"input_ids", "attention_mask"}


def test_longer_texts_are_cut_and_that_is_said(folder):
    pytest.importorskip("tokenizers")
    data = rows(folder, length=4, inputs=["input_ids"])
    assert data.train.inputs["input_ids"].shape[1:] == (4,)
    assert data.train.inputs["input_ids"][:, -1].max() == 3  # the end stays
    assert "2 of 4 texts in 'text' are truncated to 4 tokens" in " ".join(data.notes)


def test_a_column_that_is_no_text_is_named(folder):
    with pytest.raises(DataError, match=r"'words', which does not exist") as refusal:
        TokensConfig(str(folder), column="words")(Rows({"X": np.zeros((2, 1))}, np.zeros(2)))
    assert refusal.value.fix == "Choose a source that has one."


def test_the_missing_package_is_named_with_its_extra(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with pytest.raises(ConfigError) as refusal:
        rows(folder)
    assert refusal.value.fix == "pip install 'ortpipe[text]'"


def change(folder, **parts):
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))


def test_a_tokenizer_without_its_unknown_token_is_rejected_with_the_text_that_needs_it(folder):
    pytest.importorskip("tokenizers")
    change(folder, model={"type": "WordLevel", "vocab": {"good": 0}, "unk_token": "[UNK]"})
    with pytest.raises(DataError, match=r"tokens\.path must encode every text"):
        rows(folder)


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def test_a_tokenizer_file_is_bounded(folder):
    file = folder / "tokenizer.json"
    change(folder, normalizer={"type": "Sequence", "normalizers": [DOUBLE] * 40})
    with pytest.raises(DataError, match="make a text up to 1,099,511,627,776 times as long"):
        rows(folder)
    file.write_text("[" * 100_000)
    with pytest.raises(DataError, match="nested more than 100 deep"):
        rows(folder)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match="no regular file"):
        rows(folder)
