"""Exceptions of signal handlers, and tasks that end before their transfers."""

import asyncio
import contextlib
import ctypes
import errno
import functools
import gc
import itertools
import os
import signal
import unittest
import unittest.mock
import weakref

import handfast
import handfast.mooncake
import numpy
from handfast import _waiting
from helpers import Owner


class Signalling:
    """A number whose first conversion sends this process a signal, without a step of the interpreter: it
    handles the signal when the call that converts the number has returned."""

    def __new__(cls, number):
        send = ctypes.CDLL(None)["raise"]
        send.restype = number.__add__
        numbers = itertools.chain(map(send, [signal.SIGALRM]), itertools.repeat(number))
        convert = staticmethod(functools.partial(next, numbers))
        return type("Signalling", (), {"__index__": convert})()


@contextlib.contextmanager
def handler(kind):
    """Raise an exception at each SIGALRM."""

    def fail(*_):
        raise kind("of a signal")

    before = signal.signal(signal.SIGALRM, fail)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


class Registering(unittest.TestCase):
    """A signal that comes while memory is registered."""

    def setUp(self):
        self.engine = handfast.Engine(transport="tcp")
        self.block = numpy.zeros(4096, dtype=numpy.uint8)
        self.alive = weakref.ref(self.block)

    def tearDown(self):
        self.engine.close()

    def register(self):
        address = Signalling(self.block.ctypes.data)
        with handler(TimeoutError), self.assertRaisesRegex(TimeoutError, "of a signal"):
            self.engine.register_address(address, self.block.nbytes, owner=self.block)
        gc.collect()

    def test_interrupted_registration_ends(self):
        """Peers could use memory that its owner has freed otherwise."""
        self.register()
        self.assertEqual(self.engine._core.registered, 0)
        self.engine.register(self.block).close()
        del self.block
        self.assertIsNone(self.alive())

    def test_interrupted_registration_in_use_keeps_its_buffer(self):
        core = self.engine._core

        class InUse:
            register = core.register

            def unregister(self, _):
                raise handfast.InUse("in use", "local", "the end", None, "indeterminate", -4)

        self.engine._core = InUse()
        with self.assertLogs("handfast", "WARNING"):
            self.register()
        self.engine._core = core
        self.assertEqual(core.registered, 1)
        del self.block
        self.assertIsNotNone(self.alive())
        self.engine.close()
        # Frames of the exceptions had it.
        gc.collect()
        self.assertIsNone(self.alive())

    def test_interrupted_registrations_of_mooncake_end(self):
        """Also by an exception of the handler that a refusal of the call would be."""
        engine = handfast.mooncake.TransferEngine()
        self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        first = self.block.ctypes.data
        with handler(ValueError), self.assertRaisesRegex(ValueError, "of a signal"):
            engine.register_memory(Signalling(first), 4096)
        with handler(ValueError), self.assertRaisesRegex(ValueError, "of a signal"):
            engine.batch_register_memory([first, Signalling(first + 2048)], [2048, 2048])
        self.assertEqual(engine._core.registered, 0)
        once = iter([first, Signalling(first + 2048)])
        with handler(ValueError), self.assertRaisesRegex(ValueError, "of a signal"):
            engine.batch_register_memory(once, [2048, 2048])
        self.assertEqual(engine._core.registered, 0)
        self.assertEqual(engine.batch_register_memory([first, first + 2048], [2048, 2048]), 0)
        self.assertEqual(engine.batch_register_memory([first], [1, 2]), -1)
        self.assertEqual(engine.batch_unregister_memory([first, first + 2048]), 0)

    def test_interrupted_allocation_is_given_back(self):
        """Also by an exception of the handler that a refusal of the call would be."""
        engine = handfast.mooncake.TransferEngine()
        self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        # A block of its own.
        length = 9 << 20
        for kind in [TimeoutError, OverflowError]:
            with handler(kind), self.assertRaisesRegex(kind, "of a signal"):
                engine.allocate_managed_buffer(Signalling(length))
        self.assertEqual(engine._core.registered, 1)
        address = engine.allocate_managed_buffer(length)
        self.assertEqual(engine._core.registered, 1)
        self.assertEqual(engine.free_managed_buffer(address, length), 0)

    def test_refused_registration_keeps_no_buffer(self):
        for kind, arguments in [
            (handfast.InvalidArgument, (self.block.ctypes.data, 0)),
            (TypeError, (-1, 4)),
        ]:
            with self.assertRaises(kind):
                self.engine.register_address(*arguments, owner=self.block)
        self.assertEqual(self.engine._buffers, {})


class Starting(unittest.TestCase):
    """A signal that comes while a transfer is started to a peer that is stopped."""

    PIECE, COUNT = 1 << 20, 48

    def setUp(self):
        self.block = numpy.ones(self.PIECE * self.COUNT, dtype=numpy.uint8)
        self.owner = Owner(self.block.nbytes)
        self.addCleanup(self.owner.__exit__)

    def pieces(self):
        offsets = [place * self.PIECE for place in range(self.COUNT)]
        lengths = [self.PIECE] * (self.COUNT - 1) + [Signalling(self.PIECE)]
        here = self.block.ctypes.data
        there = self.owner.address
        return [here + it for it in offsets], [there + it for it in offsets], lengths

    def check(self, fence):
        """Nothing reads the buffer any more."""
        self.block[:] = 200
        self.owner.go_on()
        fence()
        self.assertLessEqual(self.owner.sum(0, self.block.nbytes), self.block.nbytes)

    def test_interrupted_start_leaves_the_buffer_alone(self):
        engine = handfast.Engine(transport="tcp")
        self.addCleanup(engine.close)
        engine.register(self.block)
        peer = engine.peer(self.owner.name)
        peer.write(self.block[:10], self.owner.address)
        first = peer.start_write([self.block.ctypes.data], [self.owner.address], [10])
        first.wait()
        self.owner.stop()
        with handler(TimeoutError), self.assertRaisesRegex(TimeoutError, "of a signal"):
            peer.start_write(*self.pieces())
        self.check(peer.fence)
        next_one = peer.start_write([self.block.ctypes.data], [self.owner.address], [10])
        next_one.wait()
        slots = [it._batch & 0xFFFFF for it in (first, next_one)]
        self.assertEqual(slots[0], slots[1], "the number was given back")

    def test_interrupted_start_of_mooncake_raises(self):
        """Also an exception of the handler that a refusal of the call would be."""
        engine = handfast.mooncake.TransferEngine()
        self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        here, there = self.block.ctypes.data, self.owner.address
        self.assertEqual(engine.register_memory(here, self.block.nbytes), 0)
        self.assertEqual(engine.transfer_sync_write(self.owner.name, here, there, 10), 0)
        first = engine.batch_transfer_async_write(self.owner.name, [here], [there], [10])
        self.assertEqual(engine.get_batch_transfer_status([first]), 0)
        self.owner.stop()
        with handler(ValueError), self.assertRaisesRegex(ValueError, "of a signal"):
            engine.batch_transfer_async_write(self.owner.name, *self.pieces())
        self.check(lambda: engine._core.fence(self.owner.name))
        following = engine.batch_transfer_async_write(self.owner.name, [here], [there], [10])
        self.assertEqual(engine.get_batch_transfer_status([following]), 0)
        self.assertEqual(first & 0xFFFFF, following & 0xFFFFF, "the number was given back")


class Awaiting(unittest.TestCase):
    """Tasks that await a transfer to a peer that is stopped: it cannot end by itself."""

    def setUp(self):
        self.engine = handfast.Engine(transport="tcp")
        self.addCleanup(self.engine.close)
        self.block = numpy.ones(1 << 20, dtype=numpy.uint8)
        local = self.engine.register(self.block).address
        owner = Owner(48 << 20)
        self.addCleanup(owner.__exit__)
        self.peer = self.engine.peer(owner.name)
        self.peer.write(self.block[:10], owner.address)
        owner.stop()
        places = [owner.address + (place << 20) for place in range(48)]
        self.pieces = [local] * 48, places, [1 << 20] * 48

    def test_task_that_its_loop_cancels_ends_with_its_transfer(self):
        """The loop cancels every task when the main one has returned."""
        ends = []

        async def move():
            transfer = self.peer.start_write(*self.pieces)
            ends.append(None)
            try:
                await transfer
            finally:
                ends.append(transfer.settled())

        async def main():
            self.task = asyncio.get_running_loop().create_task(move())
            while not ends:
                await asyncio.sleep(0)

        asyncio.run(main())
        self.assertTrue(self.task.cancelled())
        self.assertEqual(ends, [None, True], "nothing reads the buffer any more")

    def test_repeated_cancels_end_with_the_transfer(self):
        async def main():
            transfer = self.peer.start_write(*self.pieces)
            task = asyncio.ensure_future(transfer)
            while not task.done():
                await asyncio.sleep(0)
                task.cancel()
            self.assertTrue(task.cancelled() and transfer.settled())

        asyncio.run(main())

    def test_transfer_is_awaited_without_a_free_descriptor(self):
        """The await fails with the transfer, and not with the descriptor."""

        async def main():
            transfer = self.peer.start_write(*self.pieces, timeout=0.3)
            full = OSError(errno.EMFILE, "too many open files")
            with unittest.mock.patch.object(os, "eventfd", side_effect=full):
                with self.assertRaises(handfast.TransferTimeout):
                    await transfer
            self.assertTrue(transfer.settled())
            transfer = self.peer.start_write(*self.pieces)
            with unittest.mock.patch.object(os, "eventfd", side_effect=full):
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(transfer, 0.1)
            self.assertTrue(transfer.settled())

        asyncio.run(main())

    def test_closed_coroutine_ends_with_its_transfer(self):
        """A coroutine that is closed may not await the end."""

        async def main():
            transfer = self.peer.start_write(*self.pieces)
            waiting = transfer.__await__()
            next(waiting)
            self.assertFalse(transfer.settled())
            waiting.close()
            self.assertTrue(transfer.settled())

        asyncio.run(main())

    def test_coroutine_closed_in_a_blocking_call_ends_its_transfer(self):
        """A signal's handler, or a collection of garbage in it, can close a coroutine while its thread
        waits for something else."""
        itself, ends = self.engine.peer(self.engine.address), []

        async def main():
            transfer, other = [self.peer.start_write(*self.pieces) for _ in range(2)]
            waiting = transfer.__await__()
            next(waiting)

            def close(*_):
                try:
                    itself.probe()
                except handfast.InvalidArgument:
                    # Inside the other wait.
                    waiting.close()
                    ends.append(transfer.settled())
                    raise TimeoutError("of a signal") from None
                signal.setitimer(signal.ITIMER_REAL, 0.1)

            before = signal.signal(signal.SIGALRM, close)
            try:
                with self.assertRaisesRegex(TimeoutError, "of a signal"):
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
                    other.wait()
            finally:
                signal.signal(signal.SIGALRM, before)

        asyncio.run(main())
        self.assertEqual(ends, [True], "nothing reads the buffer any more")

    def test_task_that_nobody_holds_goes_on(self):
        """A collection of garbage ends no transfer that a task awaits, though only the transfer holds it."""
        ends = []

        async def move():
            try:
                await self.peer.start_write(*self.pieces, timeout=0.5)
            except handfast.TransferTimeout as error:
                ends.append(error)

        async def main():
            asyncio.get_running_loop().create_task(move())
            await asyncio.sleep(0)
            gc.collect()
            while not ends:
                await asyncio.sleep(0.01)

        asyncio.run(asyncio.wait_for(main(), 60))
        self.assertEqual(len(ends), 1)

    def test_closed_loop_is_forgotten(self):
        """A loop that is closed while a task awaits a transfer takes its descriptors along."""
        gc.collect()
        before, tasks = len(_waiting._LOOPS), []

        async def move():
            await self.peer.start_write(*self.pieces)

        async def main():
            tasks.append(asyncio.get_running_loop().create_task(move()))
            await asyncio.sleep(0)

        loop = asyncio.new_event_loop()
        # Without a word on the task that is pending.
        loop.set_exception_handler(lambda *_: None)
        loop.run_until_complete(main())
        self.assertEqual(len(_waiting._LOOPS), before + 1)
        loop.close()
        tasks.clear()
        del loop
        gc.collect()
        self.assertEqual(len(_waiting._LOOPS), before)


if __name__ == "__main__":
    unittest.main()
