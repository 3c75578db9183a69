"""The table of vector-Jacobian rules, one family per file.

A rule is `rule(op, node, *dys)`: given the gradient of each output (None where nothing arrived), it returns the
gradient of each input (None where there is none), written with `op`. A result may have the output's broadcast
shape: the walk sums it back to the input's.
"""

from __future__ import annotations

from collections.abc import Callable

from ortpipe.stages.derive.backward import Gradients
from ortpipe.stages.derive.rules import (
    activations,
    arithmetic,
    control_flow,
    convolution,
    indexing,
    linear,
    losses,
    normalization,
    pooling,
    reductions,
    resize,
    shapes,
    trigonometry,
)

Rule = Callable[..., Gradients]

FAMILIES: dict[str, dict[str, Rule]] = {
    "activations": activations.RULES,
    "arithmetic": arithmetic.RULES,
    "control_flow": control_flow.RULES,
    "convolution": convolution.RULES,
    "indexing": indexing.RULES,
    "linear": linear.RULES,
    "losses": losses.RULES,
    "normalization": normalization.RULES,
    "pooling": pooling.RULES,
    "reductions": reductions.RULES,
    "resize": resize.RULES,
    "shapes": shapes.RULES,
    "trigonometry": trigonometry.RULES,
}
RULES: dict[str, Rule] = {name: rule for family in FAMILIES.values() for name, rule in family.items()}


def table() -> str:
    """Return the operators of every family as a Markdown table."""
    lines = ["| family | operators |", "|---|---|"]
    lines += [f"| {family} | {', '.join(sorted(rules))} |" for family, rules in FAMILIES.items()]
    return "\n".join(lines)
