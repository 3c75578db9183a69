"""The table of operators that are rewritten as other operators before the walk, so that existing rules apply.

An expansion is `expansion(op, node)`: it uses `op` to insert nodes before the node and returns one value per output of
the node (None for an unused output), or None to leave the node unchanged.
"""

from ortpipe.autodiff.expansions import convolution, logarithms, loops, recurrent, sampling, sequences
from ortpipe.graph.core.rewrite import Rewrite

EXPANSIONS: dict[str, Rewrite] = {
    "ConcatFromSequence": sequences.concat,
    "Conv": convolution.conv,
    "GRU": recurrent.recurrent,
    "GridSample": sampling.grid_sample,
    "LSTM": recurrent.recurrent,
    "Log": logarithms.log,
    "Loop": loops.loop,
    "OptionalGetElement": sequences.get_element,
    "RNN": recurrent.recurrent,
    "RoiAlign": sampling.roi_align,
    "Scan": loops.scan,
    "SequenceAt": sequences.at,
}
