"""The table of operators that are written as others before the walk, whose rules do the rest.

An expansion is `expansion(op, node)`: it writes with `op` in front of the node and returns one value per output of the
node (None for an output that nobody reads), or None where the node stays as it is.
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
