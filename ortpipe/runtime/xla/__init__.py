"""The second engine: JAX traces a graph's standard operators, and XLA compiles them into one function.

Names: `check_client` raises if JAX or the device is missing, `devices` returns all of them. `check_operators` raises if
an operator cannot be compiled. `Program` is a compiled epoch graph, `SeededRuns` the same with the seeds of an epoch's
random numbers, `SlicedProgram` one whose batches are split over devices. Only `check_client` does not import JAX.

Read first: `program.py` (compiling and running), `interpret.py` (tracing a graph) and `operators/elementwise.py` (the
simplest operators).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.runtime.xla.client import check_client, devices
    from ortpipe.runtime.xla.interpret import check_operators
    from ortpipe.runtime.xla.program import Program, SeededRuns
    from ortpipe.runtime.xla.sliced import SlicedProgram
else:
    __getattr__, __dir__, __all__ = door(__name__)
