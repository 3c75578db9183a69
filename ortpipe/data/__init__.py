"""Rows: where they come from, how they are split, shuffled and fed to models, and their digest."""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.data.arrays import npz_arrays
    from ortpipe.data.arrow import plain_column
    from ortpipe.data.batches import Batches, order
    from ortpipe.data.feeds import feed_inputs
    from ortpipe.data.frames import arrow_table, check_unique_columns, column_names, plain
    from ortpipe.data.groups import Position, by_row, group_of, offset_position
    from ortpipe.data.load import DataConfig, read_source
    from ortpipe.data.parts import PARTS
    from ortpipe.data.raw_columns import FORMS, RawColumn, check_kinds, in_form, kind_of, numbers, texts
    from ortpipe.data.row_set import RowSet
    from ortpipe.data.slices import column_of
    from ortpipe.data.sources import SOURCES
    from ortpipe.data.teacher import Remember
    from ortpipe.data.unseen import UnseenTable
    from ortpipe.data.written import TextReading
else:
    __getattr__, __dir__, __all__ = door(__name__)
