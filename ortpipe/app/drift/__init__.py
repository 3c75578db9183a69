"""Drift: the profile of the training rows that every run keeps, and the comparison of new rows with it.

Names: `Profiler` is the listener that writes a run's `PROFILE`; `read_profile` reads it. `drift_of` returns how new
rows differ from a profile, and `raise_rejected` ends a retraining whose rows exceed the limits of `data.check` with
`RejectedRowsError`, whose exit code is 4. `in_words`, `drift_table` and `drift_figures` show a comparison.
`CheckedDataConfig` is the config of data with these limits.

Read first: `profile.py` (a column in numbers), `compare.py` (limits) and `two_samples.py` (measures).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.app.drift.compare import (
        RejectedRowsError,
        drift_figures,
        drift_of,
        drift_table,
        in_words,
        raise_rejected,
    )
    from ortpipe.app.drift.config import CheckedDataConfig
    from ortpipe.app.drift.profile import FILE as PROFILE
    from ortpipe.app.drift.profile import Profiler, read_profile
else:
    __getattr__, __dir__, __all__ = door(__name__)
