"""Text columns as people write them: money, percent, grouped digits, dates, times, yes and no, read as such.

`as_written` finds the reading of each text column from all of its rows and wraps the table's groups, so that the rest
of ortpipe sees plain columns. A reading is part of the trained model: `TextReading.record` is its JSON form, which
`predict` and the registered model apply to raw rows.

Read first: `readings.py`, `detect.py`, `table.py`.
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.data.written.readings import TextReading, is_setting
    from ortpipe.data.written.table import Written, as_written, convert, wrong_rows
else:
    __getattr__, __dir__, __all__ = door(__name__)
