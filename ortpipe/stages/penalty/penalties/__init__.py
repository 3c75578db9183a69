"""The catalogue of penalties: each is a function that writes the penalty of one parameter."""

from collections.abc import Callable, Iterator, Mapping

from ortpipe import own
from ortpipe.errors import PenaltyError
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Catalogue

Penalty = Callable[[Builder, Value], Value]  # (builder, parameter) → a scalar

PENALTIES: Catalogue[Penalty] = Catalogue(
    "penalty",
    {
        "group": "ortpipe.stages.penalty.penalties.group:group",
        "l1": "ortpipe.stages.penalty.penalties.l1:l1",
        "l2": "ortpipe.stages.penalty.penalties.l2:l2",
    },
    open_to_own=True,
)


def charges(op: Builder, parameter: Value, strengths: Mapping[str, float]) -> Iterator[Value]:
    """Write and yield strength · penalty(w), a scalar, for every strength that is not 0."""
    for kind, strength in strengths.items():
        if strength:
            penalty = PENALTIES[kind]
            with op.formulas(), own.blamed(penalty, "penalty", PenaltyError):
                charge = op.Mul(penalty(op, parameter), strength)
            yield charge
