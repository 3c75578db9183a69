"""Slices of batches on several devices of one machine: byte-identical results for any number of devices."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.xla.client import devices
from ortpipe.runtime.xla.node import Array, Node
from ortpipe.runtime.xla.program import Program, read, write

DEVICE = "device"


class SlicedProgram(Program):
    """A program whose step has a Scan over slices without states, which devices share; they repeat all else.

    The Scan's first input is the share of each slice; the results of a slice without a share are zero. One loop
    computes all slices of a size. Its number of turns depends on the shares, so that XLA cannot unroll it: it compiles
    the same body for any number of devices. Results are gathered, but not added, by communication.

    Args:
        slices: the name of this Scan, and of the dimension that counts slices.
        sizes: the rows of each slice, in ascending order; arrays hold as many as the last one for each.
        workers: the number of devices, at most that of slices.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        weights: Mapping[str, np.ndarray],
        runtime: RuntimeConfig,
        *,
        slices: str,
        sizes: Sequence[int],
        workers: int,
        **options: Any,
    ) -> None:
        super().__init__(model, weights, runtime, **options)
        chosen = devices(runtime)[:workers]
        self._mesh, self._inner = Mesh(np.array(chosen), (DEVICE,)), {slices: self._of_slices}
        dims = ((value.name, value.type.tensor_type.shape.dim) for value in model.graph.input)
        self._split = {name for name, dim in dims if len(dim) > 1 and dim[1].dim_param == slices}
        self._groups = list[tuple[int, int]]()  # the rows of slices, and room for so many of them on each device
        blocks, first = list[np.ndarray](), 0
        for size, group in itertools.groupby(sizes):
            count = len(list(group))
            room = -(-count // len(chosen))
            block = np.full(room * len(chosen), -1)
            block[:count] = np.arange(first, first + count)
            blocks.append(block.reshape(len(chosen), room))
            self._groups.append((size, room))
            first += count
        if sum(room for _, room in self._groups) == 1:  # XLA would move the work on the only slice out of the loop
            blocks.append(np.full((len(chosen), 1), -1))
        self._slots = np.concatenate(blocks, axis=1).ravel()  # the slice in each place, device by device; −1: none
        self._places = np.argsort(self._slots, kind="stable")[-len(sizes) :]  # the place of each slice

    def run(self, feeds: Mapping[str, np.ndarray], seed: Sequence[int] = (0, 0), first: int = 0) -> list[np.ndarray]:
        """Return the outputs (see `Program.run`); split inputs are [steps, slices, …]."""
        moved = {name: self._by_device(array) if name in self._split else array for name, array in feeds.items()}
        return super().run(moved, seed, first)

    def _by_device(self, array: np.ndarray) -> np.ndarray:
        """Return an array with the slices of each device side by side."""
        if np.array_equal(self._slots, np.arange(array.shape[1])):
            return array
        moved = np.zeros((len(array), len(self._slots), *array.shape[2:]), array.dtype)
        moved[:, self._places] = array
        return moved

    def _spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        specs = [PartitionSpec(None, DEVICE) if name in self._split else PartitionSpec() for name in self._names]
        numbers = [PartitionSpec()] * 3
        return jax.shard_map(
            function, mesh=self._mesh, in_specs=(*specs, *numbers), out_specs=PartitionSpec(), check_vma=False
        )

    def _of_slices(self, node: Node, *inputs: Array) -> tuple[Array, ...]:
        """Compute this device's slices, and return the results of all slices."""
        assert node.run is not None
        run, body, shares = node.run, node.get("body"), inputs[0]

        def of_slice(size: int, number: Array) -> list[Array]:
            rows = [read(x, number) for x in inputs]
            return [jnp.asarray(y) for y in run(body, *(x[:size] if x.ndim else x for x in rows))]

        def turn(size: int, number: Array, results: Any) -> Any:
            return [write(x, y, number, 0) for x, y in zip(results, of_slice(size, number), strict=True)]

        shapes = jax.eval_shape(lambda: of_slice(self._groups[-1][0], np.int32(0)))
        results = [jnp.zeros((len(shares), *y.shape), y.dtype) for y in shapes]
        first = 0
        for size, room in self._groups:
            if size:
                end = first + jnp.count_nonzero(shares[first : first + room]).astype(np.int32)
                results = lax.fori_loop(np.int32(first), end, lambda i, x, size=size: turn(size, i, x), results)
            first += room
        gathered = (lax.all_gather(x, DEVICE, tiled=True) for x in results)
        return tuple(x[self._places] for x in gathered)
