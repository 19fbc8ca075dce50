"""Import, fork, signals and exit."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from handfast.__main__ import OVERLAY

from helpers import python


def run(code, **options):
    process = python(code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


class Process(unittest.TestCase):
    def test_import_starts_no_thread(self):
        code = "import handfast, handfast.mooncake, os; print(len(os.listdir('/proc/self/task')))"
        self.assertEqual(run(code), (0, "1\n"))

    def test_libraries_of_devices_are_not_loaded_without_need(self):
        """Neither by the import nor by an engine over TCP, also where the machine has them."""
        code = """
import handfast, handfast.mooncake, re
def loaded():
    with open("/proc/self/maps") as maps:
        return sorted(set(re.findall(r"lib(?:ibverbs|rdmacm|cuda|numa|mlx5)[^/]*$", maps.read(), re.M)))
print(loaded())
engine = handfast.Engine(transport="tcp")
print(loaded())
engine.close()
"""
        self.assertEqual(run(code), (0, "[]\n[]\n"))

    def test_child_of_a_fork_makes_its_own_engine(self):
        code = """
import handfast, os
engine = handfast.Engine(transport="tcp")
block = bytearray(16)
local = engine.register(block)
child = os.fork()
if child == 0:
    try:
        engine.peer(engine.address).write(block, local.address)
    except handfast.Forked as error:
        own = handfast.Engine(transport="tcp")
        cache = bytearray(16)
        mine = own.register(cache)
        source = bytearray(b"from the child..")
        with own.register(source):
            own.peer(own.address).write(source, mine.address)
        print("child:", bytes(cache).decode(), flush=True)
    del engine
    os._exit(0)
os.waitpid(child, 0)
engine.peer(engine.address).write(block, local.address)
print("parent goes on")
"""
        self.assertEqual(run(code), (0, "child: from the child..\nparent goes on\n"))

    def test_children_of_two_forks_reach_each_other(self):
        """They draw numbers of their own, although their parent has drawn before."""
        code = """
import handfast, os
engine = handfast.Engine(transport="tcp")
(addresses, announced), (ending, end) = os.pipe(), os.pipe()
owner = os.fork()
if owner == 0:
    own = handfast.Engine(transport="tcp")
    cache = bytearray(16)
    mine = own.register(cache)
    os.write(announced, f"{own.address} {mine.address}\\n".encode())
    os.read(ending, 1)
    print("cache:", bytes(cache).decode(), flush=True)
    os._exit(0)
os.close(announced)
address, place = os.fdopen(addresses).readline().split()
user = os.fork()
if user == 0:
    own = handfast.Engine(transport="tcp")
    source = bytearray(b"from the sibling")
    with own.register(source):
        own.peer(address).write(source, int(place))
    os._exit(0)
print("user:", os.waitstatus_to_exitcode(os.waitpid(user, 0)[1]), flush=True)
os.write(end, b"!")
os.waitpid(owner, 0)
"""
        self.assertEqual(run(code), (0, "user: 0\ncache: from the sibling\n"))

    def test_interpreter_ends_with_calls_in_flight(self):
        """A daemon thread waits for a peer that never answers."""
        code = """
import handfast, socket, threading, time
mute = socket.create_server(("127.0.0.1", 0))
engine = handfast.Engine(transport="tcp")
def call():
    started.set()
    try:
        engine.peer("127.0.0.1:%d" % mute.getsockname()[1]).probe()
    except handfast.HandfastError:
        pass
started = threading.Event()
for _ in range(8):
    threading.Thread(target=call, daemon=True).start()
started.wait()
mute.accept()
print("end", flush=True)
"""
        code, output = run(code)
        self.assertEqual(code, 0, output)
        self.assertEqual(output, "end\n")

    def test_control_c_ends_a_waiting_call(self):
        code = """
import handfast, signal, socket, threading
# A program that was started in the background inherits an ignored SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
mute = socket.create_server(("127.0.0.1", 0))
engine = handfast.Engine(transport="tcp")
calls = []
def accept():
    calls.append(mute.accept())
    print("waiting", flush=True)
threading.Thread(target=accept).start()
try:
    engine.peer("127.0.0.1:%d" % mute.getsockname()[1]).probe()
except KeyboardInterrupt:
    print("interrupted")
"""
        process = python(code, stdout=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), "waiting\n")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
        self.assertEqual((process.returncode, output), (0, "interrupted\n"))

    def test_thousand_engines_leave_nothing_behind(self):
        code = """
import gc, handfast, os, time
gc.disable()
def count(what):
    return len(os.listdir("/proc/self/" + what))
def resident():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def turn():
    with handfast.Engine(transport="tcp") as one:
        other = handfast.Engine(transport="tcp")
        block, cache = bytearray(64), bytearray(64)
        one.register(block)
        other.register(cache)
        one.peer(other.address).probe()
        del other
for _ in range(100):
    turn()
time.sleep(1)
before = count("fd"), count("task"), resident()
for _ in range(400):
    turn()
# An engine that is not closed ends with its last reference; the system ends connections a moment
# later.
for _ in range(200):
    after = count("fd"), count("task"), resident()
    if after[0] <= before[0] + 4 and after[1] <= before[1] + 2:
        break
    time.sleep(0.1)
assert after[0] <= before[0] + 4 and after[1] <= before[1] + 2, (before, after)
assert after[2] <= before[2] + (8 << 20), (before, after)
print(after[2] - before[2])
"""
        code, output = run(code)
        self.assertEqual(code, 0, output)

    def test_overlay_gives_mooncake_engine_and_is_undone(self):
        shell = f"""
set -e
eval "$({sys.executable} -m handfast mooncake-env)"
{sys.executable} -c 'from mooncake.engine import TransferEngine, TransferOpcode as code; print(TransferEngine.__module__, code.Write)'
{sys.executable} -c 'import mooncake.engine as it; print(hasattr(it, "RpcInterface"), it.__name__)'
eval "$({sys.executable} -m handfast mooncake-env --undo)"
echo "[${{PYTHONPATH-unset}}]"
"""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        output = subprocess.check_output(["sh", "-c", shell], text=True, env=environment)
        expected = "handfast.mooncake 1\nFalse mooncake.engine\n[unset]\n"
        self.assertEqual(output, expected)

    def test_overlay_keeps_nothing_of_a_module_that_failed(self):
        """The module of the other package fails once, after its first name."""
        program = f"""
import os, sys
sys.path[:0] = [{OVERLAY!r}, os.environ["THEIRS"]]
import mooncake.engine as engine
print(hasattr(engine, "First"), hasattr(engine, "First"), engine.Last)
"""
        module = """
import pathlib
First = 1
failed = pathlib.Path(__file__).with_name("failed")
if not failed.exists():
    failed.touch()
    raise ImportError("a library is missing")
Last = 2
"""
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder, "mooncake")
            package.mkdir()
            package.joinpath("__init__.py").touch()
            package.joinpath("engine.py").write_text(module)
            command = [sys.executable, "-B", "-c", program]
            output = subprocess.check_output(command, text=True, env=os.environ | {"THEIRS": folder})
        self.assertEqual(output, "False True 2\n")


if __name__ == "__main__":
    unittest.main()
