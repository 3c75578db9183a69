"""The table of vector-Jacobian rules, one family per file.

A rule is `rule(op, node, *dys)`: given the gradient of each output (None where nothing arrived), it returns the
gradient of each input (None where there is none), written with `op`. A result may have the output's broadcast
shape: the walk sums it back to the input's.
"""

from __future__ import annotations

from collections.abc import Callable

from ortpipe.stages.derive.backward import Gradients
from ortpipe.stages.derive.rules import activations, arithmetic, control_flow, linear, reductions, shapes, trigonometry

Rule = Callable[..., Gradients]

FAMILIES: dict[str, dict[str, Rule]] = {
    "activations": activations.RULES,
    "arithmetic": arithmetic.RULES,
    "control_flow": control_flow.RULES,
    "linear": linear.RULES,
    "reductions": reductions.RULES,
    "shapes": shapes.RULES,
    "trigonometry": trigonometry.RULES,
}
RULES: dict[str, Rule] = {name: rule for family in FAMILIES.values() for name, rule in family.items()}
