"""Inspection: the settings with which an .onnx file trains, found without the user's rows.

Names: `inspect` reads a file, tries the pipeline on rows that it makes, and returns an `Inspection` with the text for
the screen and the config that trains the file.

Read first: `trial.py`, `inspection.py` (the texts) and
`ortpipe/stages/convert/inspection/examined.py` (the file).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.app.inspection.inspection import Inspection
    from ortpipe.app.inspection.trial import inspect
else:
    __getattr__, __dir__, __all__ = door(__name__)
