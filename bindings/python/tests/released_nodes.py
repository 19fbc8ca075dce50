"""Nodes of Mooncake's own package as peers, in both roles."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import handfast
import numpy
from handfast.mooncake import TransferEngine
from helpers import Load, Store, Ticks, free_port

MIB = 1 << 20
#: Name of a node of ours in a store. Its host does not resolve.
OURS = "ours:1"

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


#: Folder of the distribution's etcd and redis-server.
STORES = os.environ.get("HANDFAST_STORES", "")


class Server:
    """A metadata store of the distribution, in a process of its own."""

    def __init__(self, program, *arguments):
        path = os.path.join(STORES, program)
        if not os.path.exists(path):
            raise unittest.SkipTest(f"there is no {program}")
        libraries = os.environ["HANDFAST_RELEASED_LIBRARIES"]
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [path, *map(str, arguments)],
            cwd=self.folder.name,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def connect(self, port):
        """Return a connection, as soon as the server accepts one."""
        while self.process.poll() is None:
            try:
                return socket.create_connection(("127.0.0.1", port))
            except ConnectionRefusedError:
                time.sleep(0.01)
        raise OSError(f"{self.process.args[0]} ended with {self.process.returncode}")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class RedisValues:
    """The values of a store over HTTP, kept in a Redis under the same keys, in one line as Mooncake's client of
    Redis writes them."""

    def __init__(self, connection):
        self.connection = connection
        self.answers = connection.makefile("rb")

    def ask(self, *words):
        words = [word if isinstance(word, bytes) else word.encode() for word in words]
        parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self.connection.sendall(b"*%d\r\n%s" % (len(words), parts))
        return self._answer()

    def _answer(self):
        head = self.answers.readline()
        kind, rest = head[:1], head[1:-2]
        if kind == b"-":
            raise OSError(rest.decode())
        if kind == b"*":
            return [self._answer() for _ in range(int(rest))]
        if kind != b"$":
            return rest
        return None if rest == b"-1" else self.answers.read(int(rest) + 2)[:-2]

    def get(self, key):
        return self.ask("GET", key)

    def __setitem__(self, key, value):
        self.ask("SET", key, json.dumps(json.loads(value), separators=(",", ":")) + "\n")

    def pop(self, key, _):
        self.ask("DEL", key)

    def end(self):
        self.answers.close()
        self.connection.close()


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

    def named(self, store):
        """Return a node of ours with a name in a store, and its registered memory."""
        engine, memory = TransferEngine(), numpy.full(5000, 3, numpy.uint8)
        code = engine.initialize(OURS, store, "tcp", "")
        self.assertEqual(code, 0, engine.last_error())
        self.assertEqual(engine.register_memory(memory.ctypes.data, memory.nbytes), 0)
        return engine, memory

    def check_both_ways(self, engine, memory, node):
        """Check that each writes to the other by its name."""
        code = engine.transfer_sync_write(node.name, memory.ctypes.data, node.address, 5000)
        self.assertEqual(code, 0, engine.last_error())
        self.assertEqual(node.evaluate("sum(memory.raw[:5000])"), ["15000"])
        memory[:] = 0
        arguments = f"{OURS!r}, address, {memory.ctypes.data}, 5000"
        self.assertEqual(node.evaluate(f"engine.transfer_sync_write({arguments})"), ["0"])
        self.assertEqual(int(memory.sum()), 15000)

    def test_store_over_http_has_the_names_of_both(self):
        store = Store()
        self.addCleanup(store.end)
        node = Node("theirs:1", store.url)
        self.addCleanup(node.kill)
        self.check_both_ways(*self.named(store.url), node)

    def test_etcd_has_the_names_of_both(self):
        port, other = free_port(), free_port()
        url, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{other}"
        etcd = Server("etcd", "--listen-client-urls", url, "--advertise-client-urls", url,
                      "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                      "--initial-cluster", f"default={peers}")
        self.addCleanup(etcd.end)
        etcd.connect(port).close()
        store = f"etcd://127.0.0.1:{port}"
        node = Node("theirs:1", store)
        self.addCleanup(node.kill)
        self.check_both_ways(*self.named(store), node)

    def test_redis_has_the_values_that_mooncake_writes(self):
        """The package has no client of Redis. Its node writes to a store over HTTP here, which keeps
        the same values under the same keys in a Redis, where our node finds them, and writes its own."""
        port = free_port()
        redis = Server("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "")
        self.addCleanup(redis.end)
        values = RedisValues(redis.connect(port))
        self.addCleanup(values.end)
        store = Store(values)
        self.addCleanup(store.end)
        node = Node("theirs:1", store.url)
        self.addCleanup(node.kill)
        engine, memory = self.named(f"redis://127.0.0.1:{port}")
        self.check_both_ways(engine, memory, node)
        keys = sorted(key.decode() for key in values.ask("KEYS", "*"))
        kinds = ("mooncake/ram/", "mooncake/rpc_meta/")
        self.assertEqual(keys, [kind + name for kind in kinds for name in (OURS, "theirs:1")])
        del engine
        self.assertEqual(len(values.ask("KEYS", "*")), 2, "a node takes its own away")

    def test_overlay_has_the_other_names_of_their_module(self):
        """Classes for calls between processes are Mooncake's own; its engine is ours."""
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        theirs = [os.environ["HANDFAST_RELEASED_PYTHON"], "-c", ask]
        packages = subprocess.check_output(theirs, text=True).strip()
        overlay = os.path.join(os.path.dirname(handfast.__file__), "_overlay")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([overlay, packages]),
            "LD_LIBRARY_PATH": os.environ["HANDFAST_RELEASED_LIBRARIES"],
        }
        code = "import mooncake.engine as it; print(it.TransferEngine.__module__, it.RpcInterface.__name__)"
        ended = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, env=environment)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        ours, name = ended.stdout.split()[-2:]
        self.assertEqual(ours, "handfast.mooncake")
        self.assertIn("Rpc", name.replace("RPC", "Rpc"))

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
        ticks = Ticks()
        self.addCleanup(ticks.end)
        loads = [Load(engine, node, self.address, MIB, clock=ticks.seconds) for node in (first, other)]
        while min(load.done for load in loads) < 10:
            time.sleep(0.001)
        killed = ticks.seconds()
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
