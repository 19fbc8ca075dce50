"""Processes that tests start, stop and kill."""

import http.server
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

OWNER = """
import sys, numpy
from handfast.mooncake import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = numpy.zeros(int(sys.argv[1]), dtype=numpy.uint8)
assert engine.register_memory(memory.ctypes.data, memory.nbytes) == 0
print(engine.get_rpc_port(), memory.ctypes.data, flush=True)
for line in sys.stdin:
    first, end = map(int, line.split())
    print(int(memory[first:end].astype(numpy.uint64).sum()), flush=True)
"""


def python(code, *arguments, **options):
    """Start Python with some code."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, text=True, **options)


def at_port(port):
    """Return an environment in which engines have a port."""
    return {**os.environ, "MC_MIN_RPC_PORT": str(port), "MC_MAX_RPC_PORT": str(port)}


def free_port():
    """Return a free port outside of the kernel's range, which Mooncake refuses."""
    for port in random.sample(range(18_000, 32_000), 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise OSError("no port is free")


class Store(http.server.ThreadingHTTPServer):
    """A metadata store over HTTP, with values of its own or in some mapping."""

    def __init__(self, values=None):
        super().__init__(("127.0.0.1", 0), _Request)
        self.values = {} if values is None else values
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}/metadata"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def end(self):
        self.shutdown()
        self.server_close()


class _Request(http.server.BaseHTTPRequestHandler):
    def _answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _key(self):
        return urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)["key"][0]

    def do_GET(self):
        with self.server.lock:
            value = self.server.values.get(self._key())
        self._answer(404) if value is None else self._answer(200, value)

    def do_PUT(self):
        length = int(self.headers["Content-Length"])
        value = self.rfile.read(length)
        with self.server.lock:
            self.server.values[self._key()] = value
        self._answer(200)

    def do_DELETE(self):
        with self.server.lock:
            self.server.values.pop(self._key(), None)
        self._answer(200)

    def log_message(self, *_):
        pass


class Ticks:
    """A clock that counts waits of 10 ms of this process: a second of it is one of the wall on a machine that
    runs the process at once, and longer on one that runs others meanwhile."""

    TICK_S = 0.01

    def __init__(self):
        self.count, self.ended = 0, threading.Event()
        self.thread = threading.Thread(target=self._count, daemon=True)
        self.thread.start()

    def _count(self):
        while not self.ended.wait(self.TICK_S):
            self.count += 1

    def seconds(self):
        return self.count * self.TICK_S

    def end(self):
        self.ended.set()
        self.thread.join()


class Load:
    """Threads that write to a peer again and again, and note when a write fails."""

    def __init__(self, engine, peer, local, nbytes, threads=2, clock=time.monotonic):
        self.done, self.failed, self.ended, self.clock = 0, [], False, clock
        self.threads = [
            threading.Thread(target=self._write, args=(engine, peer, local, nbytes))
            for _ in range(threads)
        ]
        for thread in self.threads:
            thread.start()

    def _write(self, engine, peer, local, nbytes):
        while not self.ended:
            if engine.transfer_sync_write(peer.name, local, peer.address, nbytes) != 0:
                self.failed.append((self.clock(), engine.last_error()))
                return
            self.done += 1

    def wait(self):
        """Wait until every thread has failed."""
        for thread in self.threads:
            thread.join()

    def end(self):
        self.ended = True
        self.wait()


class Owner:
    """A process that serves memory and sums parts of it."""

    def __init__(self, nbytes, port=None):
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        if port is not None:
            options["env"] = at_port(port)
        self.process = python(OWNER, nbytes, **options)
        port, address = self.process.stdout.readline().split()
        self.name = f"127.0.0.1:{port}"
        self.address = int(address)

    def sum(self, first, end):
        self.process.stdin.write(f"{first} {end}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()
