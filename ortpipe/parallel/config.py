"""The settings of parallel training."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ortpipe.settings import Config, Count, Fix, Positive

FREE = {"identity": False}  # no result depends on these settings


@dataclass(frozen=True)
class ParallelConfig(Config):
    """How one training is split over workers.

    The result depends on `slices` and `every`, but not on the other settings: any number of workers, in processes or
    on a cluster, gives byte-identical results, and so does any number of devices.

    Attributes:
        slices: the parts that each batch is cut into; at most so many workers are used.
        every: how often workers exchange results: `step` sums the gradients of a batch's slices before each update;
            a number or `epoch` averages the parameters after so many steps, which each slice takes by itself.
        transport: `processes` on this machine, `ray`: actors of Ray's cluster, or `devices` of this machine, by XLA.
        workers: the number of workers or devices; null: one per CPU of this machine or of the cluster, or all devices.
        timeout: seconds without an answer after which a worker counts as hanging and is replaced, or three times
            the time that its batches take by the slowest answer so far, if that is longer; null: never.
    """

    slices: Count = 8
    every: Literal["step", "epoch"] | Count = "step"
    transport: Annotated[Literal["processes", "ray", "devices"], Fix("Write processes, ray or devices.")] = field(
        default="processes", metadata=FREE
    )
    workers: Count | None = field(default=None, metadata=FREE)
    timeout: Positive | None = field(default=60.0, metadata=FREE)
