"""Everything that exists only to make training faster. Results stay the same, but for the last digits of floats.

The door is `Fast`: how training groups its parameters, rewrites its epoch graph and sorts the nodes of its models.
`ortpipe/stages/train/speed.py` looks for this folder, which is the only place where it enters. Remove the folder, and
training works as before, slower. Read first: `passes.py` (the rewrites, in their order), `thresholds.py` (from which
sizes on they pay off) and `hoist.py` (moving nodes out of the step).
"""

from ortpipe.fast.door import Fast

__all__ = ["Fast"]
