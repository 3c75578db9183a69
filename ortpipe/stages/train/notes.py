"""Notes on a result that looks wrong: a loss that did not change, or weights that rounding undoes."""

from collections.abc import Mapping

import numpy as np

from ortpipe.artifact import Arrays, under

HALF = 2  # bytes of a float16 or bfloat16 number


def still_note(tensors: Arrays) -> str | None:
    """Return the note on a loss that did not change, from train's tensors.

    A single epoch has no other loss to compare, so return None if its weights changed.
    """
    losses, steps = tensors["losses/train"], len(tensors["losses/step"])
    after = under("parameter", tensors)
    moves = (np.abs(a.astype(np.float64) - tensors[f"initial/{name}"]).max(initial=0.0) for name, a in after.items())
    change = float(max(moves, default=0.0))
    if len(losses) < 2 and change > 0:
        return None
    weights = f"no weight changed by more than {change:.3g}" if change else "no weight changed"
    return (
        f"the loss did not change: from {losses[0]:.6g} to {losses[-1]:.6g} in {steps} steps, and {weights}; unless it "
        "started at its optimum, check the meaning of the prediction (convert.source.task, convert.source.scores), "
        "the learning rate, and whether gradients reach the weights (derive.check=true)"
    )


def rounding_note(tensors: Arrays, kinds: Mapping[str, np.dtype]) -> str | None:
    """Return a note if a float16 or bfloat16 model rounds away the result of training, else None.

    Args:
        tensors: train's tensors, with float32 weights.
        kinds: parameter → its type in the model.
    """
    names = " and ".join(sorted({kind.name for kind in kinds.values() if kind.itemsize == HALF}))
    moved = lost = 0
    for name, after in under("parameter", tensors).items() if names else ():
        before, kind = tensors[f"initial/{name}"], kinds.get(name, after.dtype)
        change = after != before
        moved += int(change.sum())
        lost += int((change & (after.astype(kind) == before.astype(kind))).sum())
    if not names or 2 * lost <= moved:
        return None
    return (
        f"the model's {names} rounds {lost} of {moved} trained weights back to their initial values: train "
        "longer or at a higher rate, or write the model in float32 (convert.source.dtype=float32)"
    )
