"""The sizes from which on a faster form pays off: one table, with the benchmark that measured each number.

All numbers were measured with onnxruntime 1.19.2 on x86-64 CPUs.
"""

from dataclasses import dataclass, field
from typing import Any


def _bound(default: float, benchmark: str, why: str) -> Any:
    """Return a field: its default, the module in benchmarks/ that measures it, and the reason for the bound."""
    return field(default=default, metadata={"benchmark": benchmark, "why": why})


@dataclass
class Thresholds:
    """Thresholds by name; `dataclasses.fields` gives the benchmark and the reason of each."""

    sunk_elements: int = _bound(4096, "thresholds", "reading larger values again takes longer than the nodes it saves")
    stacked_parameters: int = _bound(1_000, "size", "with fewer parameters, stacks make a step 4 to 15 % slower")
    stacked_elements: int = _bound(2**14, "size", "for larger parameters, copies cost more than the saved nodes")
    stack_height: int = _bound(64, "size", "nodes with more outputs take long to load")
    sorted_nodes: int = _bound(1_000, "size", "smaller graphs load fast in any order")
    sorted_wide_nodes: int = _bound(5_000, "step_memory", "wide graphs may take a sixth more memory in another order")
    wide_bytes: int = _bound(2**28, "step_memory", "bytes of all values of a wide graph")
    unread_share: float = _bound(0.05, "size", "more unused nodes at the end would slow the sorting down")
    planned_bytes: int = _bound(2**24, "step_memory", "larger plans cost more memory than their time is worth")
    block_products: float = _bound(1.5, "thresholds", "the most products including padding zeros, per product without")
    block_kernel: int = _bound(64, "thresholds", "numbers per kernel if the image has less than one block of channels")
    block_images: int = _bound(4, "thresholds", "for fewer images, kernels larger than their results are slower")
    block_gradient_places: int = _bound(
        64, "thresholds", "for smaller images with many channels, gradients are mostly zeros"
    )
    block_gradient_channels: int = _bound(
        128 * 128, "thresholds", "kernels times channels from which on small images are left out"
    )
    gradient_places: int = _bound(
        9, "thresholds", "up to a 3×3 kernel, a product per kernel element is faster than a convolution with dy"
    )
    gradient_line: int = _bound(64, "thresholds", "depthwise, products of longer lines are no faster than of elements")
    short_line: int = _bound(16, "thresholds", "up to such lines, copies with the batch as the last axis are faster")
    joined_columns: int = _bound(54, "thresholds", "up to 6 channels of 3×3, one product of all elements is faster")
    flipped_places: int = _bound(
        512, "thresholds", "for fewer places of a batch, flipping kernels costs more than it saves"
    )
    c_node_steps: int = _bound(1_000_000, "engine_choice", "nodes times steps from which on C repays its compile time")
    c_products: int = _bound(2**21, "__main__", "for more, products take most of a step, and are not faster in a BLAS")
    xla_node_steps: int = _bound(3_000_000, "engine_choice", "the same for the import of JAX and its compile time")
    xla_products: int = _bound(2**21, "__main__", "for more, arithmetic takes most of a step in each engine")


THRESHOLDS = Thresholds()
