"""Who may choose a store's results: everyone who can write its folder, or with a key those who hold the key."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ortpipe.errors import ConfigError

VARIABLE = "ORTPIPE_STORE_KEY"


def key_of_environment(environment: Mapping[str, str]) -> bytes | None:
    """Return the key that seals a store's entries, if there is one; an empty one is a secret that this machine lacks.

    >>> key_of_environment({}), key_of_environment({"ORTPIPE_STORE_KEY": "long and random"})
    (None, b'long and random')
    """
    key = environment.get(VARIABLE)
    if key is not None and not key.strip():
        raise ConfigError(f"{VARIABLE} holds a secret text.", got="nothing", fix="Set it, or unset the variable.")
    return None if key is None else key.encode("utf-8", "surrogateescape")


def other_writers(folder: Path) -> str | None:
    """Return who beside its owner may write a folder: `everyone`, or a group; None where nobody may (POSIX only).

    A group is not named where it is the private one that many systems make for each user.
    """
    try:
        status = folder.stat()
    except OSError:
        return None
    if os.name != "posix" or not status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        return None
    if status.st_mode & stat.S_IWOTH:
        return "everyone"
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(status.st_gid), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"group {status.st_gid}"
    private = group.gr_name == user and set(group.gr_mem) <= {user}
    return None if private else f"group {group.gr_name}"
