"""Derivatives of an ONNX graph, as a graph of standard operators; no stage is needed.

Names: `gradient` computes derivatives of any model (`ortpipe gradient`), `gradient_apart` those of a model with large
weights. `with_gradients` adds a loss's gradients to its graph, `name_gradients` names them. `RULES` is the table of
rules. `active`, `between` and `operands` tell which values and nodes a gradient passes. `find_kernel_gradient`,
`before_turning` and `forget_kernel_gradients` are about the kernels of convolutions, `FAR` about slices.

Read first: `walk.py` (the backward pass, and the signature of a rule), `backward.py` (the builder that rules write
formulas with) and `rules/arithmetic.py` (the simplest rules).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.autodiff.derivatives import gradient as gradient
    from ortpipe.autodiff.derivatives import gradient_apart as gradient_apart
    from ortpipe.autodiff.kernels import before_turning as before_turning
    from ortpipe.autodiff.kernels import find_kernel_gradient as find_kernel_gradient
    from ortpipe.autodiff.kernels import forget_kernel_gradients as forget_kernel_gradients
    from ortpipe.autodiff.of_loss import with_gradients as with_gradients
    from ortpipe.autodiff.rules import RULES as RULES
    from ortpipe.autodiff.walk import active as active
    from ortpipe.autodiff.walk import between as between
    from ortpipe.autodiff.walk import name_gradients as name_gradients
    from ortpipe.autodiff.walk import operands as operands
    from ortpipe.autodiff.windows import FAR as FAR
else:
    __getattr__, __dir__, __all__ = door(__name__)
