"""The table of operators that are written as plain scans before the walk, so that Scan's rule does the rest.

An expansion is `expansion(op, node)`: it writes with `op` in front of the node and returns one value per output of the
node (None for an output that nobody reads), or None where the node stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ortpipe.graph.builder import Builder
from ortpipe.stages.derive.expansions import loops, recurrent

Expansion = Callable[[Builder, ir.Node], Sequence[ir.Value | None] | None]

EXPANSIONS: dict[str, Expansion] = {
    "GRU": recurrent.gru,
    "LSTM": recurrent.lstm,
    "Loop": loops.loop,
    "RNN": recurrent.rnn,
    "Scan": loops.scan,
}
