"""The settings of parallel training."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ortpipe.settings import Config, Count, Fix, Positive

FREE = {"identity": False}  # no result depends on these settings


@dataclass(frozen=True)
class ParallelConfig(Config):
    """How one training is split over workers.

    The result depends on `slices` and `every`, but not on the other settings: any number of workers, in processes or
    on a cluster, gives byte-identical results.

    Attributes:
        slices: the parts that each batch is cut into; at most so many workers are used.
        every: how often workers exchange results: `step` sums the gradients of a batch's slices before each update;
            a number or `epoch` averages the parameters after so many steps, which each slice takes by itself.
        transport: `processes` on this machine, or `ray`: actors of the Ray cluster that `ray.init` finds.
        workers: the number of workers; null: one per CPU of this machine or of the cluster.
        timeout: seconds without an answer after which a worker counts as hanging and is replaced, or three times
            the slowest answer so far if that is longer; for the first answer, seconds per batch; null: never.
    """

    slices: Count = 8
    every: Literal["step", "epoch"] | Count = "step"
    transport: Annotated[Literal["processes", "ray"], Fix("Write processes or ray.")] = field(
        default="processes", metadata=FREE
    )
    workers: Count | None = field(default=None, metadata=FREE)
    timeout: Positive | None = field(default=60.0, metadata=FREE)
