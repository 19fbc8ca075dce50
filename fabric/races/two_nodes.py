"""Two nodes of the released Mooncake Transfer Engine, on the devices rxe0 and rxe1.

    handfast fabric run --script fabric/races/gen-13.txt -- python3 fabric/races/two_nodes.py [SECONDS]

One node writes bytes to the other and reads them ten times a second, and says when the outcome changes. A read that failed has ended, so its buffer is used again: bytes that arrive there later are
told too. `engine/examples/steady.rs` does the same with nodes of handfast.
"""

import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time

BYTES = 60_000
PLACES = 256
INTERVAL = 0.1
CONTENT = bytes(at % 251 for at in range(BYTES))

# The engine prints too, and that belongs elsewhere.
output = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def node(device):
    """A node on a device, which its own search for devices in /sys and /dev would not find."""
    os.environ.setdefault("MC_TRANSFER_TIMEOUT", "5")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as matrix:
        json.dump({"cpu:0": [[device], []]}, matrix)
        matrix.flush()
        os.environ["MC_CUSTOM_TOPO_JSON"] = matrix.name
        from mooncake.engine import TransferEngine

        engine = TransferEngine()
        if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device) != 0:
            sys.exit(f"no node on {device}")
    memory = mmap.mmap(-1, BYTES * (PLACES + 1))
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if engine.register_memory(base, len(memory)) != 0:
        sys.exit(f"no memory at {device}")
    return engine, memory, base


def serve():
    engine, _memory, base = node("rxe0")
    print(json.dumps([f"127.0.0.1:{engine.get_rpc_port()}", base]), file=output)
    sys.stdin.read()


class Used:
    """Buffers of failed reads, used again."""

    def __init__(self, memory):
        self.memory, self.places = memory, {}

    def take(self, place, round):
        mark = bytes([0x80 | round % 128]) * BYTES
        self.memory[place : place + BYTES] = mark
        self.places[place] = mark

    def overwritten(self):
        changed = [p for p, mark in self.places.items() if self.memory[p : p + BYTES] != mark]
        for place in changed:
            del self.places[place]
        return len(changed)


def steady(seconds, peer, address):
    engine, memory, base = node("rxe1")
    used, told, place, round = Used(memory), None, BYTES, 0
    counts, began = {}, time.monotonic()

    def say(text):
        print(f"{time.monotonic() - began:6.2f} s  {text}", file=output)

    memory[:BYTES] = CONTENT
    is_written = False
    while time.monotonic() - began < seconds:
        round += 1
        used.places.pop(place, None)
        memory[place : place + BYTES] = bytes(BYTES)
        if not is_written and engine.transfer_sync_write(peer, base, address, BYTES) != 0:
            outcome = "the write fails"
        elif engine.transfer_sync_read(peer, base + place, address, BYTES) != 0:
            outcome = "the read fails"
            is_written = True
            used.take(place, round)
            place = place % (BYTES * PLACES) + BYTES
        elif memory[place : place + BYTES] != CONTENT:
            outcome = "OTHER BYTES are read"
        else:
            outcome = "the bytes are read"
            is_written = True
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome != told:
            say(outcome)
            told = outcome
        if used.overwritten():
            say("BYTES ARRIVED in a buffer whose read had failed")
        time.sleep(INTERVAL)
    say("end: " + ", ".join(f"{count} x {outcome}" for outcome, count in counts.items()))


if sys.argv[1:] == ["serve"]:
    serve()
else:
    seconds = float(sys.argv[1]) if sys.argv[1:] else 10
    server = subprocess.Popen(
        [sys.executable, __file__, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        steady(seconds, *json.loads(server.stdout.readline()))
    finally:
        server.kill()
        output.flush()
    # The engine's own end waits for queue pairs that a script may have left without answers.
    os._exit(0)
