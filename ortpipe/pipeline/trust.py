"""Write access to a store: its users can choose each other's results, unless entries are sealed with a key."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ortpipe.errors import ConfigError

VARIABLE = "ORTPIPE_STORE_KEY"


def key_of_environment(environment: Mapping[str, str]) -> bytes | None:
    """Return the key that seals a store's entries, if it is set; an empty one is an error.

    >>> key_of_environment({}), key_of_environment({"ORTPIPE_STORE_KEY": "long and random"})
    (None, b'long and random')
    """
    key = environment.get(VARIABLE)
    if key is not None and not key.strip():
        raise ConfigError(
            f"{VARIABLE} must hold a secret key.", got="an empty one", fix="Set it, or unset the variable."
        )
    return None if key is None else key.encode("utf-8", "surrogateescape")


def other_writers(folder: Path) -> str | None:
    """Return the users besides the owner with write access to a folder: `everyone`, a group, or None (POSIX only).

    The private group that many systems create for each user does not count.
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
