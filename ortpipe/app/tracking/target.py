"""The MLflow database or server that records runs."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ortpipe.app.tracking.sqlite import PLAIN, database_of, uri_of
from ortpipe.errors import ConfigError
from ortpipe.metrics import METRICS
from ortpipe.settings import Config, Fix, Must, NotNegative, Text, one_of

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
    """An MLflow database or server, and the names of experiment and registered model there.

    Attributes:
        tracking_uri: `sqlite:///` and a path (with %25 for % and %3F for ?), a server's address, or any other URI that
            MLflow accepts.
        experiment: the name of the experiment, which is created if it does not exist.
        artifacts: the folder of the artifacts of a new experiment in a database, or a URI such as s3://bucket/runs; a
            server decides it itself.
        register: the registered model of which the trained model (of a sweep the best job's) becomes a version; null:
            none.
        alias: the alias of that version, until a later version gets it.
        only_if_better: a metric; the model is only registered if it is better than the version with the alias, both on
            the validation rows; null: always.
        margin: by how much it must be better.
    """

    tracking_uri: Text
    experiment: Text = "ortpipe"
    artifacts: str | None = None
    register: Registered | None = None
    alias: Alias = "champion"
    only_if_better: Annotated[str, one_of("metric", METRICS)] | None = None
    margin: NotNegative = 0.0

    def __post_init__(self) -> None:
        if self.only_if_better is not None and self.register is None:
            rule, fix = "{key} needs a registered model.", "Set {at}register=NAME."
            raise ConfigError(rule, key="only_if_better", got="register=null", fix=fix)
        database = database_of(self.tracking_uri)
        if database is not None:
            literal = Path(self.tracking_uri.removeprefix(PLAIN))
            if literal.parent.is_dir() and literal.parent.absolute() != database.parent.absolute():
                rule = "{key} must be a URI: in the path of a database, % and ? are written %25 and %3F."
                fix = f"Set {{key}}='{uri_of(literal)}'."
                raise ConfigError(rule, key="tracking_uri", got=self.tracking_uri, fix=fix)
            query = "".join(self.tracking_uri.partition("?")[1:])
            object.__setattr__(self, "tracking_uri", f"{uri_of(database)}{query}")
