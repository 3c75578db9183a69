"""Work that is split over stateless workers: processes of this machine, or Ray actors of a cluster.

A worker loads its `SliceWork` once. `Pool.run` sends a shared value and the numbers of some slices to each, and
returns their results. Workers keep nothing that a new one cannot compute again: the pool replaces a worker that dies or
hangs, and repeats its slices elsewhere. `subtree_sums` in workers and then `tree_sum` add values of slices in an order
that no assignment changes. Training uses it in `ortpipe/stages/train/parallel.py`. Read first: `pool.py` (distribution
and faults), `process.py` (a worker process), `slices.py` (the cut of a batch and the sum).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.parallel.config import ParallelConfig as ParallelConfig
    from ortpipe.parallel.pool import Pool as Pool
    from ortpipe.parallel.pool import check_engine as check_engine
    from ortpipe.parallel.pool import named as named
    from ortpipe.parallel.pool import wrong_answer as wrong_answer
    from ortpipe.parallel.slices import slice_bounds as slice_bounds
    from ortpipe.parallel.slices import subtree_sums as subtree_sums
    from ortpipe.parallel.slices import subtrees as subtrees
    from ortpipe.parallel.slices import tree_sum as tree_sum
    from ortpipe.parallel.worker import SliceWork as SliceWork
else:
    __getattr__, __dir__, __all__ = door(__name__)
