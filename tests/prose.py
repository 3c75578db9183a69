"""Count the phrases that this project's prose must not use; print each one.

    PYTHONPATH=tests python -m prose [PATH …]

Prose is docstrings and comments of Python files, comments of YAML files, and Markdown without its code blocks.
CONTRIBUTING.md names a better form of each phrase.
"""

from __future__ import annotations

import ast
import collections
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The words after "what" that make a clause a noun.
SUBJECTS = "it they that there the a an each every its no nobody people rows data other others another one two all both"
VERBS = """
    is was are were be of has had have can may would must follows makes made gives gave reads does did becomes came
    comes runs belongs needs stays still depends decides varies differs
"""
CLAUSE = "|".join([*SUBJECTS.split(), *VERBS.split(), r"\w+ing"])
BE = r"\b(?:be|is|are|was|were)"
PHRASES = {
    "a clause instead of a noun": rf"\bwhat(?:ever)? (?:{CLAUSE})\b|\b(?:who(?:ever)?|nobody|somebody|someone)\b",
    "said, told, asked": rf"{BE} (?:said|told|asked)\b|\b(?:says|tells) (?:of|so|once|how|what|which|where|it)\b",
    "stands, lies": r"\b(?:stand|stands|stood|lies|lay)\b",
    "refuses": r"\brefus\w+",
    "of what, of those, of use": r"\bof (?:what|those|such|use|that which)\b",
    "an old idiom": r"\b(?:it pays|answers|lays? aside|laid aside|for ever|as they stand|on the way)\b",
}
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PHRASES.items()}
CODE = re.compile("`[^`]*`")  # names are no prose


class Found(NamedTuple):
    """A phrase in a file."""

    path: Path
    line: int
    name: str
    text: str


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of prose in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _comments(text)
        yield from _docstrings(text)
    elif path.suffix == ".yaml":
        yield from ((n, line.partition("#")[2]) for n, line in enumerate(text.splitlines(), 1) if "#" in line)
    else:
        without_code = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
        yield from enumerate(without_code.splitlines(), 1)


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            written = ast.get_docstring(node, clean=False) or ""
            yield from enumerate(written.splitlines(), node.body[0].lineno if node.body else 1)


def files(root: Path) -> list[Path]:
    """Return the files with prose below a folder, or the file itself."""
    if root.is_file():
        return [root]
    paths = (path for suffix in ("*.py", "*.md", "*.yaml") for path in root.rglob(suffix))
    return sorted(path for path in paths if "generated" not in path.parts)  # docs/reference/generated


def phrases(path: Path) -> list[Found]:
    """Return the phrases in a file; text without any is not parsed, because that takes most of the time."""
    text = path.read_text(encoding="utf-8")
    met = {name: pattern for name, pattern in PATTERNS.items() if pattern.search(text)}
    found = prose(path) if met else ()
    return [
        Found(path, n, name, line.strip())
        for n, line in found
        for name, p in met.items()
        for _ in p.finditer(CODE.sub("`", line))
    ]


def rates(roots: list[Path], root: Path) -> dict[str, tuple[float, list[str]]]:
    """Return for each room below a root how many phrases 100 lines of its prose have, and where they are."""
    rooms = collections.defaultdict[str, list[Path]](list)
    for path in (file for place in roots for file in files(place)):
        folders = path.relative_to(root).parts[:-1]
        rooms["/".join(folders[: 3 if folders[1:2] in (("stages",), ("app",)) else 2]) or path.name].append(path)
    return {room: _rate(paths, root) for room, paths in sorted(rooms.items())}


def _rate(paths: list[Path], root: Path) -> tuple[float, list[str]]:
    found = [place for path in paths for place in phrases(path)]
    lines = sum(bool(text.strip()) for path in paths for _, text in prose(path)) if found else 1
    places = [f"{place.path.relative_to(root)}:{place.line}: {place.name}: {place.text}" for place in found]
    return 100 * len(found) / lines, places


def main() -> None:
    """Print each phrase, and the rate of each room."""
    here = Path.cwd()
    found = rates([here / name for name in sys.argv[1:] or ["ortpipe", "conf", "docs", "README.md"]], here)
    print(*(place for _, places in found.values() for place in places), sep="\n")
    for room, (rate, _) in found.items():
        print(f"{rate:6.1f} per 100 lines  {room}")


if __name__ == "__main__":
    main()
