"""The table of operators that are rewritten as other operators before the walk, so that existing rules apply.

An expansion is `expansion(op, node)`: it uses `op` to insert nodes before the node and returns one value per output of
the node (None for an unused output), or None to leave the node unchanged.
"""

from ortpipe.autodiff.table import OperatorTable

FAMILIES = {
    "log_sigmoid": "Log",
    "loops": "Loop Scan",
    "recurrent": "GRU LSTM RNN",
    "same_pads": "Conv",
    "sampling": "GridSample RoiAlign",
    "sequences": "ConcatFromSequence OptionalGetElement SequenceAt",
}
EXPANSIONS = OperatorTable(FAMILIES, __name__, "EXPANSIONS")
