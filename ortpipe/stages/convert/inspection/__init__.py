"""The facts of an .onnx file that show without rows: roles of inputs, trainable outputs, and rows that it accepts.

Names: `examine` returns the `Examined` file, whose inputs have a `Role`, and which makes random rows and predicts
them; `labels_of` returns labels that fit a prediction; `OPEN` marks a number that only the user knows.

Read first: `roles.py` (data, states and constants among the inputs), `examined.py` (random rows and their predictions)
and `ortpipe/stages/convert/sources/onnx_file.py` (the source that reads the file).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.stages.convert.inspection.examined import Examined, examine, labels_of
    from ortpipe.stages.convert.inspection.roles import OPEN, Role
else:
    __getattr__, __dir__, __all__ = door(__name__)
