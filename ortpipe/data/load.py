"""Load a source and split its rows."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ortpipe import own
from ortpipe.data.class_weight import ClassWeight, class_weights
from ortpipe.data.cleaning import repeated_rows_note
from ortpipe.data.files import stamps
from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Data, Rows
from ortpipe.data.sources import SOURCES, Source
from ortpipe.data.split import split
from ortpipe.data.split_choice import split_fold, warnings_of, with_key
from ortpipe.data.stream import Stream
from ortpipe.data.table import TableSource
from ortpipe.data.teacher import Remember, TeacherConfig
from ortpipe.data.tokens import TokensConfig
from ortpipe.doors import later
from ortpipe.errors import DataError, under
from ortpipe.settings import Config

if TYPE_CHECKING:
    from ortpipe.data.teacher import taught
else:
    later(__name__)  # it imports scikit-learn


@dataclass(frozen=True)
class DataConfig(Config):
    """Where rows come from, how they are split, how classes count, how a text is tokenized, and a teacher.

    Attributes:
        source: where rows come from.
        split: how rows are split into train, validation and test.
        tokens: how a text column is tokenized; null: not at all.
        class_weight: `balanced`, or {class: weight}: the factor of the class's rows in the loss, besides their own
            weights; metrics do not change.
        teacher: another model, whose predictions to the training rows and to new rows the model learns; null: none.
    """

    source: Annotated[Source, SOURCES]
    split: SplitConfig = SplitConfig()
    tokens: TokensConfig | None = None
    class_weight: ClassWeight = None
    teacher: TeacherConfig | None = None


def load(config: DataConfig, remember: Remember | None = None) -> Data:
    """Read a source and split its rows; `remember` caches the predictions of a teacher."""
    before = stamps(getattr(config.source, "path", None), config.split)
    return dataclasses.replace(split_rows(read_rows(config), config, remember=remember), files=before)


def read_rows(config: DataConfig) -> RowSet:
    """Return the rows of a source, before they are split."""
    source = config.source
    if config.tokens is not None and isinstance(source, TableSource):
        source = dataclasses.replace(source, identifiers="keep")  # a text may occur once
    with under("source"):
        rows = read_source(with_key(source, config.split), config.split)
    return rows if config.tokens is None else config.tokens(rows)


def split_rows(
    rows: RowSet, config: DataConfig, fold: tuple[int, int] | None = None, remember: Remember | None = None
) -> Data:
    """Split rows; with the number of a fold of cross-validation and their count, its rows are the test rows."""
    with under("split"):
        data = split(rows, config.split) if fold is None else split_fold(rows, config.split, fold)
    if (augmented := getattr(config.source, "augmented", None)) is not None:
        with under("source"):
            data = dataclasses.replace(data, train=augmented(data.train))
    weights = class_weights(config.class_weight, data.train)
    notes = [f"class weights: {', '.join(f'{name} {weight:.4g}' for name, weight in list(weights.items())[:20])}"]
    warnings = [*warnings_of(rows, config.split), *repeated_rows_note(data)]
    notes = [*data.notes, *warnings, *(notes if weights else ())]
    data = dataclasses.replace(data, class_weight=weights, notes=tuple(notes))
    if config.teacher is None:
        return data
    with under("teacher"):
        return taught(data, config.teacher, remember)


def read_source(source: Source, split: SplitConfig | None = None) -> RowSet:
    """Return the rows of a source, which may be a user's own."""
    with own.blamed(type(source), "data source", DataError):
        rows: Any = source(split)
    if not isinstance(rows, Rows | Stream):
        rule, fix = "A data source must return Rows.", "Return Rows(inputs={'X': features}, label=labels)."
        raise DataError(rule, got=f"{own.path_of(type(source))} returned a {type(rows).__name__}", fix=fix)
    return rows
