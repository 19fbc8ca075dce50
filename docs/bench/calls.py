#!/usr/bin/env python3
"""The cost of Python: a call beside the same call in Rust, and the descriptors of a million pieces.

Usage: calls.py PROGRAM [ROUNDS] [--json]

PROGRAM is a release build of the example `calls` of bindings/compat; the package handfast is a release
build of bindings/python, beside numpy. Both have a process of their own, write to a third over loopback
TCP, and are measured in turns. Prints medians over the turns: of the mean time of a call, and of the
difference between Python and Rust in the same turn. A call of pieces without bytes has no wire in it.
Turns are short: a machine that does other work for a moment takes up to twice as long for the same call,
and a difference between two moments says nothing.
With --json it prints one line with the same.
"""
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from functools import partial

import handfast
import numpy
from handfast.mooncake import TransferEngine

BLOCK = 64 << 20
SECONDS = 0.02
# Turns of a round, and calls between two looks at the clock.
TURNS = 10
CALLS = 8
MILLION = 1_000_000
# Length and number of pieces.
WORKLOADS = [(0, 1), (0, 32), (4096, 1), (4096, 32)]


def serve(ready):
    engine = handfast.Engine(transport="tcp")
    block = numpy.zeros(BLOCK, numpy.uint8)
    ready.put((engine.address, engine.register(block).address))
    time.sleep(3600)


class Python:
    def __init__(self, peer, remote):
        self.engine, self.peer, self.remote = TransferEngine(), peer, remote
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        # Of the same kind as in Rust: an array of numpy begins 16 bytes after the begin of a page.
        self.block = self.engine.allocate_managed_buffer(BLOCK)
        assert self.engine.write_bytes_to_buffer(self.block, bytes([1]) * BLOCK, BLOCK) == 0

    def forms(self, size, count):
        """Calls that write the pieces, by name."""
        engine, peer = self.engine, self.peer
        offsets = numpy.arange(count, dtype=numpy.uint64) * size % BLOCK
        local, remote = offsets + self.block, offsets + self.remote
        lengths = numpy.full(count, size, numpy.uint64)
        if count == 1:
            source, target = int(local[0]), int(remote[0])
            return {"integers": partial(engine.transfer_sync_write, peer, source, target, size)}
        sources, targets, sizes = local.tolist(), remote.tolist(), lengths.tolist()
        return {
            "lists": partial(engine.batch_transfer_sync_write, peer, sources, targets, sizes),
            "numpy": partial(engine.batch_transfer_sync_write, peer, local, remote, lengths),
        }


class Rust:
    def __init__(self, program, peer, remote):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([program, peer, str(remote)], text=True, **pipes)
        assert self.process.stdout.readline() == "ready\n"

    def nanoseconds(self, size, count):
        self.process.stdin.write(f"{size} {count}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def nanoseconds(call):
    assert call() == 0
    calls, start = 0, time.perf_counter_ns()
    while time.perf_counter_ns() - start < SECONDS * 1e9:
        for _ in range(CALLS):
            assert call() == 0
        calls += CALLS
    return (time.perf_counter_ns() - start) / calls


def compare_calls(program, peer, remote, rounds, say):
    rows = []
    python, rust = Python(peer, remote), Rust(program, peer, remote)
    for size, count in WORKLOADS:
        forms = python.forms(size, count)
        calls = {name: partial(nanoseconds, call) for name, call in forms.items()}
        calls["rust"] = partial(rust.nanoseconds, size, count)
        times = {name: [] for name in calls}
        for turn in range(rounds * TURNS):
            for name in calls if turn % 2 else reversed(calls):
                times[name].append(calls[name]())
        for name in forms:
            pairs = list(zip(times[name], times["rust"]))
            more = statistics.median(own - other for own, other in pairs)
            least = min(times[name]) - min(times["rust"])
            medians = [statistics.median(column) / 1000 for column in zip(*pairs)]
            say(f"{size:>6} x {count:<3} {name:<9} {medians[0]:8.2f} us, in Rust {medians[1]:8.2f} us: "
                f"{more / 1000:+.2f} us ({least / 1000:+.2f} between the fastest)")
            rows.append({"size": size, "count": count, "form": name, "us": medians[0], "rust_us": medians[1],
                         "more_us": more / 1000, "least_more_us": least / 1000})
    rust.process.kill()
    return rows


def milliseconds(call):
    start = time.perf_counter_ns()
    result = call()
    return (time.perf_counter_ns() - start) / 1e6, result


def measure_descriptors(name, remote, rounds, say):
    rows = []
    engine = handfast.Engine(transport="tcp")
    block = numpy.ones(BLOCK, numpy.uint8)
    local = engine.register(block).address
    peer = engine.peer(name)
    offsets = numpy.arange(MILLION, dtype=numpy.uint64) * 64
    arrays = local + offsets, remote + offsets

    def strided():
        return handfast.Strided(local, MILLION, 64), handfast.Strided(remote, MILLION, 64)

    shapes = {
        "numpy": (lambda: arrays, numpy.full(MILLION, 8, numpy.uint64), numpy.zeros(MILLION, numpy.uint64)),
        "strided": (strided, 8, 0),
    }
    for name, (places, lengths, nothing) in shapes.items():
        taken, submitted, ended = [], [], []
        for _ in range(rounds):
            # Pieces without bytes are complete once they are read.
            taken.append(milliseconds(lambda: peer.write_many(*places(), nothing))[0])
            spent, transfer = milliseconds(lambda: peer.start_write(*places(), lengths))
            submitted.append(spent)
            ended.append(spent + milliseconds(transfer.wait)[0])
        columns = {"taken": taken, "submitted": submitted, "written": ended}
        times = [f"{min(it):.1f} ms ({statistics.median(it):.1f})" for it in columns.values()]
        say(f"a million pieces, {name}: taken in {times[0]}, submitted in {times[1]}, "
            f"8 bytes each written in {times[2]}; the least, and the median")
        medians = {f"{column}_ms": statistics.median(it) for column, it in columns.items()}
        rows.append({"form": name, "least_taken_ms": min(taken), **medians})
    built = min(nanoseconds(lambda: strided() and 0) for _ in range(rounds)) / 1000
    say(f"two layouts are made in {built:.2f} us")
    return {"descriptors": rows, "two_layouts_us": built}


def main():
    words = [word for word in sys.argv[1:] if word != "--json"]
    program, rounds = words[0], int(words[1]) if len(words) > 1 else 9
    say = (lambda line: None) if "--json" in sys.argv else (lambda line: print(line, flush=True))
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    server = context.Process(target=serve, args=(ready,), daemon=True)
    server.start()
    try:
        peer, remote = ready.get(timeout=60)
        calls = compare_calls(program, peer, remote, rounds, say)
        result = {"turns": rounds * TURNS, "calls": calls, **measure_descriptors(peer, remote, rounds, say)}
    finally:
        server.kill()
    if "--json" in sys.argv:
        print(json.dumps({"python": result}), flush=True)


if __name__ == "__main__":
    main()
