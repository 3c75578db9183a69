"""The settings of derive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ortpipe.doors import later
from ortpipe.settings import Config
from ortpipe.stages.derive.engines import ENGINES, Engine

if TYPE_CHECKING:
    from ortpipe.stages.derive.lora import Lora
else:
    later(__name__)

VERSION = 20  # raised whenever the stage's results change


@dataclass(frozen=True)
class DeriveConfig(Config):
    """The settings of derive: the values to differentiate, and the engine.

    Attributes:
        engine: a member of the catalogue of engines.
        parameters: exact names or globs of the float initializers to train; by default those that `graph/choice`
            recognises by their readers and contents. With adapters: the parameters to train beside them, by default
            none.
        frozen: exact names or globs of parameters to leave as they are.
        output: the value to differentiate, a name, or several; by default the loss. Each that is not a scalar takes
            its own gradient as an input `<output>_grad`, and the results are vector-Jacobian products.
        fill_gradient: start from ones instead: no such inputs, and the results are gradients of the outputs' sum.
        inputs: data inputs whose gradients become outputs too.
        forward_outputs: keep the forward outputs beside loss and gradients (train needs them).
        check: compare the gradients with central finite differences on a few training rows, before training.
        checkpointing: `auto`, or names or globs of forward values. The backward pass recomputes the values between them
            instead of keeping them, which mostly takes less memory and more time. The gradients stay the same.
        adapters: train low-rank adapters beside frozen weights instead of the weights.
    """

    engine: Annotated[Engine, ENGINES] = ENGINES.default("native")
    parameters: tuple[str, ...] | None = None
    frozen: tuple[str, ...] = ()
    output: str | tuple[str, ...] | None = None
    fill_gradient: bool = False
    inputs: tuple[str, ...] = ()
    forward_outputs: bool = True
    check: bool = False
    checkpointing: str | tuple[str, ...] | None = None
    adapters: Lora | None = None
