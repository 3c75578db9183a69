"""Where MLflow records."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ortpipe.app.tracking.sqlite import PLAIN, database_of, uri_of
from ortpipe.errors import ConfigError
from ortpipe.settings import Config, Fix, Must

Registered = Annotated[
    str, Must("a name without /, : and quotes", re.compile(r"[^/:'\"]+").fullmatch), Fix("Choose another.")
]
Alias = Annotated[
    str,
    Must(
        "letters, digits, _ and -, and neither latest nor v and a number",
        re.compile(r"(?!latest$|v\d+$)[\w-]+", re.IGNORECASE).fullmatch,
    ),
    Fix("Choose another, such as champion."),
]


@dataclass(frozen=True)
class Target(Config):
    """An MLflow database or server, and what a run is called there.

    Attributes:
        tracking_uri: `sqlite:///` and a path (with %25 for % and %3F for ?), a server's address, or any other of
            MLflow's.
        experiment: its name; made when it is not there.
        artifacts: where a new experiment of a database keeps them; a server keeps its own.
        register: the registered model that the trained one, of a sweep the best, becomes a version of; null: none.
        alias: what that version is called, until a later one is.
    """

    tracking_uri: str
    experiment: str = "ortpipe"
    artifacts: str | None = None
    register: Registered | None = None
    alias: Alias = "champion"

    def __post_init__(self) -> None:
        database = database_of(self.tracking_uri)
        if database is not None:
            literal = Path(self.tracking_uri.removeprefix(PLAIN))
            if literal.parent.is_dir() and literal.parent.absolute() != database.parent.absolute():
                rule = "{key} must be a URI: in the path of a database, % and ? are written %25 and %3F."
                fix = f"Set {{key}}='{uri_of(literal)}'."
                raise ConfigError(rule, key="tracking_uri", got=self.tracking_uri, fix=fix)
            query = "".join(self.tracking_uri.partition("?")[1:])
            object.__setattr__(self, "tracking_uri", f"{uri_of(database)}{query}")
