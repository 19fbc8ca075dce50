"""Nodes of Mooncake's own package as peers, in both roles."""

import os
import subprocess
import time
import unittest

import handfast
import numpy
from handfast.mooncake import TransferEngine
from helpers import Load, Store

MIB = 1 << 20

# A node of Mooncake's package: serves memory, and does what standard input says.
NODE = """
import ctypes, sys
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize(sys.argv[1], sys.argv[2], "tcp", "") == 0
memory = ctypes.create_string_buffer(1 << 20)
address = ctypes.addressof(memory)
assert engine.register_memory(address, 1 << 20) == 0
print("node", engine.get_rpc_port(), address, flush=True)
for line in sys.stdin:
    print("result", eval(line), flush=True)
"""


class Node:
    def __init__(self, name="127.0.0.1", store="P2PHANDSHAKE"):
        libraries = os.environ["HANDFAST_RELEASED_LIBRARIES"]
        self.process = subprocess.Popen(
            [os.environ["HANDFAST_RELEASED_PYTHON"], "-c", NODE, name, store],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": libraries,
                "MC_TCP_BIND_ADDRESS": "127.0.0.1",
            },
        )
        port, address = self._answer("node")
        is_named = store != "P2PHANDSHAKE"
        self.name, self.address = name if is_named else f"127.0.0.1:{port}", int(address)

    def _answer(self, word):
        # Mooncake writes logs to the same stream.
        for line in self.process.stdout:
            if line.startswith(word + " "):
                return line.split()[1:]
        raise EOFError("the node has ended")

    def evaluate(self, expression):
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self._answer("result")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Released(unittest.TestCase):
    def setUp(self):
        self.node = Node()
        self.addCleanup(self.node.kill)
        self.engine = TransferEngine()
        self.assertEqual(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        self.memory = (numpy.arange(MIB) % 251).astype(numpy.uint8)
        self.address = self.memory.ctypes.data
        self.assertEqual(self.engine.register_memory(self.address, MIB), 0)

    def test_we_write_and_read_theirs(self):
        engine, node = self.engine, self.node
        lists = [self.address, self.address + 9000], [node.address, node.address + 9000], [100, 5000]
        self.assertEqual(engine.batch_transfer_sync_write(node.name, *lists), 0)
        self.assertEqual(node.evaluate("sum(memory.raw[9000:14000])"), [str(self.memory[9000:14000].sum())])
        batch = engine.batch_transfer_async_read(node.name, *lists)
        self.assertEqual(engine.get_batch_transfer_status([batch]), 0)
        self.assertEqual(engine.send_probe(node.name), 0)
        self.assertEqual(engine.get_first_buffer_address(node.name), node.address)

    def test_they_write_and_read_ours(self):
        name = f"127.0.0.1:{self.engine.get_rpc_port()}"
        arguments = f"{name!r}, address, {self.address}, 5000"
        node = self.node
        self.assertEqual(node.evaluate(f"engine.transfer_sync_read({arguments})"), ["0"])
        self.assertEqual(node.evaluate("sum(memory.raw[:5000])"), [str(self.memory[:5000].sum())])
        self.memory[:] = 0
        self.assertEqual(node.evaluate(f"engine.transfer_sync_write({arguments})"), ["0"])
        self.assertEqual(self.memory[:5000].tolist(), [value % 251 for value in range(5000)])
        self.assertEqual(node.evaluate(f"engine.send_probe({name!r})"), ["0"])

    def test_replaced_node_is_reached_again(self):
        """A node is killed and replaced under its name in a store, under load: its port is taken for a
        minute. Its transfers fail within a second, those to the other node go on, and the next one
        works."""
        store = Store()
        self.addCleanup(store.end)
        engine = TransferEngine()
        self.assertEqual(engine.initialize("127.0.0.1:1", store.url, "tcp", ""), 0)
        self.assertEqual(engine.register_memory(self.address, MIB), 0)
        first, other = Node("first:1", store.url), Node("other:1", store.url)
        self.addCleanup(other.kill)
        loads = [Load(engine, node, self.address, MIB) for node in (first, other)]
        while min(load.done for load in loads) < 10:
            time.sleep(0.001)
        killed = time.monotonic()
        first.kill()
        loads[0].wait()
        for failed, error in loads[0].failed:
            self.assertLess(failed - killed, 1, error)
            self.assertIsInstance(error, handfast.PeerLost)
        second = Node("first:1", store.url)
        self.addCleanup(second.kill)
        # Its entry in the store still has the buffers of the dead one, before its own.
        code = engine.transfer_sync_write(second.name, self.address, second.address, 100)
        self.assertEqual(code, 0, engine.last_error())
        self.assertEqual(second.evaluate("sum(memory.raw[:100])"), [str(self.memory[:100].sum())])
        loads[1].end()
        self.assertEqual(loads[1].failed, [])


if __name__ == "__main__":
    unittest.main()
