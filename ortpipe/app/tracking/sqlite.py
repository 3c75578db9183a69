"""SQLite databases as MLflow's URIs, whose path is percent-encoded where it must be."""

from pathlib import Path
from urllib.parse import unquote

PLAIN, ENCODED = "sqlite:///", "sqlite+pysqlite:///"  # of the first, MLflow makes the folder without decoding its name


def database_of(uri: str) -> Path | None:
    """Return the file of a URI; None of what is no SQLite database.

    >>> print(database_of("sqlite:////tmp/a b.db"), database_of("sqlite+pysqlite:////a%3Fb.db"), database_of("http://a"))
    /tmp/a b.db /a?b.db None
    """
    for scheme in (PLAIN, ENCODED):
        if uri.startswith(scheme):
            return Path(unquote(uri.removeprefix(scheme).partition("?")[0]))
    return None


def uri_of(database: Path | str) -> str:
    """Return the URI of a file, made absolute.

    >>> uri_of("/tmp/a b.db"), uri_of("/tmp/a?%20b.db")
    ('sqlite:////tmp/a b.db', 'sqlite+pysqlite:////tmp/a%3F%2520b.db')
    """
    path = str(Path(database).absolute())
    encoded = path.replace("%", "%25").replace("?", "%3F")
    return f"{PLAIN if encoded == path else ENCODED}{encoded}"
