"""Optimizations that only make training faster. Results stay the same, except for the last digits of floats.

The entry point is `Fast`: it groups parameters, rewrites the epoch graph and sorts the nodes of models.
Only `ortpipe/stages/train/speed.py` loads this folder. If you remove the folder, training works as before, only
slower. Read first: `passes.py` (basic rewrites), `thresholds.py` (the sizes from which on each rewrite
pays off) and `hoist.py` (moving nodes out of the step).
"""

from ortpipe.fast.passes import Fast

__all__ = ["Fast"]
