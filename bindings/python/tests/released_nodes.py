"""Nodes of Mooncake's own package as peers, in both roles."""

import os
import subprocess
import unittest

import numpy
from handfast.mooncake import TransferEngine

MIB = 1 << 20

# A node of Mooncake's package: serves memory, and does what standard input says.
NODE = """
import ctypes, sys
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = ctypes.create_string_buffer(1 << 20)
address = ctypes.addressof(memory)
assert engine.register_memory(address, 1 << 20) == 0
print("node", engine.get_rpc_port(), address, flush=True)
for line in sys.stdin:
    print("result", eval(line), flush=True)
"""


class Node:
    def __init__(self):
        libraries = os.environ["HANDFAST_RELEASED_LIBRARIES"]
        self.process = subprocess.Popen(
            [os.environ["HANDFAST_RELEASED_PYTHON"], "-c", NODE],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
        )
        port, address = self._answer("node")
        self.name, self.address = f"127.0.0.1:{port}", int(address)

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

    def test_restarted_node_is_reached_again(self):
        engine, other = self.engine, Node()
        self.addCleanup(other.kill)
        first = self.node
        write = lambda node: engine.transfer_sync_write(node.name, self.address, node.address, 100)
        self.assertEqual([write(first), write(other)], [0, 0])
        first.kill()
        self.assertEqual(write(first), -1)
        self.assertEqual(write(other), 0)


if __name__ == "__main__":
    unittest.main()
