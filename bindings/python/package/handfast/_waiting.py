"""Ends of batches in asyncio's loops."""

from __future__ import annotations

import asyncio
import os
import weakref

from . import _handfast
from ._errors import HandfastError

# A loop holds what waits in it, by the reader of its descriptor, until it is closed.
_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Waiting]] = (
    weakref.WeakKeyDictionary()
)


class End:
    """The end of a batch, as a future of a loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, core: _handfast.Core, batch: int
    ) -> None:
        self.core = core
        self.batch = batch
        self.future: asyncio.Future[None] = loop.create_future()

    def look(self) -> None:
        """End the future if the batch has ended."""
        if has_ended(self.core, self.batch) and not self.future.done():
            self.future.set_result(None)


class _Waiting:
    """The ends that tasks of one loop wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._eventfd)
        self._signal = _handfast.Signal(self._eventfd)
        # An end holds its task, which nothing else may hold.
        self._ends: set[End] = set()
        loop.add_reader(self._eventfd, self._on_signal)

    def _on_signal(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        for end in list(self._ends):
            end.look()

    def add(self, end: End) -> None:
        self._ends.add(end)
        try:
            end.core.signal_at_end(end.batch, self._signal)
        except HandfastError:
            # It has ended, and its number was given back.
            end.look()

    def forget(self, end: End) -> None:
        self._ends.discard(end)


def _of_loop(loop: asyncio.AbstractEventLoop) -> _Waiting | None:
    known = _LOOPS.get(loop)
    return None if known is None else known()


def has_ended(core: _handfast.Core, batch: int) -> bool:
    """Whether a batch has ended. Its number may have been given back since."""
    try:
        return core.state(batch) is not None
    except HandfastError:
        return True


def end_of(core: _handfast.Core, batch: int) -> End | None:
    """Return the end of a batch for the running loop, or None where the loop cannot have one, such as
    without a free descriptor. The caller gives it to ``forget``."""
    loop = asyncio.get_running_loop()
    try:
        waiting = _of_loop(loop)
        if waiting is None:
            waiting = _Waiting(loop)
            _LOOPS[loop] = weakref.ref(waiting)
    except (OSError, NotImplementedError):
        return None
    end = End(loop, core, batch)
    waiting.add(end)
    return end


def forget(end: End) -> None:
    """Forget an end for which nothing waits any more."""
    waiting = _of_loop(end.future.get_loop())
    if waiting is not None:
        waiting.forget(end)
