"""Who draws a run's figures: importing matplotlib and drawing take as long as a short run, so other processes may."""

import contextlib
import ctypes
import importlib
import mmap
import multiprocessing
import os
import pickle
import signal
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import IO, TypeAlias

import onnx

from ortpipe.artifact import Artifact
from ortpipe.facts import Facts
from ortpipe.stages.evaluate.figures import DRAWN, figures

Pictures: TypeAlias = Callable[[], Mapping[str, bytes]]  # waits for them
Drawing: TypeAlias = Callable[[Artifact], Pictures]  # begins to draw

TO_IMPORT = ("matplotlib.figure", "matplotlib.backends.backend_agg", "PIL.PngImagePlugin")
STDERR = 2
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def draw_here(artifact: Artifact) -> Pictures:
    """Draw in this process, when the pictures are asked for."""
    return partial(figures, artifact)


def draw_nothing(artifact: Artifact) -> Pictures:
    """Leave the drawing to a later command."""
    return dict


def draw_beside() -> Drawing:
    """Return what draws in two other processes, forked now, which import matplotlib while this one computes.

    This process draws by itself outside of Linux, without a second core, where it may start no other, where there is
    no room for a temporary file, and where one of them was killed.
    """
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) == 1:
        return draw_here
    ours, theirs = zip(*(multiprocessing.Pipe() for _ in range(2)), strict=True)
    try:
        drawn = tempfile.TemporaryFile()  # noqa: SIM115 - for what is drawn: a pipe takes but a part until it is read
    except OSError:  # no folder is for such files
        return draw_here
    try:
        is_fork = os.fork() == 0
    except BlockingIOError:  # a user's largest number of processes, RLIMIT_NPROC
        drawn.close()
        return draw_here
    if is_fork:
        try:
            _draw(theirs, ours, drawn)
        finally:
            os._exit(0)
    for end in theirs:
        end.close()
    return partial(_ask, ours, drawn)


def _ask(ends: Sequence[Connection], drawn: IO[bytes], artifact: Artifact) -> Pictures:
    shown = {name: tensor for name, tensor in artifact.tensors.items() if name.startswith(DRAWN)}
    try:
        with drawn:
            pickle.dump((artifact.facts.as_json(), shown), drawn)
    except OSError:  # a full disk
        return draw_here(artifact)
    with contextlib.suppress(ConnectionError):  # it was killed, which `_wait` learns
        for end in ends:
            end.send(None)
    return partial(_wait, ends, artifact)


def _wait(ends: Sequence[Connection], artifact: Artifact) -> Mapping[str, bytes]:
    try:
        pictures = {name: png for end in ends for name, png in end.recv().items()}
    except (EOFError, ConnectionError):
        return figures(artifact)
    return pictures


def _draw(ends: Sequence[Connection], parent_ends: Sequence[Connection], drawn: IO[bytes]) -> None:
    """Draw the largest figure, and the others in a fork of this process."""
    _belong_to_parent()
    _close_files(but=drawn.fileno())
    for end in parent_ends:
        end.close()
    for module in TO_IMPORT:
        importlib.import_module(module)
    fork = os.fork()
    if fork == 0:
        _belong_to_parent()
    end, other_end = ends if fork else reversed(ends)
    other_end.close()
    end.recv()
    with mmap.mmap(drawn.fileno(), 0, access=mmap.ACCESS_READ) as content:  # its position is shared, too
        facts, tensors = pickle.loads(content)
    shown = Artifact(onnx.ModelProto(), Facts.from_json(facts), tensors)
    end.send(figures(shown, slice(1) if fork else slice(1, None)))
    if fork:
        os.waitpid(fork, 0)


def _belong_to_parent() -> None:
    """End with the parent, however that ends; leave signals to it."""
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _close_files(but: int) -> None:
    """Close the files and folders that the parent has open, above all what it has locked: its locks end when it does.

    Pipes stay: Arrow ends a process that it finds without one of its own.
    """
    for handle in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the list itself
            mode = os.fstat(handle).st_mode
            if handle > STDERR and handle != but and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                os.close(handle)
