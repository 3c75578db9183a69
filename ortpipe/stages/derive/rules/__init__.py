"""The table of vector-Jacobian rules, one family per file; `walk.py` says what a rule is given and what it returns."""

from ortpipe.stages.derive.backward import Rules
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

FAMILIES: dict[str, Rules] = {
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
RULES: Rules = {name: rule for family in FAMILIES.values() for name, rule in family.items()}


def table() -> str:
    """Return the operators of every family as a Markdown table."""
    lines = ["| family | operators |", "|---|---|"]
    lines += [f"| {family} | {', '.join(sorted(rules))} |" for family, rules in FAMILIES.items()]
    return "\n".join(lines)
