"""Sweeps: the record of a sweep, its jobs, and the summary of the results.

Names: the command line calls `sweeping` and `reject_secret_name` before a sweep. `run_job` runs one `Job` in the folder
of its sweep. `read_sweep`, `read_jobs`, `best_job`, `Summary` and `panels` read and show a recorded sweep.

Read first: `job.py` (a job and its record), `sweep.py` (the record of a sweep) and `summary.py` (the results).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.app.sweep.callback import reject_secret_name, sweeping
    from ortpipe.app.sweep.figure import panels
    from ortpipe.app.sweep.job import Job, read_jobs, read_sweep, run_job
    from ortpipe.app.sweep.summary import Summary, best_job
else:
    __getattr__, __dir__, __all__ = door(__name__)
