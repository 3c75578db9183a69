"""The third engine: an epoch of a dense network as one function in C, compiled on this machine.

Names: `check_compiler` raises if there is no compiler or no BLAS, `check_operators` if an operator is not compiled.
`emit` returns the C source of an epoch graph as a `CSource` with an `Argument` for each array, whose type in C is that
of `C_TYPES`; `number` returns a number in C. `build` returns the library of a source. `CompiledEpoch` is a compiled
epoch graph, `SeededEpochs` the same with the seeds of an epoch's random numbers.

Read first: `reader.py` (a graph as values), `plan.py` (which loops compute them, and where they are) and `source.py`
(the text).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.runtime.c.compiler import build
    from ortpipe.runtime.c.elementwise import number
    from ortpipe.runtime.c.memory import Argument
    from ortpipe.runtime.c.program import CompiledEpoch, SeededEpochs, check_compiler
    from ortpipe.runtime.c.reader import check_operators
    from ortpipe.runtime.c.source import CSource, emit
    from ortpipe.runtime.c.values import C_TYPES
else:
    __getattr__, __dir__, __all__ = door(__name__)
