"""Rows and columns that training should not see: rows without a label, identifiers, copies of the label or of rows.

Read first: `unlabeled.py`, `identifiers.py`, `leaks.py`.
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.data.cleaning.identifiers import identifying_columns, names_id
    from ortpipe.data.cleaning.leaks import CopyOfLabel, repeated_rows_note
    from ortpipe.data.cleaning.unlabeled import labeled_rows
else:
    __getattr__, __dir__, __all__ = door(__name__)
