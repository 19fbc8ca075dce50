#!/usr/bin/env python3
"""Write rates of handfast, its Python package, Mooncake and NIXL over loopback TCP, in turns, from one thread.

Usage: compare.py PROGRAM [ROUNDS] [--json]

PROGRAM is a release build of handfast, - for none. The package handfast is a release build of bindings/python; numpy, mooncake-transfer-engine-non-cuda, nixl and
nixl-cu12 come from pip (`cargo xtask bench --peers` installs them into a folder of its own, without what they
depend on); an engine whose package is missing is left out, with the reason. Mooncake's
needs libibverbs.so.1 and librdmacm.so.1 of the distribution. Each engine has a client and a
server process and writes from one block to one other: requests of a batch, one batch at a time, by the
call that its users have (Mooncake: transfer_sync_write, batch_transfer_sync_write; NIXL: a transfer
handle made once and posted again; handfast.mooncake: the same as Mooncake; handfast: its bench; Mooncake
takes at most 2,048 pieces at once, so that larger batches are several calls). NIXL uses UCX with UCX_TLS=tcp. Prints the
median rate of each engine in GiB/s, the median of the ratios to handfast of the same round, or to
its package for batches that its bench does not make, and that of the ratios to its package; for single writes also the medians of p50 and p99 in
microseconds. With --json it prints one line with the same. The
processes of the others are stopped while one is measured: some of them poll.
"""
import importlib
import json
import multiprocessing
import os
import queue
import signal
import statistics
import subprocess
import sys
import time

WORKLOADS = [(4096, 1), (65536, 1), (1 << 20, 1), (4096, 32), (65536, 32), (1 << 20, 32), (4096, 100_000)]
# The most requests of a batch of handfast's bench: beyond, its package is compared with the others.
BENCH_BATCH_MAX = 4096
SECONDS = 0.4
# The most pieces of a call of Mooncake 0.3.13: of more its queue refuses some, the call fails, and those after it.
MOONCAKE_BATCH_MAX = 2048
# Within which an engine answers, or is left out from there on.
RATE_SECONDS = 120
BLOCK = 64 << 20


def mooncake_engine(numpy, fill, package="mooncake.engine"):
    TransferEngine = importlib.import_module(package).TransferEngine
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    block = numpy.full(BLOCK, fill, numpy.uint8)
    assert engine.register_memory(block.ctypes.data, block.nbytes) == 0
    return engine, block


def mooncake_server(numpy, ready, *package):
    engine, block = mooncake_engine(numpy, 0, *package)
    ready.put((f"127.0.0.1:{engine.get_rpc_port()}", block.ctypes.data))
    time.sleep(3600)


def mooncake_client(numpy, server, *package):
    name, remote = server
    engine, block = mooncake_engine(numpy, 1, *package)

    def writer(size, count):
        offsets = [place * size % BLOCK for place in range(count)]
        sources, targets = ([base + offset for offset in offsets] for base in (block.ctypes.data, remote))
        if count == 1:
            return lambda: engine.transfer_sync_write(name, sources[0], targets[0], size)
        of_call = MOONCAKE_BATCH_MAX if not package else count
        calls = [(sources[first : first + of_call], targets[first : first + of_call])
                 for first in range(0, count, of_call)]
        calls = [(name, *places, [size] * len(places[0])) for places in calls]
        return lambda: any(engine.batch_transfer_sync_write(*arguments) for arguments in calls)

    return writer


def python_server(numpy, ready):
    mooncake_server(numpy, ready, "handfast.mooncake")


def python_client(numpy, server):
    return mooncake_client(numpy, server, "handfast.mooncake")


def nixl_agent_with_block(numpy, name, fill):
    os.environ["UCX_TLS"] = "tcp"
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    block = numpy.full(BLOCK, fill, numpy.uint8)
    agent.register_memory([(block.ctypes.data, block.nbytes, 0, "")], "DRAM")
    return agent, block


def nixl_server(numpy, ready):
    agent, block = nixl_agent_with_block(numpy, "server", 0)
    ready.put((agent.get_agent_metadata(), block.ctypes.data))
    time.sleep(3600)


def nixl_client(numpy, server):
    metadata, remote = server
    agent, block = nixl_agent_with_block(numpy, "client", 1)
    peer = agent.add_remote_agent(metadata)

    def writer(size, count):
        lists = ([(base + place * size % BLOCK, size, 0) for place in range(count)]
                 for base in (block.ctypes.data, remote))
        local, far = (agent.get_xfer_descs(descriptors, "DRAM") for descriptors in lists)
        transfer = agent.initialize_xfer("WRITE", local, far, peer)

        def write():
            state = agent.transfer(transfer)
            while state == "PROC":
                state = agent.check_xfer_state(transfer)
            return state != "DONE"

        return write

    return writer


def serve(engine, ready):
    try:
        import numpy

        {"python": python_server, "mooncake": mooncake_server, "nixl": nixl_server}[engine](numpy, ready)
    except Exception as error:
        ready.put(f"{type(error).__name__}: {error}")


def answer(engine, server, questions, rates):
    import numpy

    clients = {"python": python_client, "mooncake": mooncake_client, "nixl": nixl_client}
    writer = clients[engine](numpy, server)
    rates.put("ready")
    while True:
        size, count = questions.get()
        write = writer(size, count)
        assert not write()
        ends = [time.perf_counter()]
        while ends[-1] - ends[0] < SECONDS:
            assert not write()
            ends.append(time.perf_counter())
        took = sorted(end - start for start, end in zip(ends, ends[1:]))
        rate = len(took) * size * count / (ends[-1] - ends[0]) / 2**30
        p50, p99 = (took[len(took) * percent // 100] * 1e6 for percent in (50, 99))
        rates.put((rate, p50, p99))


class Other:
    """Another engine: its two processes, asked for one workload at a time."""

    def __init__(self, engine):
        context = multiprocessing.get_context("spawn")
        ready, self.questions, self.rates = context.Queue(), context.Queue(), context.Queue()
        server = context.Process(target=serve, args=(engine, ready), daemon=True)
        server.start()
        self.processes = [server]
        try:
            address = ready.get(timeout=60)
            if isinstance(address, str):
                raise RuntimeError(address)
            arguments = (engine, address, self.questions, self.rates)
            client = context.Process(target=answer, args=arguments, daemon=True)
            client.start()
            self.processes.append(client)
            self.rates.get(timeout=60)
            self.signal(signal.SIGSTOP)
        except BaseException:
            self.kill()
            raise

    def rate(self, size, count):
        self.signal(signal.SIGCONT)
        self.questions.put((size, count))
        figures = self.rates.get(timeout=RATE_SECONDS)
        self.signal(signal.SIGSTOP)
        return figures

    def signal(self, signal_):
        for process in self.processes:
            os.kill(process.pid, signal_)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()


class Handfast:
    def __init__(self, program):
        self.program = program

    def rate(self, size, count):
        options = ["--transport", "tcp", "--rounds", "1", "--duration", f"{int(SECONDS * 1000)}ms", "--threads", "1",
                   "--json", "--operation", "write", "--size", str(size), "--batch", str(count)]
        options += ["--latency"] if count == 1 else []
        run = subprocess.run([self.program, "bench", *options], capture_output=True, text=True, check=True)
        result = json.loads(run.stdout)
        us = result["latencies"][0]["us"] if count == 1 else {"p50": 0, "p99": 0}
        return result["workloads"][0]["gib_per_s"], us["p50"], us["p99"]

    def kill(self):
        """Its processes have ended with the run."""


def main():
    words = [word for word in sys.argv[1:] if word != "--json"]
    program, rounds = words[0], int(words[1]) if len(words) > 1 else 9
    say = (lambda line: None) if "--json" in sys.argv else (lambda line: print(line, flush=True))
    engines = {} if program == "-" else {"handfast": Handfast(program)}
    left_out = []
    for name in ("python", "mooncake", "nixl"):
        try:
            engines[name] = Other(name)
        except Exception as error:
            reason = str(error) or type(error).__name__
            left_out.append({"engine": name, "reason": reason})
            say(f"left out: {name}: {reason}")
    try:
        rows = compare(engines, rounds, left_out, say)
    finally:
        for engine in engines.values():
            engine.kill()
    if "--json" in sys.argv:
        print(json.dumps({"engines": {"rounds": rounds, "rows": rows, "left_out": left_out}}), flush=True)


def compare(engines, rounds, left_out, say):
    rows = []
    for size, count in WORKLOADS:
        names = [name for name in engines if name != "handfast" or count <= BENCH_BATCH_MAX]
        figures = {name: [] for name in names}
        for round_ in range(rounds + 1):
            order = list(figures) if round_ % 2 else list(reversed(figures))
            for name in order:
                try:
                    figure = engines[name].rate(size, count)
                except queue.Empty:
                    reason = f"no result for {size} x {count} within {RATE_SECONDS} s"
                    left_out.append({"engine": name, "reason": reason})
                    say(f"{size:>8} x {count:<3} {name:<9} {reason}")
                    engines.pop(name).kill()
                    del figures[name]
                    continue
                if round_:  # the first warms up
                    figures[name].append(figure)
        base = next(iter(figures), None)
        for name, own in figures.items():
            ratio = statistics.median(b[0] / a[0] for a, b in zip(own, figures[base]))
            rate, p50, p99 = (statistics.median(column) for column in zip(*own))
            rates = [figure[0] for figure in own]
            row = {"engine": name, "size": size, "batch": count, "gib_per_s": rate, "to": base, "ratio": ratio}
            if "python" in figures:
                row["python_ratio"] = statistics.median(b[0] / a[0] for a, b in zip(own, figures["python"]))
            alone = ""
            if count == 1:
                row |= {"p50_us": p50, "p99_us": p99}
                alone = f"  p50 {p50:.1f} us, p99 {p99:.1f} us"
            rows.append(row)
            say(f"{size:>8} x {count:<3} {name:<9} {rate:7.3f} GiB/s  ({min(rates):.3f} to {max(rates):.3f})  "
                f"{base} is {ratio:.2f} times as fast, python {row.get('python_ratio', 0):.2f}{alone}")
    return rows


if __name__ == "__main__":
    main()
