"""The real rows that predictions are compared on."""

from ortpipe.data.rows import Data, Rows

ROWS = 256  # fewer if rows are large,
FEWEST = 32  # but at least these
NUMBERS = 1 << 17  # in all of them: a network's activations may take a thousand times a row's memory


def compared_rows(data: Data) -> Rows:
    """Return the real rows that predictions are compared on."""
    width = sum(array.size for array in data.train.head(1).inputs.values())
    return data.train.head(min(ROWS, max(FEWEST, NUMBERS // max(1, width))))
