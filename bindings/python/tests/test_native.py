"""The package handfast."""

import asyncio
import copy
import gc
import os
import pickle
import signal
import socket
import tempfile
import threading
import unittest
import unittest.mock
import weakref

import handfast
import numpy
from helpers import Owner


def pair():
    return handfast.Engine(transport="tcp"), handfast.Engine(transport="tcp")


class Encrypted(unittest.TestCase):
    """Engines whose lanes over TCP are encrypted."""

    def test_bytes_move_between_engines_that_encrypt_alone(self):
        keys = tempfile.NamedTemporaryFile()
        self.addCleanup(keys.close)
        keys.write(f"fleet {bytes(range(32)).hex()}\n".encode())
        keys.flush()
        engines = [
            handfast.Engine(transport="tcp", auth=f"psk:{keys.name}", encrypt_lanes=encrypts)
            for encrypts in (True, True, False)
        ]
        for engine in engines:
            self.addCleanup(engine.close)
        cache, block = bytearray(1 << 20), bytearray(b"t" * (1 << 20))
        served = engines[0].register(cache)
        for engine in engines[1:]:
            engine.register(block)
        engines[1].peer(engines[0].address).write(block, served.address)
        self.assertEqual(cache, block)
        with self.assertRaisesRegex(handfast.HandfastError, "encrypt"):
            engines[2].peer(engines[0].address).write(block, served.address)
        with self.assertRaisesRegex(handfast.InvalidArgument, "`auth`") as refused:
            handfast.Engine(transport="tcp", encrypt_lanes=True)
        self.assertNotIn("--", str(refused.exception), "an option of the command line")


class Granted(unittest.TestCase):
    """Memory that some peers may use, by their names, which keys prove."""

    def setUp(self):
        keys = tempfile.NamedTemporaryFile()
        self.addCleanup(keys.close)
        keys.write(f"fleet {bytes(range(32)).hex()}\n".encode())
        keys.flush()
        self.keys = keys
        engines = [handfast.Engine(transport="tcp", auth=f"psk:{keys.name}") for _ in range(3)]
        for engine in engines:
            self.addCleanup(engine.close)
        self.owner, self.reader, self.other = engines
        self.cache, self.block = bytearray(b"tokens"), bytearray(6)
        for engine in engines[1:]:
            engine.register(self.block)

    def check(self, engine, call, served, is_allowed):
        move = getattr(engine.peer(self.owner.address), call)
        if is_allowed:
            move(self.block, served.address)
        else:
            with self.assertRaises(handfast.NotServed):
                move(self.block, served.address)

    def test_peers_have_what_they_are_granted(self):
        reader, other = self.reader, self.other
        served = self.owner.register(self.cache, grants={reader.address: "read"})
        self.check(reader, "read", served, True)
        self.assertEqual(self.block, b"tokens")
        self.check(reader, "write", served, False)
        self.check(other, "read", served, False)
        self.assertEqual(other.peer(self.owner.address).segments(), [])
        served.grant(other.address, "write")
        self.assertEqual(served.grants(), {reader.address: "read", other.address: "write"})
        self.block[:] = b"prefix"
        self.check(other, "write", served, True)
        self.assertEqual(self.cache, b"prefix")
        self.check(other, "read", served, False)
        served.revoke(reader.address)
        self.check(reader, "read", served, False)
        self.assertEqual(served.grants(), {other.address: "write"})
        with self.assertRaisesRegex(handfast.InvalidArgument, "'read', 'write' or 'read-write'"):
            served.grant("*", "own")
        served.close()
        with self.assertRaises(handfast.NotRegistered):
            served.grant("*", "read")

    def test_administrators_change_the_grants_of_a_running_engine(self):
        admin, other = self.reader, self.other
        keys = f"psk:{self.keys.name}"
        with self.assertLogs("handfast", "WARNING") as logged:
            owner = handfast.Engine(transport="tcp", auth=keys, administrators=[admin.address])
        self.assertIn("can call itself an administrator", logged.output[0])
        self.addCleanup(owner.close)
        self.owner = owner
        served = owner.register(self.cache, grants={other.address: "read"})
        peer = admin.peer(owner.address)
        name = next(iter(peer.grants()))
        self.assertEqual(peer.grants(), {name: {other.address: "read"}})
        self.check(other, "read", served, True)
        peer.revoke(name, other.address)
        self.check(other, "read", served, False)
        peer.grant(name, other.address, "write")
        self.assertEqual(served.grants(), {other.address: "write"})
        self.assertEqual(peer.grants(name), {name: {other.address: "write"}})
        self.check(other, "write", served, True)
        with self.assertRaisesRegex(handfast.NotServed, "no segment 'none'"):
            peer.grants("none")
        with self.assertRaisesRegex(handfast.InvalidArgument, "'read', 'write' or 'read-write'"):
            peer.grant(name, "*", "own")
        stranger = other.peer(owner.address)
        for call in (stranger.grants, lambda: stranger.grant(name, "*", "read-write")):
            with self.assertRaisesRegex(
                handfast.HandfastError, "is no administrator of .*`administrators`"
            ) as refused:
                call()
            self.assertNotIn("--", str(refused.exception), "an option of the command line")
        self.assertEqual(served.grants(), {other.address: "write"})
        with self.assertRaisesRegex(handfast.InvalidArgument, "auth"):
            handfast.Engine(transport="tcp", administrators="ops-*, admin")

    def test_grant_for_everybody_needs_no_keys(self):
        owner, user = pair()
        served = owner.register(self.cache, grants={})
        user.register(self.block)
        self.owner = owner
        self.check(user, "read", served, False)
        served.grant("*", "read")
        self.check(user, "read", served, True)
        self.check(user, "write", served, False)
        with self.assertRaisesRegex(handfast.InvalidArgument, "auth"):
            served.grant("decode-*", "read")
        with self.assertRaisesRegex(handfast.InvalidArgument, "auth"):
            owner.register(bytearray(8), grants={"decode-*": "read"})
        self.assertEqual(served.grants(), {"*": "read"})
        with self.assertRaises(handfast.LimitReached):
            grants = {f"node-{number}": "read" for number in range(65)}
            self.reader.register(bytearray(8), grants=grants)
        user.close()
        owner.close()


class Native(unittest.TestCase):
    def setUp(self):
        self.owner, self.user = pair()
        self.cache = numpy.zeros(1 << 20, dtype=numpy.uint8)
        self.block = (numpy.arange(1 << 20) * 7 % 251).astype(numpy.uint8)
        self.served = self.owner.register(self.cache)
        self.local = self.user.register(self.block)
        self.peer = self.user.peer(self.owner.address)

    def tearDown(self):
        self.user.close()
        self.owner.close()

    def test_write_and_read_move_the_bytes(self):
        self.peer.write(self.block[100:5100], self.served.address + 7, notify=("kv", "done"))
        self.assertTrue((self.cache[7:5007] == self.block[100:5100]).all())
        self.cache[9000:9100] = 9
        self.peer.read(self.block[:100], self.served.address + 9000)
        self.assertEqual(self.block[:100].tolist(), [9] * 100)
        self.assertEqual(self.owner.notifications(), [("kv", "done")])
        self.assertEqual(self.owner.notifications(), [])

    def test_served_memory_is_listed(self):
        more = bytearray(100)
        with self.owner.register(more) as second:
            served = [(it.address, it.nbytes, it.writable) for it in self.peer.segments()]
            first = (self.served.address, 1 << 20, True)
            self.assertEqual(served, [first, (second.address, 100, True)])
        self.assertEqual(len(self.peer.segments()), 1)

    def test_registered_bytearray_keeps_its_place(self):
        buffer = bytearray(b"sixteen tokens")
        with self.user.register(buffer):
            self.peer.write(buffer, self.served.address)
            with self.assertRaises(BufferError):
                buffer.extend(b"more")
        buffer.extend(b"more")
        self.assertEqual(bytes(self.cache[:14]), b"sixteen tokens")

    def test_pieces_come_from_lists_and_arrays(self):
        offsets = numpy.arange(1000, dtype=numpy.int64) * 1024
        lengths = numpy.full(1000, 500, dtype=numpy.uint64)
        kinds = [
            (offsets, lengths),
            (offsets.tolist(), lengths.tolist()),
            (tuple(offsets), tuple(lengths)),
            (numpy.repeat(offsets, 2)[::2], lengths[::-1]),
            (offsets.astype(numpy.int32), lengths.astype(numpy.int16)),
        ]
        for offsets, lengths in kinds:
            with self.subTest(kind=type(offsets)):
                self.cache[:] = 0
                # Sums of numpy's integers keep their kind.
                here = [self.local.address + int(offset) for offset in offsets]
                there = numpy.array([self.served.address + int(it) for it in offsets])
                self.peer.write_many(here, there, lengths)
                whole = self.cache[: 1000 * 1024].reshape(1000, 1024)
                sent = self.block[: 1000 * 1024].reshape(1000, 1024)
                self.assertTrue((whole[:, :500] == sent[:, :500]).all())
                self.assertFalse(whole[:, 500:].any())

    def test_tasks_wait_for_transfers(self):
        offsets = numpy.arange(64, dtype=numpy.int64) * 4096

        async def write(times):
            lengths = numpy.full(64, 4096)
            here, there = self.local.address + offsets, self.served.address + offsets
            started = [self.peer.start_write(here, there, lengths) for _ in range(times)]
            return await asyncio.gather(*started)

        self.assertEqual(asyncio.run(write(20)), [64 * 4096] * 20)
        self.assertEqual(asyncio.run(write(1)), [64 * 4096])
        self.assertTrue((self.cache[: 64 * 4096] == self.block[: 64 * 4096]).all())

    def test_failed_task_raises_and_tells_what_landed(self):
        """The peer is stopped after the first of 4 GiB. The first pieces go to the first half of its buffer
        again and again, the last ones to the other half."""
        piece, half = 1 << 16, 1 << 19
        places = numpy.arange(1 << 16) * piece % half
        places[-8:] += half
        lengths = numpy.full(len(places), piece)
        block = numpy.ones(2 * half, dtype=numpy.uint8)
        local = self.user.register(block).address
        with Owner(2 * half) as owner:
            peer = self.user.peer(owner.name)

            async def write():
                transfer = peer.start_write(local + places, owner.address + places, lengths, timeout=5)
                with self.assertRaises(handfast.InUse):
                    transfer.landed()
                while owner.sum(0, half) < half:
                    pass
                owner.stop()
                with self.assertRaises(handfast.TransferTimeout) as caught:
                    await transfer
                return transfer, caught.exception

            peer.write(block[:1], owner.address)
            transfer, failure = asyncio.run(write())
            owner.go_on()
            self.assertTrue(transfer.settled())
            self.assertIn(failure.remote, ("fenced", "indeterminate"))
            landed = numpy.array(transfer.landed())
            self.assertEqual(landed[0], piece)
            self.assertEqual(landed[-8:].tolist(), [0] * 8)
            for place in set(places[landed == piece]):
                self.assertEqual(owner.sum(place, place + piece), piece)
            peer.fence()
            self.assertEqual(owner.sum(half, 2 * half), 0, "these pieces were not begun")

    def test_engine_in_use_keeps_its_buffers_at_its_end(self):
        """An engine without users ends while a peer may write to its memory."""
        block = numpy.zeros(4096, dtype=numpy.uint8)
        alive = weakref.ref(block)
        engine = handfast.Engine()
        engine.register(block)
        core = engine._core

        class InUse:
            def close(self):
                raise handfast.InUse("in use", "local", "the end", None, "indeterminate", -4)

        engine._core = InUse()
        with self.assertLogs("handfast", "WARNING"):
            del engine, block
            gc.collect()
        self.assertIsNotNone(alive())
        handfast._in_use.clear()
        core.close()
        self.assertIsNone(alive())

    def test_failed_write_goes_on_with_what_did_not_land(self):
        """The peer is stopped before the write, so that sockets take only a part of it."""
        piece, count = 1 << 20, 48
        block = numpy.ones(piece * count, dtype=numpy.uint8)
        local = self.user.register(block).address
        with Owner(piece * count) as owner:
            peer = self.user.peer(owner.name)
            peer.write(block[:10], owner.address)
            owner.stop()
            here, there = handfast.Strided(local, count, piece), handfast.Strided(owner.address, count, piece)
            transfer = peer.start_write(here, there, piece, timeout=0.3)
            with self.assertRaises(handfast.TransferTimeout):
                transfer.wait()
            owner.go_on()
            peer.fence()
            landed = transfer.landed()
            self.assertLess(sum(landed), piece * count)
            block[:] = 2
            rest = [(place * piece + nbytes, piece - nbytes) for place, nbytes in enumerate(landed)]
            rest = [(first, nbytes) for first, nbytes in rest if nbytes > 0]
            peer.write_many(
                [local + first for first, _ in rest],
                [owner.address + first for first, _ in rest],
                [nbytes for _, nbytes in rest],
            )
            expected = sum(landed) + 2 * sum(nbytes for _, nbytes in rest)
            self.assertEqual(owner.sum(0, piece * count), expected)

    def test_tensor_is_registered_by_its_pointer(self):
        """A stand-in for one of torch. It lives as long as the registration."""

        class Tensor:
            def __init__(self, kind="cpu", contiguous=True):
                self.bytes = numpy.zeros(64, dtype=numpy.uint8)
                self.device = unittest.mock.Mock(type=kind)
                self.contiguous = contiguous

            def data_ptr(self):
                return self.bytes.ctypes.data

            def numel(self):
                return 16

            def element_size(self):
                return 4

            def is_contiguous(self):
                return self.contiguous

        tensor = Tensor()
        content, alive = tensor.bytes, weakref.ref(tensor)
        registration = self.owner.register(tensor)
        self.assertEqual((registration.address, registration.nbytes), (content.ctypes.data, 64))
        del tensor
        gc.collect()
        self.assertIsNotNone(alive())
        self.peer.write(self.block[:64], registration.address)
        self.assertTrue((content == self.block[:64]).all())
        registration.close()
        gc.collect()
        self.assertIsNone(alive())
        with self.assertRaisesRegex(ValueError, "use a CPU or a CUDA tensor"):
            self.owner.register(Tensor(kind="mps"))
        with self.assertRaisesRegex(ValueError, "call .contiguous"):
            self.owner.register(Tensor(contiguous=False))

    def test_cancelled_task_ends_with_its_transfer(self):
        """The peer is stopped, so the transfer cannot end by itself."""
        with Owner(64 << 20) as owner:
            peer = self.user.peer(owner.name)
            peer.write(self.block[:10], owner.address)
            owner.stop()
            pieces = [self.local.address], [owner.address], [1 << 20]
            many = [pieces[0] * 60, [owner.address + (place << 20) for place in range(60)], pieces[2] * 60]
            transfer = peer.start_write(*many)
            with self.assertRaises(asyncio.TimeoutError):
                asyncio.run(asyncio.wait_for(transfer, 0.2))
            self.assertTrue(transfer.settled(), "nothing reads the buffer any more")

    def test_peer_keeps_registered_buffers_alive(self):
        def connect():
            engine = handfast.Engine(transport="tcp")
            buffer = bytearray(b"kept alive")
            registration = engine.register(buffer)
            return engine.peer(self.owner.address), registration.address, weakref.ref(engine)

        peer, address, engine = connect()
        gc.collect()
        self.assertIsNotNone(engine())
        peer.write_many([address], [self.served.address], [10])
        self.assertEqual(bytes(self.cache[:10]), b"kept alive")

    def test_dropped_transfers_give_their_numbers_back(self):
        pieces = [self.local.address], [self.served.address], [100]
        for _ in range(20):
            for _ in range(100):
                self.peer.start_write(*pieces)
            last = self.peer.start_write(*pieces)
            last.wait()
        self.assertLess(last._batch & 0xFFFFF, 1500)

    def test_many_tasks_wait_with_few_descriptors(self):
        pieces = [self.local.address], [self.served.address], [100]

        async def write():
            started = [self.peer.start_write(*pieces) for _ in range(3000)]
            before = len(os.listdir("/proc/self/fd"))
            waiting = asyncio.gather(*started)
            await asyncio.sleep(0)
            self.assertLess(len(os.listdir("/proc/self/fd")), before + 10)
            return await waiting

        self.assertEqual(asyncio.run(write()), [100] * 3000)

    def test_handler_of_a_signal_closes_the_engine(self):
        """It runs inside of a call that waits."""
        with socket.create_server(("127.0.0.1", 0)) as mute:
            closed, held = [], []

            def close(*_):
                self.user.close()
                closed.append(True)

            before = signal.signal(signal.SIGUSR1, close)
            try:
                name = f"127.0.0.1:{mute.getsockname()[1]}"

                def interrupt():
                    # Not closed before the signal comes.
                    held.append(mute.accept()[0])
                    os.kill(os.getpid(), signal.SIGUSR1)

                threading.Thread(target=interrupt).start()
                with self.assertRaises(handfast.HandfastError):
                    self.user.peer(name).probe()
            finally:
                signal.signal(signal.SIGUSR1, before)
            held[0].close()
            self.assertEqual(closed, [True])
            with self.assertRaises(handfast.HandfastError):
                self.peer.write(self.block[:10], self.served.address)

    def test_errors_have_side_stage_cause_and_state(self):
        here, there = self.local.address, self.served.address
        cases = [
            (handfast.NotRegistered, lambda: self.peer.write(bytearray(4), there)),
            (handfast.NotServed, lambda: self.peer.write(self.block, there + 1)),
            (handfast.NotServed, lambda: self.peer.write_many([here], [2**64 - 1], [4])),
            (handfast.NotRegistered, lambda: self.peer.write_many([2**64 - 1], [there], [4])),
            (handfast.NotRegistered, lambda: self.peer.write_many([here], [there], [2**64 - 1])),
            (handfast.Overlap, lambda: self.user.register(self.block[5:6])),
            (handfast.InvalidArgument, lambda: self.user.register_address(4096, 1 << 40)),
            (handfast.InvalidArgument, lambda: self.user.register_address(here, 0)),
            (handfast.InvalidArgument, lambda: self.user.register_address(2**64 - 1, 2)),
            (handfast.InvalidArgument, lambda: handfast.Engine("127.0.0.1:99999")),
            (handfast.InvalidArgument, lambda: handfast.Engine(metadata="x://y")),
            (handfast.InvalidArgument, lambda: handfast.Engine(transport="nvlink")),
            (handfast.PeerLost, lambda: self.user.peer("127.0.0.1:1").probe()),
        ]
        for kind, call in cases:
            with self.assertRaises(kind) as caught:
                call()
            error = caught.exception
            self.assertIn(error.side, ("local", "peer"))
            self.assertTrue(error.stage and str(error))
            self.assertEqual(error.remote, "untouched")
            self.assertLess(error.code, 0)
            self.assertEqual(str(pickle.loads(pickle.dumps(error))), str(error))
            self.assertIs(type(copy.copy(error)), kind)

    def test_wrong_types_are_refused_by_name(self):
        here, there = self.local.address, self.served.address
        for lists in [([1.5], [there], [4]), ([here], [-1], [4]), ([here], [there], ["4"])]:
            with self.assertRaisesRegex(TypeError, r"\[0\]"):
                self.peer.write_many(*lists)
        with self.assertRaisesRegex(TypeError, r"\[1\] is negative"):
            self.peer.write_many([here, here], numpy.array([there, -1]), [4, 4])
        with self.assertRaisesRegex(ValueError, "different lengths"):
            self.peer.write_many([here], [there, there], [4])
        with self.assertRaisesRegex(ValueError, "read-only"):
            self.user.register(b"constant")
        with self.assertRaisesRegex(ValueError, "read-only"):
            fixed = numpy.zeros(4)
            fixed.flags.writeable = False
            self.user.register(fixed)
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.user.register(numpy.zeros((4, 4))[:, 1])
        with self.assertRaisesRegex(ValueError, "timeout"):
            self.peer.write(self.block, there, timeout=-1)
        for wrong in (None, 7, object()):
            with self.assertRaises(TypeError):
                self.user.register(wrong)
        # Their memory is a copy that ends at once.
        for number in (numpy.float64(1), numpy.zeros(1, dtype=[("field", "i4")])[0]):
            with self.assertRaises((ValueError, TypeError)):
                self.user.register(number)

    def test_devices_are_a_list_or_text(self):
        for devices in (["mlx5_0", "mlx5_1"], "mlx5_0,mlx5_1"):
            with unittest.mock.patch.object(handfast._handfast, "Core") as core:
                core.return_value.warnings = []
                handfast.Engine(devices=devices)
            self.assertEqual(core.call_args.args[3], "mlx5_0,mlx5_1")

    def test_threads_share_an_engine(self):
        failures = []

        def write(thread):
            try:
                for turn in range(4):
                    first = thread * 16384 + turn * 4096
                    part = self.block[first : first + 4096]
                    self.peer.write(part, self.served.address + first)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(thread,)) for thread in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertTrue((self.cache == self.block).all())

    def test_closed_registration_is_unknown_to_peers(self):
        self.peer.write(self.block[:10], self.served.address)
        self.served.close()
        with self.assertRaises(handfast.HandfastError):
            self.peer.write(self.block[:10], self.served.address)
        with self.assertRaises(handfast.NotRegistered):
            self.served.close()

    def test_closed_engine_refuses_calls(self):
        self.user.close()
        with self.assertRaises(handfast.HandfastError):
            self.peer.write(self.block[:10], self.served.address)
        with self.assertRaises(handfast.Closed):
            self.user.register(bytearray(8))
        self.assertEqual(self.user._buffers, {})
        self.user.close()

    def test_closed_peer_is_opened_again(self):
        core = self.user._core
        self.peer.write(self.block[:10], self.served.address)
        self.peer.close()
        self.assertFalse(core.close_peer(self.owner.address), "it is forgotten")
        self.peer.write(self.block[:10], self.served.address)
        self.assertTrue(core.close_peer(self.owner.address))


if __name__ == "__main__":
    unittest.main()
