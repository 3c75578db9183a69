"""From which sizes on a faster form pays off: one table, with the benchmark that measured each number.

All numbers were measured with onnxruntime 1.19.2 on x86-64 CPUs.
"""

from dataclasses import dataclass, field


def _measured(benchmark: str, why: str) -> dict[str, str]:
    """Return metadata of a number: a module in benchmarks/ that measures it, and why it is a bound."""
    return {"benchmark": benchmark, "why": why}


@dataclass
class Thresholds:
    """Numbers by name; `dataclasses.fields` gives the benchmark and the reason of each."""

    sunk_elements: int = field(
        default=4096, metadata=_measured("thresholds", "reading more again takes longer than the nodes that it saves")
    )
    stacked_parameters: int = field(
        default=1_000, metadata=_measured("size", "with fewer parameters, stacks make a step 4 to 15 % slower")
    )
    stacked_elements: int = field(
        default=2**14, metadata=_measured("size", "larger parameters cost more copies than they save nodes")
    )
    stack_height: int = field(default=64, metadata=_measured("size", "nodes with more outputs take long to load"))
    sorted_nodes: int = field(default=1_000, metadata=_measured("size", "smaller graphs load fast in any order"))
    sorted_wide_nodes: int = field(
        default=5_000, metadata=_measured("step_memory", "wide graphs may take a sixth more memory in another order")
    )
    wide_bytes: int = field(default=2**28, metadata=_measured("step_memory", "bytes of all values of a wide graph"))
    unread_share: float = field(
        default=0.05, metadata=_measured("size", "more unread nodes at the end slow the sorting that they should speed")
    )
    planned_bytes: int = field(
        default=2**24, metadata=_measured("step_memory", "a plan of more memory costs more memory than it saves time")
    )
    block_products: float = field(
        default=1.5,
        metadata=_measured("thresholds", "products with the zeros that fill blocks, per product that counts"),
    )
    block_kernel: int = field(
        default=64, metadata=_measured("thresholds", "numbers per kernel if the image has too few channels for a block")
    )
    block_images: int = field(
        default=4,
        metadata=_measured("thresholds", "of fewer images, kernels larger than their results take 1 to 2 times"),
    )
    block_gradient_places: int = field(
        default=64,
        metadata=_measured("thresholds", "gradients of smaller images are mostly zeros if channels are many"),
    )
    block_gradient_channels: int = field(
        default=128 * 128, metadata=_measured("thresholds", "products of channels that are many for small images")
    )


THRESHOLDS = Thresholds()
