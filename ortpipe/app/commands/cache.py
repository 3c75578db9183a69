"""ortpipe cache: list, verify and clean the store."""

import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from humanize import naturaldelta, naturalsize

from ortpipe import remote
from ortpipe.app.assemble import open_store
from ortpipe.app.compose import Parser
from ortpipe.app.local_path import is_local
from ortpipe.app.table import aligned
from ortpipe.errors import ConfigError
from ortpipe.pipeline import gc
from ortpipe.pipeline.gc import Usage
from ortpipe.pipeline.store import VARIABLE, Entry

ABOUT = """List, verify and clean the store (paths.cache).
  ls      list the entries: when and by which run each was stored, when it was last used, its size
          (artifacts may be shared)
  verify  read everything and set damaged entries aside (exit code 1 if any is damaged or cannot
          be read now)
  gc      remove the entries that --keep does not keep, and the temporary files of killed runs
  rm      remove entries by stage, or by the beginning of their key or of their artifact's digest
Files that a run folder links to stay in that folder. If paths.cache is a URL, each action is for
the bucket and for the folder of this machine in front of it; damaged objects are deleted."""
EXAMPLES = (
    "ortpipe cache ls",
    "ortpipe cache gc --keep 30d --dry-run",
)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def run(arguments: Sequence[str]) -> None:
    """Run the action on the store that the arguments configure."""
    parser = Parser("cache", ABOUT, EXAMPLES, names=True)
    parser.add_argument("action", choices=["ls", "verify", "gc", "rm"])
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="BOUND",
        help="of gc: an age since the last use (30d, 12h), or the total size (5GB); may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="of gc and rm: only print what would be removed")
    options = parser.read(arguments)
    paths = options.composed.values["paths"]
    if options.composed.cache is None:
        raise ConfigError("ortpipe cache needs a store.", got="paths.cache=null", fix="Set paths.cache=FOLDER.")
    if options.names and options.action != "rm":
        rule = f"ortpipe cache {options.action} takes no names."
        raise ConfigError(rule, got=" ".join(options.names), fix="Leave them out.")

    if is_local(paths["cache"]):
        _act(options, open_store(paths["cache"], paths["outputs"]), [gc])
        return
    remote.check_url(paths["cache"], "paths.cache")
    try:
        _act(options, open_store(paths["cache"], paths["outputs"]), [remote, gc])
    except remote.Unreachable as error:
        rule, fix = "{key} must be reachable.", "Check the URL, the network and the AWS_… variables, or give a folder."
        raise ConfigError(rule, key="paths.cache", got=f"{paths['cache']}: {error}", fix=fix) from error


def _act(options: Any, store: Any, places: Sequence[Any]) -> None:
    """Run the action on each place of the store: its folder and, if it is shared, the bucket first."""
    if options.action == "ls":
        print(*(listing(store, place) for place in places), sep="\n")
    elif options.action == "verify":
        damaged = [_finds_damage(store, place) for place in places]
        if any(damaged):
            sys.exit(1)
    else:
        usages = [place.usage(store, _warn) for place in places]
        evicted = _evictable(usages, options.keep) if options.action == "gc" else _matches(usages, options.names)
        for place, removed in zip(places, evicted, strict=True):
            _remove(store, place, removed, dry=options.dry_run)


def listing(store: Any, place: Any) -> str:
    """Return one line per entry of a place of a store, the latest used first."""
    now, usages = time.time(), place.usage(store, _warn)
    heads = ["stage", "key", "made", "used", "took", "size", "by"]
    rows = []
    for usage in usages:
        entry = usage.entry
        times = naturaldelta(now - entry.made), naturaldelta(now - usage.used), f"{entry.seconds:.2f} s"
        producer = " ".join(value if name == "folder" else f"{name} {value}" for name, value in entry.run.items())
        rows.append([entry.stage, entry.key[:12], *times, naturalsize(usage.bytes), producer])
    lines = aligned(rows, heads) if rows else ["  ".join(heads)]
    count, bytes_stored = len({usage.entry.output for usage in usages}), place.size_of_artifacts(store)
    lines.append(f"{len(usages)} entries, {count} artifacts, {naturalsize(bytes_stored)} in {place.location(store)}")
    damaged_entries = list((store.folder / "damaged").glob("*"))
    if damaged_entries and place is gc:
        lines.append(f"{len(damaged_entries)} damaged, set aside in {store.folder / 'damaged'}")
    return "\n".join(lines)


def _warn(message: str) -> None:
    print(message, file=sys.stderr)


def _finds_damage(store: Any, place: Any) -> bool:
    counts = place.verify(store, _warn)
    unread = f", {counts['unread']} cannot be read now" if counts["unread"] else ""
    print(f"{counts['intact']} entries are intact, {counts['damaged']} were damaged{unread}")
    if counts["foreign"]:
        print(f"{counts['foreign']} are intact but not sealed with this {VARIABLE}: runs with it do not use them")
    return bool(counts["damaged"] or counts["unread"])


def _evictable(usages: Sequence[list[Usage]], keep: Sequence[str]) -> list[list[Usage]]:
    """Return the entries of each place outside the bounds."""
    if not keep:
        rule, fix = "ortpipe cache gc must know what to keep.", "Write --keep 30d or --keep 5GB."
        raise ConfigError(rule, got="no --keep", fix=fix)
    ages, sizes = zip(*(_bound(text) for text in keep), strict=True)
    max_age = min((age for age in ages if age is not None), default=None)
    max_bytes = min((count for count in sizes if count is not None), default=None)
    since = None if max_age is None else time.time() - max_age
    return [gc.evictable(stored, since=since, most=max_bytes) for stored in usages]


def _bound(text: str) -> tuple[float | None, int | None]:
    """Parse an age, returned in seconds, or a size, returned in bytes; the other is None.

    >>> _bound("30d"), _bound("5GB")
    ((2592000.0, None), (None, 5000000000))
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text.strip())
    if match is not None and match[2] in SECONDS:
        return float(match[1]) * SECONDS[match[2]], None
    if match is not None and match[2].upper() in BYTES:
        return None, int(float(match[1]) * BYTES[match[2].upper()])
    raise ConfigError("A bound must be an age or a size.", got=text, fix="Write 30d, 12h, 5GB or 500MB.")


def _matches(usages: Sequence[list[Usage]], names: Sequence[str]) -> list[list[Usage]]:
    """Return the entries of each place that the names select."""
    if not names:
        fix = "Name a stage, or the beginning of a key or digest from ortpipe cache ls."
        raise ConfigError("ortpipe cache rm must know what to remove.", got="no name", fix=fix)

    def is_named(entry: Entry, name: str) -> bool:
        return name == entry.stage or (len(name) >= 4 and (entry.key.startswith(name) or entry.output.startswith(name)))

    for name in names:
        if not any(is_named(usage.entry, name) for stored in usages for usage in stored):
            fix = "Name a stage, or at least four letters of a key or digest; see ortpipe cache ls."
            raise ConfigError("ortpipe cache rm removes stored entries.", got=f"{name}: no entry", fix=fix)
    chosen = [[usage for name in names for usage in stored if is_named(usage.entry, name)] for stored in usages]
    return [[usage for number, usage in enumerate(stored) if usage not in stored[:number]] for stored in chosen]


def _remove(store: Any, place: Any, usages: list[Usage], *, dry: bool) -> None:
    try:
        removed = 0 if dry else place.remove(store, [usage.entry for usage in usages])
    except PermissionError as error:
        rule = "Entries of a store are removed by those who may write to its folders."
        fix = "Ask the owner to remove them, or for the right to write (chmod g+ws FOLDER): see docs/howto/cache.md."
        raise ConfigError(rule, got=error, fix=fix) from error
    freed = "would be removed" if dry else f"removed, {naturalsize(removed)} freed"
    rows = aligned([usage.entry.stage, usage.entry.key[:12], naturalsize(usage.bytes)] for usage in usages)
    print(*rows, f"{len(usages)} entries {freed}", sep="\n")
