"""What a failed transfer leaves alone: rounds with peers that are stopped, killed and cut off.

Each round fills a buffer, moves it to or from a peer while the peer fails, and fills the buffer
again with other bytes as soon as the call has failed. No byte that was written after a failure may
reach the peer, none may arrive in the buffer, and the peer's memory must be as the failure says:
untouched; fenced, so that it does not change any more; or indeterminate, which a fence ends. Content is
checked again when the buffers are next used. The memory of peers is shared with this program, which
looks at it while they are stopped or dead.

    python contract.py --rounds 200
    python contract.py --rounds 10000 --workers 4
    python contract.py --fabric target/debug/handfast --profile mlx5 --rounds 400
    python contract.py --devices rxe0,rxe1 --rounds 300
    python contract.py --engine mooncake.engine --rounds 24

Each worker has a network of its own, which needs `unshare -rn`; without it no peer is cut off. With
`--fabric` it has scripted RDMA devices too. `--devices` are two of the kernel, of this program and of its
peers, which are cut off by rules of routing: that needs root. Every kind of failure has as many rounds then.
The exit code is 1 if a check failed.
"""

import argparse
import collections
import ctypes
import importlib
import json
import mmap
import os
import random
import select
import shlex
import signal
import subprocess
import sys
import threading
import time

import numpy

#: Bytes of each buffer.
REGION = 4 << 20
#: Bytes at the end of each buffer for the transfer that follows a failure.
TAIL = 4096
PEERS = 2
#: Seconds after its deadline in which a call returns, and after the death of its peer.
BOUND_S = {"tcp": 5.0, "rdma": 15.0}
#: Seconds in which a transfer works again after a failure.
HEALED_S = 30.0
#: Failures of each engine; those after the third need the native interface.
KINDS = ["stop", "kill", "cut", "pause", "cancel", "close"]
#: Failures of scripted devices: mostly quick ones, and those that take seconds of retries.
DEVICE_KINDS = ["stop", "kill", "pause", "cancel", "close"] * 8 + ["cut", "completions"]
#: Names of the scripted devices.
DEVICES = ["rxe0", "rxe1"]
VIOLATIONS_PRINTED_MAX = 20
PR_SET_PDEATHSIG = 1


class Native:
    """The interface of `handfast`."""

    def __init__(self, host, transport, _, devices):
        import handfast

        self.module = handfast
        self.engine = handfast.Engine(host, transport=transport, devices=devices)
        self.name = self.engine.address

    def register(self, address, nbytes):
        self.engine.register_address(address, nbytes)

    def move(self, kind, peer, local, remote, nbytes, timeout, started=None):
        """Return None after a transfer, else the state of the peer's memory."""
        there = self.engine.peer(peer)
        try:
            if started is not None:
                start = there.start_write if kind == "write" else there.start_read
                transfer = start([local], [remote], [nbytes], timeout=timeout)
                started(transfer)
                transfer.wait()
            else:
                many = there.write_many if kind == "write" else there.read_many
                pieces = cut_up(nbytes)
                many(
                    [local + first for first, _ in pieces],
                    [remote + first for first, _ in pieces],
                    [length for _, length in pieces],
                    timeout=timeout,
                )
        except self.module.HandfastError as error:
            if isinstance(error, self.module.InUse):
                raise
            return error.remote
        return None

    def fence(self, peer):
        try:
            self.engine.peer(peer).fence()
        except self.module.HandfastError:
            return False
        return True

    def close(self):
        self.engine.close()


class Mooncake:
    """The interface of `mooncake.engine`, of Mooncake's package or of handfast's."""

    def __init__(self, host, transport, module, devices):
        self.engine = importlib.import_module(module).TransferEngine()
        assert self.engine.initialize(host, "P2PHANDSHAKE", transport, devices) == 0
        self.name = f"{host}:{self.engine.get_rpc_port()}"

    def register(self, address, nbytes):
        assert self.engine.register_memory(address, nbytes) == 0

    def move(self, kind, peer, local, remote, nbytes, timeout, started=None):
        many = getattr(self.engine, f"batch_transfer_sync_{kind}")
        pieces = cut_up(nbytes)
        here, there = ([base + first for first, _ in pieces] for base in (local, remote))
        if many(peer, here, there, [length for _, length in pieces]) == 0:
            return None
        # Mooncake's package says nothing of the peer's memory.
        error = getattr(self.engine, "last_error", lambda: None)()
        return error.remote if error else "unknown"

    def fence(self, _):
        return False


def cut_up(nbytes, pieces=8):
    """Split a length into pieces of unequal length."""
    ends = sorted({nbytes * place * place // (pieces * pieces) for place in range(1, pieces + 1)})
    firsts = [0, *ends[:-1]]
    return [(first, end - first) for first, end in zip(firsts, ends) if end > first]


def open_engine(options, host, is_peer):
    native = options.engine == "handfast"
    # One for each side, so that there is a network between them; all where none are named.
    device = options.devices.split(",")[is_peer] if options.devices else ""
    return (Native if native else Mooncake)(host, options.transport, options.engine, device)


def end_with_parent():
    """Let the kernel kill this process, also a stopped one, when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Zygote:
    """A process without threads that forks peers."""

    def __init__(self, options, regions):
        (asked, self.ask), (answer, answered) = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(self.ask)
            self.run(options, regions, os.fdopen(asked), answered)
            os._exit(0)
        os.close(asked)
        os.close(answered)
        self.answers = os.fdopen(answer)

    def run(self, options, regions, asked, answered):
        end_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        importlib.import_module(options.engine)
        for line in asked:
            place, host = line.split()
            if os.fork() == 0:
                end_with_parent()
                region = regions[int(place)]
                engine = open_engine(options, host, True)
                engine.register(region.ctypes.data, REGION)
                told = f"{os.getpid()} {engine.name} {region.ctypes.data}\n"
                os.write(answered, told.encode())
                while True:
                    signal.pause()

    def start(self, place, host):
        os.write(self.ask, f"{place} {host}\n".encode())
        # Mooncake writes logs to standard output, not to this pipe.
        pid, name, address = self.answers.readline().split()
        return int(pid), name, int(address)


class Peer:
    """A process that serves a region."""

    def __init__(self, zygote, place, region):
        self.zygote, self.place, self.memory = zygote, place, region
        self.host = f"127.0.0.{place + 2}"
        self.start()
        # What the memory must be as long as nobody moves bytes there: its first bytes, and how many.
        self.settled = None

    def start(self):
        self.pid, self.name, self.address = self.zygote.start(self.place, self.host)
        self.pidfd = os.pidfd_open(self.pid)

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def replace(self):
        select.select([self.pidfd], [], [], 10)
        os.close(self.pidfd)
        self.start()


def rules(verb, network):
    """Cut this program off from its peers, or mend that."""
    lines = [f"rule {verb} pref 5 {side} {network} blackhole" for side in ("to", "from")]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


class Fabric:
    """The scripted devices of this process."""

    def __init__(self):
        self.library = ctypes.CDLL("libibverbs.so.1")

    def run(self, line):
        answer = ctypes.create_string_buffer(1 << 16)
        code = self.library.handfast_fabric_command(line.encode(), answer, len(answer))
        assert code == 0, (line, answer.value)

    def paths(self, verb):
        for one in DEVICES:
            for other in DEVICES:
                self.run(f"{verb} {one} {other}")

    def completions(self, verb):
        for device in DEVICES:
            self.run(f"{verb} completions {device}")


class Worker:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        regions = [self.map() for _ in range(PEERS)]
        self.zygote = Zygote(options, regions)
        self.local = self.map()
        self.fabric = Fabric() if options.transport == "rdma" and not options.devices else None
        # Of the bytes: that of the control channel stays with the kernel's devices.
        self.network = "10.0.0.0/8" if options.devices else "127.0.0.0/8"
        self.open()
        self.peers = [Peer(self.zygote, place, region) for place, region in enumerate(regions)]
        self.kinds, self.next_kinds = options.kinds.split(","), []
        self.count = collections.Counter()
        self.states = collections.Counter()
        self.violations = []
        self.slowest = collections.defaultdict(float)
        self.byte = 0
        if options.engine != "handfast":
            # Mooncake's package waits for more than a minute for a stopped peer that it opens.
            for peer in self.peers:
                self.follow("at the start,", peer)

    def map(self):
        return numpy.frombuffer(mmap.mmap(-1, REGION), numpy.uint8)

    def open(self):
        self.engine = open_engine(self.options, "127.0.0.1", False)
        self.engine.register(self.local.ctypes.data, REGION)

    def fresh(self):
        """A byte that no buffer had in the last rounds."""
        self.byte = self.byte % 250 + 1
        return self.byte

    def check(self, is_so, *words):
        if not is_so:
            self.violations.append(" ".join(map(str, words)))

    def fault(self, kind, peer, delay, pause):
        """Begin a failure after a delay, and end one that passes."""

        def act():
            time.sleep(delay)
            self.fault_at = time.monotonic()
            if kind in ("stop", "pause"):
                peer.stop()
                if kind == "pause":
                    time.sleep(pause)
                    peer.go_on()
            elif kind == "kill":
                peer.kill()
            elif kind == "cut" and self.fabric:
                self.fabric.paths("cut")
            elif kind == "cut":
                rules("add", self.network)
            elif kind == "completions":
                self.fabric.completions("hold")
            elif kind == "close":
                self.engine.close()

        self.fault_at = None
        if delay == 0 and kind not in ("close", "pause"):
            act()
            return None
        thread = threading.Thread(target=act)
        thread.start()
        return thread

    def heal(self, kind, peer):
        if kind == "stop":
            peer.go_on()
        elif kind == "kill":
            peer.replace()
        elif kind == "cut" and self.fabric:
            self.fabric.paths("mend")
        elif kind == "cut":
            rules("del", self.network)
        elif kind == "completions":
            self.fabric.completions("release")
        elif kind == "close":
            self.open()

    def next_kind(self):
        if not self.options.devices:
            return self.random.choice(self.kinds)
        # Equally often, for these rounds are few.
        if not self.next_kinds:
            self.next_kinds = self.random.sample(self.kinds, len(self.kinds))
        return self.next_kinds.pop()

    def round(self, number):
        chance = self.random
        kind, way = self.next_kind(), chance.choice(["write", "read"])
        peer = chance.choice(self.peers)
        nbytes = min(REGION - TAIL, int(2 ** chance.uniform(10, 22)))
        delay = chance.choice([0, 0, chance.uniform(0, 0.001), chance.uniform(0, 0.02)])
        deadline = chance.uniform(0.002, 0.03)
        if kind in ("kill", "close") and chance.random() < 0.5:
            # Only the failure ends it.
            deadline = 5.0
        what = f"round {number}: {kind} after {delay:.4f} s, {way} of {nbytes} bytes,"
        here, there = self.local[:nbytes], peer.memory[:nbytes]
        if peer.settled is not None:
            known, length = peer.settled
            is_same = numpy.array_equal(peer.memory[:length], known)
            self.check(is_same, what, "the peer's memory changed since its last round")
        peer.settled = None
        before, sent, after = self.fresh(), self.fresh(), self.fresh()
        (there if way == "write" else here)[:] = before
        (here if way == "write" else there)[:] = sent
        fault = self.fault(kind, peer, delay, chance.uniform(0, 2 * deadline))
        started = time.monotonic()
        state = self.move(kind, way, peer, nbytes, deadline)
        returned = time.monotonic()
        if state is not None:
            # The buffer is the caller's again.
            here[:] = after
        landed = there.copy()
        if fault:
            fault.join()
        self.count[kind] += 1
        self.states[f"{kind} {way} {state or 'done'}"] += 1
        due = started + self.patience(deadline)
        if kind == "kill" and self.fault_at > started:
            due = min(due, self.fault_at)
        self.slowest[kind] = max(self.slowest[kind], returned - due)
        is_in_time = returned - due <= BOUND_S[self.options.transport]
        self.check(is_in_time, what, f"the call returned {returned - due:.2f} s late")
        # A scripted device answers for a program that has just ended, without its bytes.
        if state is None and not (kind == "kill" and self.fabric):
            self.check((landed == sent).all(), what, "done, and bytes are missing")
            self.check((here == sent).all(), what, "done, and bytes are missing here")
        self.heal(kind, peer)
        if way == "write" and state is not None:
            self.look_there(what, peer, there, landed, (before, sent, after), state)
        self.follow(what, peer)
        if state is not None and way == "write":
            self.check((here == after).all(), what, "bytes arrived in the source")
            self.check((there != after).all(), what, "late bytes reached the peer")
        elif state is not None:
            self.check((here == after).all(), what, "late bytes arrived in the buffer")
            self.check((there == sent).all(), what, "a read changed the peer's memory")

    def patience(self, deadline):
        return deadline if self.options.engine == "handfast" else 5.0

    def move(self, kind, way, peer, nbytes, deadline):
        started = None
        if kind == "cancel":
            started = lambda transfer: (time.sleep(deadline / 8), transfer.cancel())
        local = self.local.ctypes.data
        return self.engine.move(way, peer.name, local, peer.address, nbytes, deadline, started)

    def look_there(self, what, peer, there, landed, content, state):
        """Check the peer's memory after a write that failed."""
        before, sent, _ = content
        is_known = ((landed == before) | (landed == sent)).all()
        self.check(is_known, what, "the peer has bytes of neither content")
        if state == "untouched":
            self.check((landed == before).all(), what, "untouched, and bytes are there")
        elif state == "indeterminate" and self.engine.fence(peer.name):
            landed = there.copy()
            self.states["fence"] += 1
        elif state != "fenced":
            return
        peer.settled = landed, len(landed)

    def follow(self, what, peer):
        """The next transfer to the peer works, and comes after everything of the failed one."""
        tail = self.local[-TAIL:]
        tail[:] = self.fresh()
        first = REGION - TAIL
        began = time.monotonic()
        arguments = self.local.ctypes.data + first, peer.address + first, TAIL, 5.0
        while (failed := self.engine.move("write", peer.name, *arguments)) is not None:
            if time.monotonic() - began > HEALED_S:
                break
        self.check(failed is None, what, f"no transfer works after {HEALED_S} s: {failed}")
        is_there = failed is not None or (peer.memory[first:] == tail).all()
        self.check(is_there, what, "the next transfer is done, and bytes are missing")
        self.slowest["next"] = max(self.slowest["next"], time.monotonic() - began)

    def run(self):
        for number in range(self.options.rounds):
            self.round(number)
        result = {
            "rounds": dict(self.count),
            "ends": dict(sorted(self.states.items())),
            "late_s": {kind: round(late, 3) for kind, late in sorted(self.slowest.items())},
            "violations": self.violations,
        }
        print("result", json.dumps(result), flush=True)
        for peer in self.peers:
            peer.kill()
        # Without the end of an engine whose peers are dead.
        os._exit(0)


def has_network():
    made = subprocess.run(["unshare", "-rn", "true"], capture_output=True)
    return made.returncode == 0


NETWORK = """
ip link set lo up && ip address add 10.0.0.1/8 dev lo && ip address add 10.0.0.2/8 dev lo &&
ip rule add pref 100 lookup local && ip rule del pref 0 && exec "$0" "$@"
"""


def command(options, number, rounds, is_alone):
    words = [sys.executable, "-W", "ignore", os.path.abspath(__file__), "--worker"]
    words += ["--engine", options.engine, "--kinds", options.kinds, "--rounds", str(rounds)]
    words += ["--seed", str(options.seed + number), "--transport", options.transport]
    words += ["--devices", options.devices] if options.devices else []
    if options.fabric:
        run = [options.fabric, "fabric", "run", "--profile", options.profile]
        run += ["--library", options.library] if options.library else []
        words = run + ["--", *words]
    return ["unshare", "-rn", "sh", "-c", NETWORK, *words] if is_alone else words


def results(options, is_alone):
    """Run the workers, and yield what each found."""
    share, rest = divmod(options.rounds, options.workers)
    counts = [share + (number < rest) for number in range(options.workers)]
    environment = {**os.environ, "MC_TRANSFER_TIMEOUT": "5", "GLOG_minloglevel": "3"}
    commands = [command(options, *it, is_alone) for it in enumerate(counts)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(it, env=environment, **pipes) for it in commands]
    ended = [threading.Thread(target=lambda it=it: it.said.extend(it.communicate())) for it in running]
    for process in running:
        process.said = []
    for thread in ended:
        thread.start()
    for thread in ended:
        thread.join()
    for process, words in zip(running, commands):
        output, errors = process.said
        lines = [line for line in output.splitlines() if line.startswith("result ")]
        if lines:
            yield json.loads(lines[-1].removeprefix("result "))
        else:
            text = f"a worker ended with {process.returncode}: {shlex.join(words)}\n{errors[-2000:]}"
            yield {"rounds": {}, "ends": {}, "late_s": {}, "violations": [text]}


def main(options):
    is_alone = not options.devices and has_network()
    can_cut = is_alone or options.devices
    if not options.kinds:
        kinds = KINDS if options.engine == "handfast" else KINDS[:3]
        kinds = DEVICE_KINDS if options.fabric else kinds
        options.kinds = ",".join(kind for kind in kinds if can_cut or kind != "cut")
    if not can_cut:
        print("skipped: no peer is cut off, which needs a network of its own (unshare -rn)")
    if options.fabric or options.devices:
        options.transport = "rdma"
    began = time.monotonic()
    rounds, ends, late, violations = collections.Counter(), collections.Counter(), {}, []
    for result in results(options, is_alone):
        rounds.update(result["rounds"])
        ends.update(result["ends"])
        late = {kind: max(late.get(kind, 0), result["late_s"].get(kind, 0))
                for kind in late | result["late_s"]}
        violations += result["violations"]
    print(f"{options.engine} over {options.transport}, {sum(rounds.values())} rounds "
          f"in {time.monotonic() - began:.0f} s: " + ", ".join(f"{n} {kind}" for kind, n in rounds.items()))
    for end, times in sorted(ends.items()):
        print(f"  {times:6} {end}")
    print("  most seconds after the deadline or the death of the peer, and to the next transfer:",
          ", ".join(f"{kind} {seconds}" for kind, seconds in sorted(late.items())))
    for text in violations[:VIOLATIONS_PRINTED_MAX]:
        print("  broken:", text)
    print(f"  {len(violations)} checks failed")
    is_complete = sum(rounds.values()) == options.rounds
    return 0 if is_complete and not violations else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--engine", default="handfast")
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--kinds", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fabric")
    parser.add_argument("--profile", default="rxe")
    parser.add_argument("--library")
    parser.add_argument("--devices", default="")
    parser.add_argument("--worker", action="store_true")
    chosen = parser.parse_args()
    sys.exit(Worker(chosen).run() if chosen.worker else main(chosen))
