"""CodeLines of C in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager


class CodeLines:
    """CodeLines with an indentation."""

    def __init__(self) -> None:
        self.lines, self._depth = list[str](), 1

    def add(self, *lines: str) -> None:
        """Append lines."""
        self.lines += ["  " * self._depth + line for line in lines]

    @contextmanager
    def block(self, head: str, *, independent: bool = False) -> Iterator[None]:
        """Write a block around the lines of the caller's; `independent` is for loops."""
        self.add(*(["INDEPENDENT"] if independent else []), f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.add("}")

    @contextmanager
    def loops(self, bounds: Mapping[str, int], *, independent: bool = True) -> Iterator[None]:
        """Write nested loops around the caller's lines; the iterations of the innermost one are independent."""
        with ExitStack() as stack:
            for place, (v, n) in enumerate(bounds.items()):
                last = independent and place == len(bounds) - 1
                stack.enter_context(self.block(f"for (int64_t {v} = 0; {v} < {n}; {v}++)", independent=last))
            yield

    def loop(self, head: str, lines: Iterable[str], *, independent: bool = False) -> None:
        """Write a loop around lines."""
        with self.block(head, independent=independent):
            self.add(*lines)
