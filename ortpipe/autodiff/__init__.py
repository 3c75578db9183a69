"""Derivatives of an ONNX graph, as a graph of standard operators; no stage is needed.

Names: `gradient` computes derivatives of any model (`ortpipe gradient`), `gradient_apart` those of a model with large
weights. `with_gradients` adds a loss's gradients to its graph, `name_gradients` names them. `RULES` is the table of
rules. `active`, `between` and `operands` tell which values and nodes a gradient passes. `Window` describes the
windows of a convolution, and `FAR` is the end of a slice that reaches to the end of an axis.

Read first: `walk.py` (the backward pass, and the signature of a rule), `backward.py` (the builder that rules write
formulas with) and `rules/arithmetic.py` (the simplest rules).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.autodiff.derivatives import gradient, gradient_apart
    from ortpipe.autodiff.expand import between
    from ortpipe.autodiff.table import RULES
    from ortpipe.autodiff.walk import active, name_gradients, operands, with_gradients
    from ortpipe.autodiff.windows import FAR, Window
else:
    __getattr__, __dir__, __all__ = door(__name__)
