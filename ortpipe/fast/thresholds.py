"""From which sizes on a faster form pays off: one table, with the benchmark that measured each number.

All numbers were measured with onnxruntime 1.19.2 on x86-64 CPUs.
"""

from dataclasses import dataclass, field
from typing import Any


def _bound(default: float, benchmark: str, why: str) -> Any:
    """Return a field: its number, the module in benchmarks/ that measures it, and why it is a bound."""
    return field(default=default, metadata={"benchmark": benchmark, "why": why})


@dataclass
class Thresholds:
    """Numbers by name; `dataclasses.fields` gives the benchmark and the reason of each."""

    sunk_elements: int = _bound(4096, "thresholds", "reading more again takes longer than the nodes that it saves")
    stacked_parameters: int = _bound(1_000, "size", "with fewer parameters, stacks make a step 4 to 15 % slower")
    stacked_elements: int = _bound(2**14, "size", "larger parameters cost more copies than they save nodes")
    stack_height: int = _bound(64, "size", "nodes with more outputs take long to load")
    sorted_nodes: int = _bound(1_000, "size", "smaller graphs load fast in any order")
    sorted_wide_nodes: int = _bound(5_000, "step_memory", "wide graphs may take a sixth more memory in another order")
    wide_bytes: int = _bound(2**28, "step_memory", "bytes of all values of a wide graph")
    unread_share: float = _bound(0.05, "size", "more unread nodes at the end slow the sorting that they should speed")
    planned_bytes: int = _bound(2**24, "step_memory", "a plan of more memory costs more memory than it saves time")
    block_products: float = _bound(1.5, "thresholds", "products with the zeros that fill blocks, per other product")
    block_kernel: int = _bound(64, "thresholds", "numbers per kernel if the image has too few channels for a block")
    block_images: int = _bound(4, "thresholds", "of fewer images, kernels larger than their results take up to twice")
    block_gradient_places: int = _bound(
        64, "thresholds", "gradients of smaller images of many channels are mostly zeros"
    )
    block_gradient_channels: int = _bound(
        128 * 128, "thresholds", "products of channels that are many for small images"
    )


THRESHOLDS = Thresholds()
