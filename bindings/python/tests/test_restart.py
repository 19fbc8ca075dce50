"""Peers that are killed and replaced at the same address, under load."""

import time
import unittest

import handfast
import numpy
from handfast.mooncake import TransferEngine
from helpers import Load, Owner, Ticks, free_port

MIB = 1 << 20


class Restart(unittest.TestCase):
    def setUp(self):
        self.user = TransferEngine()
        self.assertEqual(self.user.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        self.here = numpy.ones(64 * MIB, dtype=numpy.uint8)
        self.of = self.here.ctypes.data
        self.assertEqual(self.user.register_memory(self.of, self.here.nbytes), 0)
        self.ticks = Ticks()
        self.addCleanup(self.ticks.end)

    def replaced(self, owner, port):
        """Kill a peer and return another at its address. It has fresh memory at another place."""
        owner.__exit__()
        second = Owner(MIB, port)
        self.addCleanup(second.__exit__)
        self.assertEqual(second.name, owner.name)
        return second

    def write(self, owner, nbytes):
        there = self.user.get_first_buffer_address(owner.name)
        self.assertEqual(there, owner.address)
        code = self.user.transfer_sync_write(owner.name, self.of, there, nbytes)
        self.assertEqual(code, 0, self.user.last_error())
        self.assertEqual(owner.sum(0, MIB), nbytes)

    def test_transfers_of_a_killed_peer_fail_within_a_second(self):
        """The peer is replaced at its address. Transfers to another peer go on."""
        port = free_port()
        other = Owner(MIB)
        self.addCleanup(other.__exit__)
        owner = Owner(MIB, port)
        going_on = Load(self.user, other, self.of, MIB)
        for _ in range(2):
            load = Load(self.user, owner, self.of, MIB, clock=self.ticks.seconds)
            while min(load.done, going_on.done) < 10:
                time.sleep(0.001)
            killed = self.ticks.seconds()
            owner.process.kill()
            load.wait()
            for failed, error in load.failed:
                # The limit of the transfer is 30 s.
                self.assertLess(failed - killed, 1, error)
                self.assertIsInstance(error, handfast.PeerLost)
            owner = self.replaced(owner, port)
            self.write(owner, 1000)
        going_on.end()
        self.assertEqual(going_on.failed, [])

    def test_peer_that_was_replaced_unnoticed_is_reached(self):
        """No transfer was under way when the peer died: the first one after that works."""
        port = free_port()
        owner = Owner(MIB, port)
        self.write(owner, 8)
        owner = self.replaced(owner, port)
        self.write(owner, 1000)

    def test_killed_peer_fails_a_batch_within_a_second(self):
        """It was stopped before, so that it had acknowledged nothing."""
        owner = Owner(MIB)
        self.addCleanup(owner.__exit__)
        write = self.user.transfer_sync_write
        self.assertEqual(write(owner.name, self.of, owner.address, 8), 0)
        owner.stop()
        pieces = [self.of] * 256, [owner.address] * 256, [MIB] * 256
        batch = self.user.batch_transfer_async_write(owner.name, *pieces)
        self.assertGreater(batch, 0)
        self.assertEqual(self.user.transfer_check_status(batch), 0)
        killed = self.ticks.seconds()
        owner.kill()
        while (state := self.user.transfer_check_status(batch)) == 0:
            time.sleep(0.001)
        self.assertEqual(state, -1)
        self.assertLess(self.ticks.seconds() - killed, 1)
        self.assertEqual(write(owner.name, self.of, owner.address, 8), -1)


if __name__ == "__main__":
    unittest.main()
