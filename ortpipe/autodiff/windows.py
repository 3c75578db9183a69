"""Sliding windows: the geometry of convolutions and pools per spatial axis."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from onnx_ir import Node, Value

from ortpipe.errors import DeriveError

FAR = 2**31 - 1  # an end of a Slice beyond any axis
FIX = (
    "Give the graph static sizes there{@sizes}: the batch axis may stay free; or take no gradient through it{@freeze}."
)
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Window:
    """One entry per spatial axis: window o covers o · stride − begin + j · dilation, 0 ≤ j < kernel."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    pads: Ints  # all begins, then all ends, as in ONNX

    @property
    def extents(self) -> Ints:
        """Number of positions that a window spans."""
        return (self.kernel - 1) * self.dilations + 1

    @property
    def begin(self) -> Ints:
        """Padding at the start."""
        return self.pads[: len(self.kernel)]

    @property
    def end(self) -> Ints:
        """Padding at the end."""
        return self.pads[len(self.kernel) :]


def spatial(x: Value | None) -> list[int | None]:
    """Return the sizes after batch and channel, None if not static; raise DeriveError if the rank is unknown."""
    if x is None or x.shape is None:
        name = x.name if x is not None else None
        raise DeriveError("Windows need an input of known rank.", got=f"{name!r} of unknown rank", fix=FIX)
    return [d if isinstance(d, int) else None for d in x.shape[2:]]


def window(node: Node) -> Window:
    """Return the windows of a Conv or pool over its input; raise DeriveError if auto_pad needs a symbolic size."""
    plain, mode = unpadded(node), auto_pad(node)
    if mode == "NOTSET":
        return replace(plain, pads=np.array(node.attributes.get_ints("pads", plain.pads)))
    totals = np.zeros_like(plain.kernel)
    if mode.startswith("SAME"):
        for i, (size, s, extent) in enumerate(zip(spatial(node.inputs[0]), plain.strides, plain.extents, strict=True)):
            if size is None and s > 1:
                raise not_static(node, node.inputs[0], f"spatial axis {i}, which auto_pad={mode} needs,")
            totals[i] = max(0, extent - 1 if size is None else (-(-size // s) - 1) * s - size + extent)
    return replace(plain, pads=halves(totals, mode))


def unpadded(node: Node) -> Window:
    """Return a node's windows without pads; the kernel comes from the attribute or else the second input."""
    kernel = node.attributes.get_ints("kernel_shape", None)
    if kernel is None:
        kernel = static(node, node.inputs[1], "the kernel's spatial axes")
    ones = [1] * len(kernel)
    strides, dilations = (np.array(node.attributes.get_ints(name, ones)) for name in ("strides", "dilations"))
    return Window(np.array(kernel), strides, dilations, np.zeros(2 * len(kernel), np.int64))


def halves(totals: Ints, mode: str) -> Ints:
    """Split pads into begin and end; the odd one goes to the end only for SAME_UPPER."""
    begin = totals // 2 if mode == "SAME_UPPER" else totals - totals // 2
    return np.concatenate([begin, totals - begin])


def auto_pad(node: Node) -> str:
    """Return the auto_pad attribute."""
    return node.attributes.get_string("auto_pad", "NOTSET")


def static(node: Node, x: Value | None, what: str = "") -> list[int]:
    """Return the sizes after batch and channel; raise DeriveError if one is not static."""
    sizes = spatial(x)
    if None in sizes:
        raise not_static(node, x, what or f"spatial axis {sizes.index(None)}")
    return [s for s in sizes if s is not None]


def not_static(node: Node, x: Value | None, what: str) -> DeriveError:
    """Return the error for a size that is not static."""
    shape = f" of shape {x.shape}" if x is not None else ""
    name = x.name if x is not None else None
    return DeriveError(
        f"The gradient of {node.op_type} is written for static sizes.",
        got=f"{what} of {name!r}{shape} is not static, at node {node.name or node.outputs[0].name!r}",
        fix=FIX,
    )
