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
    quantization,
    reductions,
    resize,
    shapes,
    trigonometry,
)

MODULES = (
    *(
        activations,
        arithmetic,
        control_flow,
        convolution,
        indexing,
        linear,
        losses,
        normalization,
        pooling,
        quantization,
    ),
    *(reductions, resize, shapes, trigonometry),
)
FAMILIES: dict[str, Rules] = {module.__name__.rpartition(".")[2]: module.RULES for module in MODULES}
RULES: Rules = {name: rule for family in FAMILIES.values() for name, rule in family.items()}


def table() -> str:
    """Return the operators of every family as a Markdown table."""
    lines = ["| family | operators |", "|---|---|"]
    lines += [f"| {family} | {', '.join(sorted(rules))} |" for family, rules in FAMILIES.items()]
    return "\n".join(lines)
