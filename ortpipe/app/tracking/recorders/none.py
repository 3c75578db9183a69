"""Record nothing; the run folder still holds everything."""

from dataclasses import dataclass

from ortpipe.app.tracking.recorders import Recorder


@dataclass(frozen=True)
class Nothing(Recorder):
    """No record except the run folder."""
