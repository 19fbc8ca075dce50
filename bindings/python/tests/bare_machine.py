"""The package on a machine without the libraries of RDMA, for certain: they cannot be loaded."""

import ctypes
import unittest

import handfast
from handfast.mooncake import TransferEngine

LIBRARIES = ["libibverbs.so.1", "librdmacm.so.1"]


class Bare(unittest.TestCase):
    def setUp(self):
        for name in LIBRARIES:
            with self.assertRaises(OSError, msg=name):
                ctypes.CDLL(name)

    def check(self, text):
        """Check the reason why there is no RDMA, and its cure."""
        if "built without RDMA" in text:
            self.skipTest("the package was built without RDMA")
        self.assertIn("libibverbs.so.1", text)
        self.assertIn("install rdma-core", text)
        self.assertIn("the transport `tcp`", text)
        self.assertNotIn("--", text)

    def test_bytes_arrive_over_tcp(self):
        source, target = bytearray(b"moved" * 1000), bytearray(5000)
        with handfast.Engine() as owner, handfast.Engine() as user:
            there = owner.register(target)
            user.register(source)
            user.peer(owner.address).write(source, there.address)
            self.assertEqual(target, source)
            target[:] = b"twice" * 1000
            user.peer(owner.address).read(source, there.address)
            self.assertEqual(source, b"twice" * 1000)

    def test_rdma_of_mooncake_is_tcp_with_one_warning(self):
        with self.assertLogs("handfast") as logs:
            engine = TransferEngine()
            self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", ""), 0)
        self.assertEqual(len(logs.output), 1, logs.output)
        self.check(logs.output[0])
        memory = bytearray(64)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.assertEqual(engine.register_memory(address, 64), 0)
        name = f"127.0.0.1:{engine.get_rpc_port()}"
        self.assertEqual(engine.transfer_sync_write(name, address, address, 64), 0)

    def test_required_rdma_is_an_error_with_its_cure(self):
        with self.assertRaises(handfast.HandfastError) as raised:
            handfast.Engine(transport="rdma")
        self.check(str(raised.exception))


if __name__ == "__main__":
    unittest.main()
