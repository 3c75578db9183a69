"""Keys of metrics, params and tags in MLflow: valid and distinct for all names of columns and settings."""

import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

LONGEST = 250  # characters, MLflow's limit
SAFE = r"\w.\- " if os.name == "nt" else r"\w.\- :"  # MLflow accepts no colon on Windows
PLAIN = re.compile(rf"(?!\.\.|.*_[0-9a-f]{{12}}$)[{SAFE}]+(/[{SAFE}]+)*", re.IGNORECASE)  # ends unlike a marked key


def keys(names: Iterable[str]) -> dict[str, str]:
    """Return the key of each name: the name itself if it is valid and distinct, else one with a digest at its end.

    MLflow reads a key as a path below a folder, so that `a//b`, `a/` and `../a` are invalid. MySQL compares keys
    without case, accents and trailing spaces; names that are equal in this way all get a digest.

    >>> keys(["test/r2", "price ($)", "price (€)"])
    {'test/r2': 'test/r2', 'price ($)': 'price ____dc99c8fa39cf', 'price (€)': 'price ____3c13116655b9'}
    """
    distinct = dict.fromkeys(names)
    counts = Counter(map(_folded, distinct))
    return {name: name if _is_plain(name) and counts[_folded(name)] == 1 else _marked(name) for name in distinct}


def _is_plain(name: str) -> bool:
    return len(name) <= LONGEST and PLAIN.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))


def _folded(name: str) -> str:
    """Return the text without case, accents and trailing spaces."""
    parts = unicodedata.normalize("NFKD", name.casefold())
    return "".join(c for c in parts if not unicodedata.combining(c)).rstrip()


def _marked(name: str) -> str:
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    parts = re.sub(f"[^{SAFE}/]", "_", name).split("/")
    text = "/".join("_" if part.strip(".") == "" else part for part in parts)
    text = f"_{text}" if text.startswith("..") else text
    return f"{text[: LONGEST - 13]}_{digest}"
