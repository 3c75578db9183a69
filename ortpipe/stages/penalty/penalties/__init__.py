"""The catalogue of penalties: each is a function that writes the penalty of one parameter."""

from ortpipe.stages.penalty.penalties.l1 import l1
from ortpipe.stages.penalty.penalties.l2 import l2

PENALTIES = {
    "l1": l1,
    "l2": l2,
}
