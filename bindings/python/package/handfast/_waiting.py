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
        self._signal = _handfast.Signal(self._eventfd)
        self._batches: dict[
            tuple[int, int, int], tuple[_handfast.Core, asyncio.Future[None]]
        ] = {}
        loop.add_reader(self._eventfd, self._on_signal)
        weakref.finalize(self, os.close, self._eventfd)

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

    async def wait(self, core: _handfast.Core, batch: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key = (id(core), batch, id(future))
        self._batches[key] = (core, future)
        try:
            try:
                core.signal_at_end(batch, self._signal)
            except HandfastError:
                return  # It has ended, and its number was given back.
            await future
        finally:
            self._batches.pop(key, None)


def has_ended(core: _handfast.Core, batch: int) -> bool:
    """Whether a batch has ended. Its number may have been given back since."""
    try:
        return core.state(batch) is not None
    except HandfastError:
        return True


async def wait(core: _handfast.Core, batch: int) -> None:
    """Wait for the end of a batch."""
    if has_ended(core, batch):
        return
    loop = asyncio.get_running_loop()
    waiting = _LOOPS.get(loop)
    if waiting is None:
        waiting = _LOOPS[loop] = _Waiting(loop)
    await waiting.wait(core, batch)
