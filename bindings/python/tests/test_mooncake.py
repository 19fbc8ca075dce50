"""The interface of mooncake.engine, as its callers use it."""

import os
import socket
import subprocess
import sys
import threading
import time
import unittest

import numpy
from handfast import mooncake
from handfast.mooncake import TransferEngine, TransferNotify, TransferOpcode
from helpers import Owner

MIB = 1 << 20

# Methods that callers of the interface use, with the names of their arguments where those can be
# keywords.
SIGNATURES = {
    "initialize": ("local_hostname", "metadata_server", "protocol", "device_name"),
    "initialize_ext": (
        "local_hostname",
        "metadata_server",
        "protocol",
        "device_name",
        "metadata_type",
    ),
    "get_rpc_port": (),
    "register_memory": ("buffer_addr", "capacity", "location"),
    "unregister_memory": ("buffer_addr",),
    "batch_register_memory": ("buffer_addresses", "capacities", "location"),
    "batch_unregister_memory": ("buffer_addresses",),
    "transfer_sync_write": (
        "target_hostname",
        "buffer",
        "peer_buffer_address",
        "length",
        "transport_hint",
    ),
    "batch_transfer_sync_read": (
        "target_hostname",
        "buffers",
        "peer_buffer_addresses",
        "lengths",
        "transport_hint",
    ),
    "transfer_sync": (
        "target_hostname",
        "buffer",
        "peer_buffer_address",
        "length",
        "opcode",
        "notify",
        "transport_hint",
    ),
    "get_first_buffer_address": ("segment_name",),
    "send_probe": ("peer_server_name",),
    "get_local_topology": ("device_name",),
}


def engine(name="127.0.0.1"):
    made = TransferEngine()
    assert made.initialize(name, "P2PHANDSHAKE", "tcp", "") == 0, made.last_error()
    return made


class Interface(unittest.TestCase):
    def test_names_are_those_of_mooncake(self):
        import inspect

        for method, names in SIGNATURES.items():
            signature = inspect.signature(getattr(TransferEngine, method))
            self.assertEqual(tuple(signature.parameters)[1:], names, method)
        self.assertEqual((TransferOpcode.Read, TransferOpcode.Write), (0, 1))
        self.assertIs(TransferEngine.TransferOpcode, TransferOpcode)
        self.assertEqual((mooncake.Read, mooncake.Write), (0, 1))
        self.assertFalse(mooncake.SUPPORT_CUDA)
        notify = TransferNotify("name", msg="text")
        notify.msg += "!"
        self.assertEqual((notify.name, notify.msg), ("name", "text!"))
        with self.assertRaisesRegex(AttributeError, "RPC"):
            mooncake.RpcInterface

    def test_what_is_not_supported_is_refused_or_absent(self):
        for made in (TransferEngine(), engine()):
            self.assertIsNone(made.get_engine())
            self.assertEqual(made.get_engine_ptr(), 0)
            self.assertEqual(made.warmup_efa_segment("any"), 0)
        for name in ("transfer_write_on_cuda", "batch_transfer_read_on_cuda"):
            self.assertFalse(hasattr(made, name))
        with self.assertRaisesRegex(AttributeError, "SharedSegment"):
            mooncake.SharedSegment

    def test_calls_before_initialize_fail(self):
        made = TransferEngine()
        self.assertEqual(made.get_rpc_port(), 0)
        self.assertEqual(made.register_memory(4096, 4096), -1)
        self.assertEqual(made.unregister_memory(4096), -1)
        self.assertEqual(made.batch_register_memory([4096], [4096]), -1)
        self.assertEqual(made.transfer_sync_write("h:1", 1, 1, 1), -1)
        self.assertEqual(made.batch_transfer_sync_read("h:1", [1], [1], [1]), -1)
        self.assertEqual(made.batch_transfer_async_read("h:1", [1], [1], [1]), 0)
        self.assertEqual(made.transfer_submit_write("h:1", 1, 1, 1), 0)
        self.assertEqual(made.transfer_check_status(1), -1)
        self.assertEqual(made.get_batch_transfer_status([1]), -1)
        self.assertEqual(made.get_notifies(), [])
        self.assertEqual(made.send_probe("h:1"), -1)
        self.assertEqual(made.get_first_buffer_address("h:1"), 0)
        self.assertEqual(made.allocate_managed_buffer(10), 0)
        self.assertIn("initialize", str(made.last_error()))

    def test_initialize_refuses_what_it_does_not_know(self):
        for arguments in [
            ("127.0.0.1", "P2PHANDSHAKE", "xgmi", ""),
            ("127.0.0.1:0x", "P2PHANDSHAKE", "tcp", ""),
            ("127.0.0.1", "redis://127.0.0.1", "tcp", ""),
        ]:
            made = TransferEngine()
            self.assertEqual(made.initialize(*arguments), -1)
            self.assertTrue(str(made.last_error()))
        self.assertEqual(made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", None), 0)
        self.assertEqual(made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), -1)
        with self.assertRaises(TypeError):
            TransferEngine().initialize(None, "P2PHANDSHAKE", "tcp", "")

    def test_rdma_without_a_device_is_tcp_with_a_warning(self):
        made = TransferEngine()
        with self.assertLogs("handfast.mooncake", "WARNING") as logged:
            self.assertEqual(made.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", ""), 0)
        self.assertEqual(len(logged.output), 1, logged.output)
        self.assertIn("TCP", logged.output[0])


class Transfers(unittest.TestCase):
    def setUp(self):
        self.target, self.user = engine(), engine()
        self.there = numpy.zeros(4 * MIB, dtype=numpy.uint8)
        self.here = (numpy.arange(4 * MIB) % 253).astype(numpy.uint8)
        self.to, self.of = self.there.ctypes.data, self.here.ctypes.data
        self.assertEqual(self.target.register_memory(self.to, 4 * MIB), 0)
        self.assertEqual(self.user.register_memory(self.of, 4 * MIB), 0)
        self.name = f"127.0.0.1:{self.target.get_rpc_port()}"

    def ended(self, batch):
        while (state := self.user.transfer_check_status(batch)) == 0:
            time.sleep(0.001)
        return state

    def test_every_form_of_transfer_moves_the_bytes(self):
        to, of, user = self.to, self.of, self.user
        pieces = [of, of + 8192], [to, to + 8192], [100, 200]
        forms = [
            lambda: user.transfer_sync_write(self.name, of, to, 100),
            lambda: user.transfer_sync(self.name, of, to, 100, TransferOpcode.Write),
            lambda: user.transfer_sync(self.name, of, to, 100, 1, TransferNotify("a", "b")),
            lambda: user.batch_transfer_sync_write(self.name, *pieces),
            lambda: user.batch_transfer_sync(self.name, *pieces, TransferOpcode.Write),
            lambda: self.ended(user.batch_transfer_async_write(self.name, *pieces)) - 1,
            lambda: self.ended(user.batch_transfer_async(self.name, *pieces, 1)) - 1,
            lambda: self.ended(user.transfer_submit_write(self.name, of, to, 100)) - 1,
            lambda: user.get_batch_transfer_status(
                [user.batch_transfer_async_write(self.name, *pieces) for _ in range(5)]
            ),
        ]
        for number, form in enumerate(forms):
            self.there[:] = 0
            self.assertEqual(form(), 0, number)
            self.assertTrue((self.there[:100] == self.here[:100]).all(), number)
        self.there[:] = 5
        self.assertEqual(user.transfer_sync_read(self.name, of, to, 10), 0)
        self.assertEqual(user.batch_transfer_sync_read(self.name, *pieces), 0)
        batch = user.batch_transfer_async_read(self.name, *pieces)
        self.assertEqual(self.ended(batch), 1)
        self.assertEqual(self.here[8192:8392].tolist(), [5] * 200)
        told = [(it.name, it.msg) for it in self.target.get_notifies()]
        self.assertEqual(told, [("a", "b")])

    def test_state_of_a_batch_is_of_all_its_requests(self):
        """The first request is small, the last ones are large: done means that all are."""
        count = 64
        sizes = [16] + [MIB // 16] * (count - 1)
        offsets = [0] + [4096 + place * (MIB // 16) for place in range(count - 1)]
        self.there[:] = 7
        batch = self.user.batch_transfer_async_read(
            self.name,
            [self.of + offset for offset in offsets],
            [self.to + offset for offset in offsets],
            sizes,
        )
        self.assertTrue(0 < batch < 1 << 63)
        self.assertEqual(self.ended(batch), 1)
        last = offsets[-1]
        self.assertTrue((self.here[last : last + sizes[-1]] == 7).all())
        self.assertEqual(self.user.transfer_check_status(batch), -1)

    def test_unknown_peers_and_ids_fail(self):
        user = self.user
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            absent = f"127.0.0.1:{nobody.getsockname()[1]}"
            self.assertEqual(user.transfer_sync_write(absent, self.of, self.to, 4), -1)
            self.assertEqual(user.batch_transfer_async_write(absent, [self.of], [1], [4]), 0)
            self.assertEqual(user.batch_transfer_sync_write(absent, [], [], []), -1)
            self.assertNotEqual(user.send_probe(absent), 0)
            self.assertEqual(user.get_first_buffer_address(absent), 0)
        for batch in (0, 1, 2**63, 2**64 - 1, 2**64, -1):
            self.assertEqual(user.transfer_check_status(batch), -1, batch)
            self.assertEqual(user.get_batch_transfer_status([batch]), -1, batch)
        self.assertEqual(user.get_batch_transfer_status([]), 0)

    def test_lists_of_unequal_length_fail_and_empty_ones_do_not(self):
        user, of, to = self.user, self.of, self.to
        self.assertEqual(user.batch_transfer_sync_write(self.name, [of], [to, to], [4]), -1)
        self.assertEqual(user.batch_transfer_async_write(self.name, [of], [to], []), 0)
        self.assertEqual(user.batch_register_memory([1, 2], [3]), -1)
        self.assertEqual(user.batch_transfer_sync_write(self.name, [], [], []), 0)
        self.assertEqual(user.batch_register_memory([], []), 0)
        self.assertEqual(self.ended(user.batch_transfer_async_read(self.name, [], [], [])), 1)

    def test_wrong_types_raise(self):
        for wrong in (1.5, -1, "4", None):
            with self.assertRaises(TypeError):
                self.user.transfer_sync_write(self.name, wrong, self.to, 4)
            with self.assertRaises(TypeError):
                self.user.batch_transfer_sync_write(self.name, [self.of], [wrong], [4])

    def test_registration_is_checked(self):
        user, of = self.user, self.of
        self.assertEqual(user.register_memory(of, 4), -7, "overlap")
        self.assertEqual(user.register_memory(of + MIB, MIB), -7, "inside")
        self.assertEqual(user.register_memory(4096, 1 << 50), -1, "not mapped")
        self.assertEqual(user.register_memory(of, 0), -1, "empty")
        self.assertEqual(user.unregister_memory(of + 1), -3)
        self.assertEqual(user.transfer_sync_write(self.name, of + 4 * MIB - 1, self.to, 2), -1)
        self.assertEqual(user.transfer_sync_write(self.name, of, self.to + 4 * MIB - 1, 2), -1)
        self.assertEqual(user.last_error().remote, "untouched")
        self.assertEqual(user.unregister_memory(of), 0)
        self.assertEqual(user.unregister_memory(of), -3)
        some = numpy.zeros(4096 * 4, dtype=numpy.uint8)
        places = [some.ctypes.data + place * 4096 for place in range(4)]
        self.assertEqual(user.batch_register_memory(places + places[:1], [4096] * 5), -7)
        self.assertEqual(user.batch_register_memory(places, [4096] * 4), 0)
        self.assertEqual(user.batch_unregister_memory(places), 0)
        self.assertEqual(user.batch_unregister_memory(places), -3)

    def test_wrong_elements_change_nothing(self):
        """None is converted, so that 4096.5 does not stand for the memory at 4096."""
        user, of, to = self.user, self.of, self.to
        for wrong in (of + 0.5, str(of), None):
            with self.assertRaises(TypeError):
                user.batch_unregister_memory([of, wrong])
        for wrong in (-1, 1 << 64):
            with self.assertRaises(OverflowError):
                user.batch_unregister_memory([of, wrong])
        self.assertEqual(user.transfer_sync_write(self.name, of, to, 4), 0)
        batch = user.batch_transfer_async_write(self.name, [of], [to], [4])
        with self.assertRaises(TypeError):
            user.get_batch_transfer_status([batch, None])
        self.assertEqual(user.get_batch_transfer_status(iter([batch])), 0)
        self.assertEqual(user.get_batch_transfer_status([batch]), -1, "its end was taken")

    def test_threads_initialize_one_engine(self):
        made, codes = TransferEngine(), []
        together = threading.Barrier(8)

        def start():
            together.wait()
            codes.append(made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(codes), [-1] * 7 + [0])

    def test_hundred_thousand_requests_are_one_call(self):
        count = 100_000
        offsets = numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(40)
        here, there = offsets + numpy.uint64(self.of), offsets + numpy.uint64(self.to)
        lengths = numpy.full(count, 40, dtype=numpy.uint64)
        self.assertEqual(self.user.batch_transfer_sync_write(self.name, here, there, lengths), 0)
        self.assertTrue((self.there[: count * 40] == self.here[: count * 40]).all())

    def test_managed_buffers(self):
        user = self.user
        address = user.allocate_managed_buffer(100_000)
        self.assertEqual(user.write_bytes_to_buffer(address, b"tokens and more", 6), 0)
        self.assertEqual(user.read_bytes_from_buffer(address, 6), b"tokens")
        self.assertEqual(user.transfer_sync_write(self.name, address, self.to, 6), 0)
        self.assertEqual(bytes(self.there[:6]), b"tokens")
        self.assertEqual(user.get_first_buffer_address(self.name), self.to)
        self.assertEqual(user.write_bytes_to_buffer(8, b"x", 1), -1)
        self.assertEqual(user.write_bytes_to_buffer(-1, b"x", 1), -1)
        for length in (-1, 3):
            self.assertEqual(user.write_bytes_to_buffer(address, b"xy", length), -1)
        with self.assertRaises(TypeError):
            user.write_bytes_to_buffer(address, 5, 5)
        self.assertEqual(user.read_bytes_from_buffer(address, 6), b"tokens")
        self.assertEqual(user.write_bytes_to_buffer(address, "token!", 6), 0)
        self.assertEqual(user.read_bytes_from_buffer(address, 6), b"token!")
        self.assertEqual(user.free_managed_buffer(address, 1), -1)
        self.assertEqual(user.free_managed_buffer(address, 100_000), 0)
        self.assertEqual(user.free_managed_buffer(address, 100_000), -1)
        for wrong in (0, 1 << 60, 2**64):
            self.assertEqual(user.allocate_managed_buffer(wrong), 0)

    def test_threads_share_an_engine(self):
        """64 threads write, read and ask side by side, each in a part of its own."""
        part, threads, wrong = 4 * MIB // 128, 64, []

        def turn(place):
            user, here, there = self.user, self.of + place * part, self.to + place * part
            back = self.of + 2 * MIB + place * part
            for _ in range(4):
                batch = user.batch_transfer_async_write(self.name, [here], [there], [part])
                codes = [
                    user.get_batch_transfer_status([batch]),
                    user.transfer_sync_read(self.name, back, there, part),
                    user.transfer_check_status(batch) + 1,
                    user.send_probe(self.name),
                ]
                if codes != [0] * 4:
                    wrong.append((place, codes, user.last_error()))

        running = [threading.Thread(target=turn, args=(place,)) for place in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertTrue((self.here[2 * MIB :] == self.here[: 2 * MIB]).all())

    def test_node_is_found_under_other_addresses_of_the_host(self):
        made = engine("0.0.0.0")
        memory = numpy.zeros(100, dtype=numpy.uint8)
        self.assertEqual(made.register_memory(memory.ctypes.data, 100), 0)
        other = f"127.0.0.1:{made.get_rpc_port()}"
        self.assertEqual(self.user.transfer_sync_write(other, self.of, memory.ctypes.data, 50), 0)
        self.assertEqual(self.user.send_probe(other), 0)
        own = f"127.0.0.1:{self.user.get_rpc_port()}"
        self.assertEqual(self.user.transfer_sync_write(own, self.of, self.of + MIB, 50), 0)


class Failures(unittest.TestCase):
    """Peers that stop, die and return."""

    @classmethod
    def setUpClass(cls):
        os.environ["MC_TRANSFER_TIMEOUT"] = "5"
        cls.user = engine()
        cls.here = numpy.ones(64 * MIB, dtype=numpy.uint8)
        cls.of = cls.here.ctypes.data
        assert cls.user.register_memory(cls.of, cls.here.nbytes) == 0

    @classmethod
    def tearDownClass(cls):
        del os.environ["MC_TRANSFER_TIMEOUT"]

    def test_no_byte_written_after_a_failure_reaches_a_stopped_peer(self):
        """The peer is stopped in the middle of a write. The call fails at its deadline, the buffer is
        filled with other bytes, and the peer goes on: it has none of those."""
        with Owner(64 * MIB) as owner:
            self.here[:] = 1
            self.assertEqual(self.user.transfer_sync_write(owner.name, self.of, owner.address, 8), 0)
            owner.stop()
            code = self.user.transfer_sync_write(owner.name, self.of, owner.address, 64 * MIB)
            self.assertEqual(code, -1)
            self.here[:] = 2
            remote = self.user.last_error().remote
            # The kernel has some of the bytes, and the peer has acknowledged nothing.
            self.assertEqual(remote, "indeterminate")
            owner.go_on()
            # It comes after everything of the failed one.
            self.here[:8] = 1
            self.assertEqual(self.user.transfer_sync_write(owner.name, self.of, owner.address, 8), 0)
            parts = range(0, 64 * MIB, 4 * MIB)
            landed = [owner.sum(first, first + 4 * MIB) for first in parts]
            self.assertGreater(sum(landed), 8, "some of the bytes landed")
            self.assertLess(sum(landed), 64 * MIB, "and not all")
            # Every byte that landed is of the first content.
            self.assertEqual([part for part in landed if part > 4 * MIB], [])
            self.assertEqual([owner.sum(first, first + 4 * MIB) for first in parts], landed)


if __name__ == "__main__":
    unittest.main()
