"""The table of operators that are written as plain scans before the walk, so that Scan's rule does the rest.

An expansion is `expansion(op, node)`: it writes with `op` in front of the node and returns one value per output of the
node (None for an output that nobody reads), or None where the node stays as it is.
"""

from ortpipe.graph.rewrite import Rewrite
from ortpipe.stages.derive.expansions import loops, recurrent

EXPANSIONS: dict[str, Rewrite] = {
    "GRU": recurrent.recurrent,
    "LSTM": recurrent.recurrent,
    "Loop": loops.loop,
    "RNN": recurrent.recurrent,
    "Scan": loops.scan,
}
