"""Sliding windows: what the attributes of convolutions and pools say about each spatial axis."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_ir import Node, Value

from ortpipe.errors import DeriveError

FAR = 2**31 - 1  # an end of a Slice that lies behind every axis
FIX = "Give the graph static sizes there (the batch axis may stay free), or freeze the parameters in front of it."


@dataclass(frozen=True)
class Window:
    """One entry per spatial axis: window o covers the places o · stride − begin + j · dilation, 0 ≤ j < kernel."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def extents(self) -> list[int]:
        """How many places a window spans."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    @property
    def pads(self) -> list[int]:
        """The pads as ONNX writes them."""
        return [*self.begin, *self.end]


def spatial(x: Value | None) -> list[int | None]:
    """Return the sizes after batch and channel, None where not static.

    Raises:
        DeriveError: even the rank is not known.
    """
    if x is None or x.shape is None:
        name = x.name if x is not None else None
        raise DeriveError("Windows need an input of known rank.", got=f"{name!r} of unknown rank", fix=FIX)
    return [d if isinstance(d, int) else None for d in x.shape[2:]]


def window(node: Node) -> Window:
    """Return the windows that a node slides over its first input (Conv and the pools), with auto_pad resolved.

    Raises:
        DeriveError: auto_pad depends on a size that is not static.
    """
    plain, mode = unpadded(node), auto_pad(node)
    n = len(plain.kernel)
    if mode == "NOTSET":
        pads = node.attributes.get_ints("pads", (0,) * 2 * n)
        return Window(plain.kernel, plain.strides, plain.dilations, tuple(pads[:n]), tuple(pads[n:]))
    totals = [0] * n
    if mode.startswith("SAME"):
        for i, (size, s, extent) in enumerate(zip(spatial(node.inputs[0]), plain.strides, plain.extents, strict=True)):
            if size is None and s > 1:
                raise not_static(node, node.inputs[0], f"spatial axis {i}, which auto_pad={mode} needs,")
            totals[i] = max(0, extent - 1 if size is None else (-(-size // s) - 1) * s - size + extent)
    return Window(plain.kernel, plain.strides, plain.dilations, *halves(totals, mode))


def unpadded(node: Node) -> Window:
    """Return a node's windows without their pads; the kernel is the attribute's, or else the second input's.

    Raises:
        DeriveError: neither says the kernel's sizes.
    """
    kernel = node.attributes.get_ints("kernel_shape", None)
    if kernel is None:
        kernel = [s for s in spatial(node.inputs[1]) if s is not None]
        if len(kernel) < len(spatial(node.inputs[1])):
            raise not_static(node, node.inputs[1], "the kernel's spatial axes")
    n = len(kernel)
    strides, dilations = (tuple(node.attributes.get_ints(name, (1,) * n)) for name in ("strides", "dilations"))
    return Window(tuple(kernel), strides, dilations, (0,) * n, (0,) * n)


def halves(totals: Sequence[int], mode: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return pads at begin and end; the odd one goes to the end only for SAME_UPPER."""
    begin = tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals)
    return begin, tuple(t - b for t, b in zip(totals, begin, strict=True))


def auto_pad(node: Node) -> str:
    """Return the auto_pad attribute."""
    return node.attributes.get_string("auto_pad", "NOTSET")


def static(node: Node, x: Value | None) -> list[int]:
    """Return the sizes after batch and channel.

    Raises:
        DeriveError: one of them is not static.
    """
    sizes = spatial(x)
    if None in sizes:
        raise not_static(node, x, f"spatial axis {sizes.index(None)}")
    return [s for s in sizes if s is not None]


def not_static(node: Node, x: Value | None, what: str) -> DeriveError:
    """Return the error that names what is not static."""
    shape = f" of shape {x.shape}" if x is not None else ""
    name = x.name if x is not None else None
    return DeriveError(
        f"The gradient of {node.op_type} is written for static sizes.",
        got=f"{what} of {name!r}{shape} is not static, at node {node.name or node.outputs[0].name!r}",
        fix=FIX,
    )
