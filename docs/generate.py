"""The reference pages, written from the code at each build: every setting, every command, every choice of a group."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortpipe.app.command_list import COMMANDS
from ortpipe.app.schema import RunConfig, group_of
from ortpipe.settings import catalogue_of, fields_of
from ortpipe.settings_errors import in_words

DOCS = Path(__file__).parent
CONF = DOCS.parent / "conf"


def write(folder: Path) -> None:
    """Write the pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"settings": settings(), "choices": choices(), "commands": commands()}
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def write_llms(site: Path) -> None:
    """Write llms.txt, the list of the pages for language models, and llms-full.txt, their text, into the site."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed, full = [f"# ortpipe\n\n> {_summary(index)}"], [(DOCS.parent / "README.md").read_text(encoding="utf-8")]
    for tree in re.findall(r"```\{toctree\}\n(.*?)```", index, re.S):
        [caption] = re.findall(r':caption: "?([^"\n]+)', tree)
        listed.append(f"\n## {caption}\n")
        for name in tree.rpartition("\n\n")[2].split():
            page = DOCS / f"{name}.md"
            text = (page if page.exists() else page.with_suffix(".ipynb")).read_text(encoding="utf-8")
            if not page.exists():
                text = "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
            source = f"_sources/{name}{'.md' if page.exists() else '.ipynb'}.txt"
            title = text.partition("\n")[0].removeprefix("# ")
            listed.append(f"- [{title}]({source}): {_summary(text)}".rstrip(": "))
            full.append(text)
    (site / "llms.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(full), encoding="utf-8")


def _summary(page: str) -> str:
    """Return the first sentence of a page."""
    prose = re.sub(r"(?s:```.*?```)|^[|#].*$", "", page, flags=re.M)
    sentence = re.split(r"(?<=[.:])\s", " ".join(prose.split()), maxsplit=1)[0]
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", sentence).replace("**", "").rstrip(":")


def settings() -> str:
    """Return every key of a config with its type, default and description."""
    lead = (
        "# Every setting\n\nWritten from the code: what a key may be, its default in Python, and what it means. "
        "The files under `conf/` choose defaults of their own ([choices](choices.md)); `ortpipe --cfg job` shows "
        "what a command line comes to."
    )
    return "\n\n".join([lead, *_tables(RunConfig, "")]) + "\n"


def _tables(cls: Any, prefix: str, title: str = "The outermost keys", level: int = 2) -> Iterator[str]:
    """Yield the heading, docstring and table of fields of a class, and of the classes in its fields."""
    meanings, rows, below = _attributes(cls), [], []
    for name, (field, hint) in fields_of(cls).items():
        key, catalogue, group = f"{prefix}{name}", catalogue_of(hint), group_of(hint)
        if catalogue is not None and all(dataclasses.is_dataclass(member) for member in catalogue.values()):
            value = f"{catalogue.noun}: see [below](#{_anchor(key)})"
            below.append((key, catalogue, None))
        elif dataclasses.is_dataclass(group):
            value = f"[keys below](#{_anchor(key)})"
            below.append((key, None, group))
        else:
            value = in_words(hint)
        rows.append(["`" + key + "`", _cell(value), _default(field), _cell(meanings.get(name, ""))])
    yield f"{'#' * level} {title}"
    if said := _first(cls):
        yield said
    if rows:
        head = ["key", "value", "default", "meaning"]
        yield "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
    for key, catalogue, group in below:
        if group is not None:
            yield from _tables(group, f"{key}.", f"`{key}`", min(level + 1, 4))
            continue
        yield f"{'#' * min(level + 1, 4)} `{key}`\n\n`{key}.name` is one of these; the other keys are its own."
        for name, member in catalogue.items():
            yield from _tables(member, f"{key}.", f"`{key}.name={name}`", min(level + 2, 5))


def choices() -> str:
    """Return every file of conf/: the choices of each group, with their comments."""
    lines = ["# Choices of every group", "`ortpipe GROUP=CHOICE`. Each is a file of `conf/`, as it stands here."]
    folders = sorted({path.parent for path in CONF.rglob("*.yaml")} - {CONF, CONF / "hydra"})
    for folder in folders:
        lines.append(f"## {folder.relative_to(CONF).as_posix()}")
        for path in sorted(folder.glob("*.yaml")):
            text = path.read_text(encoding="utf-8").rstrip()
            lines.append(f"### {path.relative_to(CONF).with_suffix('').as_posix()}\n\n```yaml\n{text}\n```")
    return "\n\n".join(lines) + "\n"


def commands() -> str:
    """Return the --help text of each command."""
    lines = ["# Commands", "What `ortpipe COMMAND --help` says. `ortpipe` alone, with `key=value`, is a run."]
    for name in COMMANDS:
        module = importlib.import_module(f"ortpipe.app.commands.{name.replace('-', '_')}")
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            module.run(["--help"])
        lines.append(f"## ortpipe {name}\n\n```text\n{said.getvalue().strip()}\n```")
    return "\n\n".join(lines) + "\n"


def _attributes(cls: Any) -> dict[str, str]:
    """Return the description of each attribute from the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for kind in reversed(cls.__mro__):
        _, _, section = inspect.cleandoc(vars(kind).get("__doc__") or "").partition("Attributes:\n")
        name = ""
        for line in re.split(r"\n(?=\S)", section)[0].splitlines():
            if match := re.match(r" {4}(\w+): (.*)", line):
                name, found[match[1]] = match[1], match[2]
            elif name:
                found[name] += f" {line.strip()}"
    return found


def _first(cls: Any) -> str:
    """Return the text of a docstring before its sections."""
    text = inspect.cleandoc(cls.__doc__ or "")
    text = re.split(r"\n\n?(?:Attributes|Raises|Returns|Args):\n|\n\n?>>> ", text)[0].strip()
    return "" if text.startswith(f"{cls.__name__}(") else text.replace("<", "\\<")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value: Any = field.default_factory()
    elif field.default is dataclasses.MISSING:
        return "must be set"
    else:
        value = field.default
    if dataclasses.is_dataclass(value):
        return "see its keys"
    words = {None: "null", True: "true", False: "false"}
    plain = isinstance(value, bool | None)
    return f"`{words[value] if plain else list(value) if isinstance(value, tuple) else value}`"


def _anchor(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")
