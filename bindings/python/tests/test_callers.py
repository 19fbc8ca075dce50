"""What the tests and programs of other projects assert of `mooncake.engine`, one case for each of their uses."""

import os
import random
import socket
import threading
import time
import unittest

import numpy
from handfast.mooncake import TransferEngine
from helpers import Owner, Store

MIB = 1 << 20
PIECES = 100


def engine(name="127.0.0.1", store="P2PHANDSHAKE"):
    made = TransferEngine()
    assert made.initialize(name, store, "tcp", "") == 0, made.last_error()
    return made


class Named(unittest.TestCase):
    """Mooncake's own test: two nodes with names in a store over HTTP, and buffers of the engine."""

    def setUp(self):
        store = Store()
        self.addCleanup(store.end)
        self.target, self.user = engine("127.0.0.1:12345", store.url), engine("127.0.0.1:12347", store.url)
        self.there = self.target.allocate_managed_buffer(MIB)
        self.random = random.Random(7)

    def test_name_has_a_first_buffer_once_one_is_managed(self):
        """Managed buffers are parts of a larger one."""
        user = self.user
        self.assertEqual(user.get_first_buffer_address("127.0.0.1:12347"), 0)
        here = user.allocate_managed_buffer(MIB)
        self.assertNotEqual(here, 0)
        first, theirs = map(user.get_first_buffer_address, ("127.0.0.1:12347", "127.0.0.1:12345"))
        self.assertTrue(0 < first <= here and 0 < theirs <= self.there)
        self.assertEqual(user.free_managed_buffer(here, MIB), 0)

    def test_random_bytes_return_as_they_were_written(self):
        """One piece at a time, and in lists with one call or with a batch of their own."""
        user, name = self.user, "127.0.0.1:12345"
        here = user.allocate_managed_buffer(MIB)
        places = [[base + place * 1024 for place in range(PIECES)] for base in (here, self.there)]

        def finished(batch):
            self.assertNotEqual(batch, 0)
            return user.get_batch_transfer_status([batch])

        def one_by_one(call):
            def move(name, *lists):
                return max(call(name, *piece) for piece in zip(*lists))

            return move

        forms = {
            "alone": (one_by_one(user.transfer_sync_write), one_by_one(user.transfer_sync_read)),
            "lists": (user.batch_transfer_sync_write, user.batch_transfer_sync_read),
            "batches": (
                lambda *lists: finished(user.batch_transfer_async_write(*lists)),
                lambda *lists: finished(user.batch_transfer_async_read(*lists)),
            ),
        }
        for form, (write, read) in forms.items():
            for _ in range(3):
                sent = [self.random.randbytes(self.random.randint(16, 256)) for _ in range(PIECES)]
                lengths = [len(piece) for piece in sent]
                for place, piece in zip(places[0], sent):
                    self.assertEqual(user.write_bytes_to_buffer(place, piece, len(piece)), 0)
                self.assertEqual(write(name, *places, lengths), 0, form)
                for place, nbytes in zip(places[0], lengths):
                    self.assertEqual(user.write_bytes_to_buffer(place, bytes(nbytes), nbytes), 0)
                self.assertEqual(read(name, *places, lengths), 0, form)
                returned = [user.read_bytes_from_buffer(*piece) for piece in zip(places[0], lengths)]
                self.assertEqual(returned, sent, form)

    def test_names_that_the_store_does_not_have_fail(self):
        """Ids are 0, and never the largest number, which a caller would take for one."""
        user, absent = self.user, "unreachable_peer:9"
        self.assertEqual(user.batch_transfer_async_write(absent, [0], [0], [16]), 0)
        self.assertEqual(user.batch_transfer_async_read(absent, [0], [0], [16]), 0)
        self.assertEqual(user.transfer_submit_write(absent, 0, 0, 16), 0)
        self.assertEqual(user.get_first_buffer_address(absent), 0)
        self.assertNotEqual(user.send_probe(absent), 0)
        self.assertEqual(user.send_probe("127.0.0.1:12345"), 0)


class Programs(unittest.TestCase):
    """Uses of LMCache, SGLang, vLLM and checkpoint-engine."""

    def setUp(self):
        self.target, self.user = engine(), engine()
        self.there, self.here = (numpy.zeros(1 << 16, numpy.uint8) for _ in range(2))
        self.to, self.of = self.there.ctypes.data, self.here.ctypes.data
        self.name = f"127.0.0.1:{self.target.get_rpc_port()}"

    def test_engines_of_one_process_read_from_each_other(self):
        """Each has one buffer at an address that is no multiple of a page; reads are polled."""
        engines = [(engine(), numpy.zeros(4096 + 8, numpy.uint8)[8:]) for _ in range(4)]
        for made, buffer in engines:
            self.assertEqual(made.register_memory(buffer.ctypes.data, 4096), 0)
        names = [f"127.0.0.1:{made.get_rpc_port()}" for made, _ in engines]
        for owner, (_, buffer) in enumerate(engines):
            buffer[:] = numpy.arange(4096) % 256 ^ owner
        for user, (made, local) in enumerate(engines):
            owner = (user + 1) % len(engines)
            remote = engines[owner][1]
            for first, place, nbytes in ((0, 2048, 512), (256, 1024, 256)):
                expected = local.copy()
                expected[place : place + nbytes] = remote[first : first + nbytes]
                lists = [local.ctypes.data + place], [remote.ctypes.data + first], [nbytes]
                batch = made.batch_transfer_async_read(names[owner], *lists)
                self.assertTrue(0 < batch < 1 << 63)
                while (state := made.transfer_check_status(batch)) == 0:
                    time.sleep(0.001)
                self.assertEqual(state, 1)
                self.assertTrue((local == expected).all(), "and no byte beside it is changed")
                self.assertEqual(made.transfer_check_status(batch), -1, "its end was taken")

    def test_lists_span_registrations_side_by_side(self):
        """A write whose target is not registered fails, and so does one past the end."""
        user = self.user
        self.here[:] = 3
        self.assertEqual(self.target.register_memory(self.to, self.there.nbytes), 0)
        self.assertEqual(user.batch_register_memory([self.of, self.of + 4096], [4096, 8192]), 0)
        self.assertEqual(user.transfer_sync_write(self.name, self.of, self.to, 100), 0)
        lists = [self.of + 100, self.of + 4096], [self.to + 100, self.to + 9000], [900, 1000]
        self.assertEqual(user.batch_transfer_sync(self.name, *lists, 1), 0)
        self.assertEqual(int(self.there.sum(dtype=numpy.uint64)), 3 * 2000)
        self.assertLess(user.transfer_sync_write(self.name, self.of, self.to + self.there.nbytes, 1), 0)
        self.assertEqual(int(self.there.sum(dtype=numpy.uint64)), 3 * 2000)
        self.assertEqual(user.batch_unregister_memory([self.of, self.of + 4096]), 0)
        self.assertEqual(user.send_probe(self.name), 0)

    def test_views_of_a_storage_are_registered_one_by_one(self):
        """Memory of a view that is unregistered is written no more; its sibling still is."""
        user = self.user
        self.here[:] = 3
        self.assertEqual(self.target.register_memory(self.to, self.there.nbytes), 0)
        self.assertEqual(user.batch_register_memory([self.of, self.of + 1000], [1000, 1000]), 0)
        lists = [self.of, self.of + 1000], [self.to, self.to + 5000], [1000, 1000]
        self.assertEqual(user.batch_transfer_sync_write(self.name, *lists), 0)
        self.assertEqual(user.unregister_memory(self.of + 1000), 0)
        later = [self.of + 1000], [self.to + 9000], [10]
        self.assertEqual(user.batch_transfer_sync_write(self.name, *later), -1)
        self.assertIn("register", str(user.last_error()))
        self.assertEqual(user.transfer_sync_write(self.name, self.of, self.to + 9000, 10), 0)
        self.assertEqual(int(self.there.sum(dtype=numpy.uint64)), 3 * 2010)
        self.assertEqual(user.batch_unregister_memory([self.of]), 0)

    def test_tensors_are_registered_in_one_call_and_read(self):
        """Two of an owner with a gap between them, into three of 256."""
        self.there[:2000] = 3
        self.there[8192:] = 5
        tensors = [self.to, self.to + 8192], [4096, self.there.nbytes - 8192]
        self.assertEqual(self.target.batch_register_memory(*tensors), 0)
        layers = [self.of + layer * 256 for layer in range(256)], [256] * 256
        self.assertEqual(self.user.batch_register_memory(*layers), 0)
        lists = layers[0][:3], [self.to, self.to + 1000, self.to + 8192], [256, 200, 10]
        self.assertEqual(self.user.batch_transfer_sync_read(self.name, *lists), 0)
        self.assertEqual(int(self.here.sum(dtype=numpy.uint64)), 3 * 456 + 5 * 10)
        gap = [self.of], [self.to + 5000], [10]
        self.assertEqual(self.user.batch_transfer_sync_read(self.name, *gap), -1)
        self.assertEqual(int(self.here.sum(dtype=numpy.uint64)), 3 * 456 + 5 * 10)
        self.assertEqual(self.target.batch_unregister_memory(tensors[0]), 0)

    def test_names_are_imported_directly(self):
        from handfast.mooncake import TransferEngine, TransferOpcode

        self.assertIs(TransferEngine.TransferOpcode, TransferOpcode)


class Stopped(unittest.TestCase):
    def test_write_ends_once_a_stopped_peer_has_it(self):
        """64 KiB fit into the buffers of a socket, and still the call does not end before the peer
        has applied them."""
        user, here = engine(), numpy.ones(1 << 16, numpy.uint8)
        of, codes = here.ctypes.data, []
        self.assertEqual(user.register_memory(of, here.nbytes), 0)
        with Owner(here.nbytes) as owner:
            write = [of], [owner.address], [here.nbytes]
            self.assertEqual(user.batch_transfer_sync_write(owner.name, *write), 0)
            owner.stop()
            _, status = os.waitpid(owner.process.pid, os.WUNTRACED)
            self.assertTrue(os.WIFSTOPPED(status))
            here[:] = 173

            def transfer():
                codes.append(user.batch_transfer_sync_write(owner.name, *write))

            thread = threading.Thread(target=transfer)
            thread.start()
            try:
                thread.join(0.5)
                self.assertTrue(thread.is_alive(), "done before the peer has the bytes")
            finally:
                owner.go_on()
                thread.join()
            self.assertEqual(codes, [0])
            self.assertEqual(owner.sum(0, here.nbytes), 173 * here.nbytes)


class Waits(unittest.TestCase):
    def test_calls_that_wait_leave_other_threads_running(self):
        """Each waits for a peer that does not answer, until the engine is closed. Meanwhile this thread
        accepts its connection, which it could not while the call held the interpreter's lock."""
        import handfast

        user, block = handfast.Engine(transport="tcp"), bytearray(64)
        local = user.register(block)
        pieces = [local.address], [4096], [64]
        calls = {
            "probe": lambda peer: peer.probe(),
            "segments": lambda peer: peer.segments(),
            "write": lambda peer: peer.write(block, 4096),
            "read_many": lambda peer: peer.read_many(*pieces),
            "start_write": lambda peer: peer.start_write(*pieces),
            "notify": lambda peer: peer.notify("a", "b"),
        }
        threads, failed = [], []
        for name, call in calls.items():
            mute = socket.create_server(("127.0.0.1", 0))
            self.addCleanup(mute.close)
            peer = user.peer(f"127.0.0.1:{mute.getsockname()[1]}")

            def wait(call=call, peer=peer, name=name):
                try:
                    call(peer)
                except handfast.HandfastError:
                    failed.append(name)

            threads.append(threading.Thread(target=wait))
            threads[-1].start()
            connection, _ = mute.accept()
            self.addCleanup(connection.close)
            self.assertTrue(threads[-1].is_alive(), name)
        user.close()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(failed), sorted(calls))


if __name__ == "__main__":
    unittest.main()
