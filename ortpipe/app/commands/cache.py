"""ortpipe cache: what the store holds, whether it is whole, and what may go."""

import os
import sys
import time
from collections.abc import Sequence

from ortpipe.app.compose import Composition, Parser
from ortpipe.app.table import aligned
from ortpipe.app.units import bound, size, span
from ortpipe.errors import ConfigError
from ortpipe.pipeline import gc
from ortpipe.pipeline.gc import Usage
from ortpipe.pipeline.store import Entry, Store
from ortpipe.pipeline.trust import VARIABLE, key_of_environment

ABOUT = """Look after the store (paths.cache).
  ls      what is stored: made when and by which run, used when, how large (artifacts may be shared)
  verify  read everything; what is not as it was written is set aside (exit code 1, also where it cannot be read now)
  gc      remove what --keep does not keep, and what killed runs left behind
  rm      remove entries by stage, or by the beginning of their key or of their artifact's digest
Files that a run folder links stay there."""


def run(arguments: Sequence[str]) -> None:
    """Do what is asked with the store that the arguments configure."""
    parser = Parser("cache", ABOUT)
    parser.add_argument("action", choices=["ls", "verify", "gc", "rm"])
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="BOUND",
        help="of gc: an age (30d, 12h) since something was last of use, or a size (5GB) of all; may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="of gc and rm: only say what would go")
    given = parser.read(arguments)
    names = [word for word in given.overrides if "=" not in word]
    folder = Composition([word for word in given.overrides if "=" in word], given.config_dir).cache
    if folder is None:
        raise ConfigError("ortpipe cache looks after a store.", got="paths.cache=null", fix="Set paths.cache=FOLDER.")
    if names and given.action != "rm":
        raise ConfigError(f"ortpipe cache {given.action} takes no names.", got=" ".join(names), fix="Leave them out.")

    store = Store(folder, key=key_of_environment(os.environ))
    if given.action == "ls":
        print(listing(store))
    elif given.action == "verify":
        _verify(store)
    else:
        going = _outside(store, given.keep) if given.action == "gc" else _named(store, names)
        _remove(store, going, dry=given.dry_run)


def listing(store: Store) -> str:
    """Return a line per entry, what was used last first."""
    now, found = time.time(), gc.usage(store, _say)
    heads = ["stage", "key", "made", "used", "took", "size", "by"]
    rows = []
    for one in found:
        entry = one.entry
        times = span(now - entry.made), span(now - one.used), f"{entry.seconds:.2f} s"
        maker = " ".join(value if name == "folder" else f"{name} {value}" for name, value in entry.run.items())
        rows.append([entry.stage, entry.key[:12], *times, size(one.bytes), maker])
    lines = aligned(rows, heads) if rows else ["  ".join(heads)]
    artifacts = store.folder / "artifacts"
    held = len({one.entry.output for one in found})
    lines.append(f"{len(found)} entries, {held} artifacts, {size(gc.size(artifacts))} in {store.folder}")
    damaged = list((store.folder / "damaged").glob("*"))
    if damaged:
        lines.append(f"{len(damaged)} damaged, set aside in {store.folder / 'damaged'}")
    return "\n".join(lines)


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _verify(store: Store) -> None:
    found = gc.verify(store, _say)
    unread = f", {found['unread']} cannot be read now" if found["unread"] else ""
    print(f"{found['intact']} entries are intact, {found['damaged']} were not{unread}")
    if found["foreign"]:
        print(f"{found['foreign']} are intact and not sealed with this {VARIABLE}: no run with it takes them")
    if found["damaged"] or found["unread"]:
        sys.exit(1)


def _outside(store: Store, keep: Sequence[str]) -> list[Usage]:
    """Return what no bound keeps; without bounds everything is kept."""
    if not keep:
        rule, fix = "ortpipe cache gc must know what to keep.", "Write --keep 30d or --keep 5GB."
        raise ConfigError(rule, got="no --keep", fix=fix)
    ages, sizes = zip(*(bound(text) for text in keep), strict=True)
    oldest = min((age for age in ages if age is not None), default=None)
    most = min((count for count in sizes if count is not None), default=None)
    return gc.evictable(gc.usage(store, _say), since=None if oldest is None else time.time() - oldest, most=most)


def _named(store: Store, names: Sequence[str]) -> list[Usage]:
    if not names:
        fix = "Name a stage, or the beginning of a key or digest from ortpipe cache ls."
        raise ConfigError("ortpipe cache rm must know what to remove.", got="no name", fix=fix)

    def is_named(entry: Entry, name: str) -> bool:
        return name == entry.stage or (len(name) >= 4 and (entry.key.startswith(name) or entry.output.startswith(name)))

    found, chosen = gc.usage(store, _say), []
    for name in names:
        those = [one for one in found if is_named(one.entry, name)]
        if not those:
            fix = "Name a stage, or at least four letters of a key or digest; see ortpipe cache ls."
            raise ConfigError("ortpipe cache rm removes what is stored.", got=name, fix=fix)
        chosen += [one for one in those if one not in chosen]
    return chosen


def _remove(store: Store, going: list[Usage], *, dry: bool) -> None:
    done = "would go" if dry else f"removed, {size(gc.remove(store, [one.entry for one in going]))} gained"
    rows = aligned([one.entry.stage, one.entry.key[:12], size(one.bytes)] for one in going)
    print(*rows, f"{len(going)} entries {done}", sep="\n")
