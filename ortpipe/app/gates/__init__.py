"""Gates: requirements that a trained model must meet, and the comparison with the champion that it would replace.

Names: `check_gates` rejects wrong settings before any work, `check_model` those that do not fit the model; `Gates` is
the listener that decides at the end of a run and records the decision; `raise_failed` ends a run whose model failed
with `GateError`, whose exit code is 3.

Read first: `require.py` (limits of metrics), `gates.py` (the listener, and the comparison) and
`ortpipe/app/execute.py` (a run).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.app.gates.gates import GateError, Gates, raise_failed
    from ortpipe.app.gates.require import check_gates, check_model
else:
    __getattr__, __dir__, __all__ = door(__name__)
