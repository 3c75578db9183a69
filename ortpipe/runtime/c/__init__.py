"""The third engine: an epoch graph as one C function, which the machine's own compiler compiles.

Names: `build` returns the library of a C source.

Read first: `compiler.py` (the compiler, the BLAS and the cache), `ortpipe/stages/train/epoch_graph.py` (the graph) and
`ortpipe/runtime/xla/program.py` (the engine beside it).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.runtime.c.compiler import build
else:
    __getattr__, __dir__, __all__ = door(__name__)
