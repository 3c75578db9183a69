"""The facts of an .onnx file that show without rows: roles of inputs, trainable outputs, and rows that it accepts.

Names: `examine` returns the `Examined` file, whose inputs have a `Role`, and which makes random rows and predicts
them; `labels_of` returns labels that fit a prediction; `OPEN` marks a number that only the user knows.

Read first: `roles.py` (data, states and constants among the inputs), `rows.py` (random rows) and `examined.py`.
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.stages.convert.inspection.examined import Examined, examine
    from ortpipe.stages.convert.inspection.roles import OPEN, Role
    from ortpipe.stages.convert.inspection.rows import labels_of
else:
    __getattr__, __dir__, __all__ = door(__name__)
