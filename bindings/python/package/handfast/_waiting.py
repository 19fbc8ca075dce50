"""Ends of batches in asyncio's loops."""

from __future__ import annotations

import asyncio
import os
import weakref

from . import _handfast
from ._errors import HandfastError

_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting] = (
    weakref.WeakKeyDictionary()
)


class _Waiting:
    """The batches that tasks of one loop wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._eventfd)
        self._signal = _handfast.Signal(self._eventfd)
        self._batches: dict[
            tuple[int, int, int], tuple[_handfast.Core, asyncio.Future[None]]
        ] = {}
        loop.add_reader(self._eventfd, self._on_signal)

    def _on_signal(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        for key, (core, future) in list(self._batches.items()):
            if has_ended(core, key[1]):
                del self._batches[key]
                if not future.done():
                    future.set_result(None)

    def end_of(
        self, loop: asyncio.AbstractEventLoop, core: _handfast.Core, batch: int
    ) -> asyncio.Future[None]:
        future: asyncio.Future[None] = loop.create_future()
        key = (id(core), batch, id(future))
        self._batches[key] = (core, future)
        try:
            core.signal_at_end(batch, self._signal)
        except HandfastError:
            # It has ended, and its number was given back.
            del self._batches[key]
            future.set_result(None)
        return future


def has_ended(core: _handfast.Core, batch: int) -> bool:
    """Whether a batch has ended. Its number may have been given back since."""
    try:
        return core.state(batch) is not None
    except HandfastError:
        return True


def end_of(core: _handfast.Core, batch: int) -> asyncio.Future[None] | None:
    """Return a future of the running loop that ends with a batch, or None where the loop cannot have
    one, such as without a free descriptor."""
    loop = asyncio.get_running_loop()
    try:
        waiting = _LOOPS.get(loop)
        if waiting is None:
            waiting = _LOOPS[loop] = _Waiting(loop)
    except (OSError, NotImplementedError):
        return None
    return waiting.end_of(loop, core, batch)
