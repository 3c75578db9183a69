"""One call from rows to a trained model: `ortpipe.fit` and `ortpipe fit`.

A call becomes the arguments of a run, so that it has the same store, record and bytes as that command.

Names: `fit` runs a call from Python; `arguments_of` returns the arguments of the equivalent run.

Read first: `call.py` (the two functions), `leaves.py` (settings by their last name) and `inputs.py` (rows and models
from memory as files).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.app.fit.call import arguments_of, fit
    from ortpipe.app.fit.leaves import texts
else:
    __getattr__, __dir__, __all__ = door(__name__)
