"""MLflow's URIs of SQLite databases, with paths percent-encoded where necessary."""

from pathlib import Path
from urllib.parse import unquote

PLAIN, ENCODED = "sqlite:///", "sqlite+pysqlite:///"  # MLflow creates the first one's folder without decoding it


def database_of(uri: str) -> Path | None:
    """Return the file of a SQLite database's URI, or None for another URI.

    >>> print(database_of("sqlite:////tmp/a b.db"), database_of("sqlite+pysqlite:////a%3Fb.db"), database_of("http://a"))
    /tmp/a b.db /a?b.db None
    """
    for scheme in (PLAIN, ENCODED):
        if uri.startswith(scheme):
            return Path(unquote(uri.removeprefix(scheme).partition("?")[0]))
    return None


def uri_of(database: Path | str) -> str:
    """Return the URI of a database file, with its absolute path.

    >>> uri_of("/tmp/a b.db"), uri_of("/tmp/a?%20b.db")
    ('sqlite:////tmp/a b.db', 'sqlite+pysqlite:////tmp/a%3F%2520b.db')
    """
    path = str(Path(database).absolute())
    encoded = path.replace("%", "%25").replace("?", "%3F")
    return f"{PLAIN if encoded == path else ENCODED}{encoded}"
