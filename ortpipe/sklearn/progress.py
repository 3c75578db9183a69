"""Listen to a training's epochs: a progress bar, and callbacks, which may end it."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ortpipe.errors import ConfigError
from ortpipe.stages import Checkpoint, Epoch

Callback = Callable[[Epoch], Any]


class EndOfFit(BaseException):
    """A callback ends the training; as with Ctrl-C, train reports a checkpoint first."""


class Listener:
    """Shows each epoch and calls the callbacks; training ends when one returns True.

    Args:
        callbacks: each called with an `Epoch`.
        bar: a tqdm bar, or None.
        end: the exception that ends the training.
    """

    def __init__(self, callbacks: Sequence[Callback], bar: Any, end: type[BaseException]) -> None:
        self.checkpoint: Checkpoint | None = None  # the checkpoint of a training that was ended
        self.interrupted = False  # whether by Ctrl-C
        if not (np.iterable(callbacks) and all(map(callable, callbacks))):
            rule, fix = "{key} must be a sequence of functions.", "Give [function], which is called with each Epoch."
            raise ConfigError(rule, key="callbacks", got=f"{callbacks!r:.200}", fix=fix)
        self._callbacks, self._bar, self._end = callbacks, bar, end

    def __call__(self, event: object) -> None:
        """Handle a report of train."""
        if isinstance(event, Checkpoint):
            self.checkpoint = event
        elif isinstance(event, Epoch):
            if self._bar is not None:
                shown = {"loss": event.loss, "validation": event.validation, "rate": event.rate}
                self._bar.set_postfix({k: f"{v:.4g}" for k, v in shown.items() if v is not None}, refresh=False)
                self._bar.update(event.number - self._bar.n)
            answers = [callback(event) for callback in self._callbacks]
            if True in answers or self.interrupted:
                raise self._end

    @contextlib.contextmanager
    def until_next(self) -> Iterator[None]:
        """Let a first Ctrl-C end the training after the current iteration: lbfgs has no checkpoint before."""
        if threading.current_thread() is not threading.main_thread():  # signals arrive only there
            yield
            return

        def interrupt(number: int, frame: object) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, previous)  # a second Ctrl-C ends it immediately

        previous = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def progress_bar(title: str, done: int, epochs: int, *, shown: bool) -> Iterator[Any]:
    """Open a bar of epochs, as a widget in notebooks; yield None if it is not shown."""
    if not shown:
        yield None
        return
    from tqdm.auto import tqdm

    with tqdm(desc=title, initial=done, total=epochs, unit=" epochs") as bar:
        yield bar
