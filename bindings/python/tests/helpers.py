"""Processes that tests start, stop and kill."""

import os
import signal
import subprocess
import sys

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


class Owner:
    """A process that serves memory and sums parts of it."""

    def __init__(self, nbytes):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = python(OWNER, nbytes, **pipes)
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
