"""Programs that call `mooncake.engine` and `libtransfer_engine`, unmodified: LMCache's test and NIXL's
from their sources in HANDFAST_UPSTREAM, and classes of SGLang, vLLM and checkpoint-engine from their
packages, which the interpreter HANDFAST_CALLERS has. Their bytes are on the CPU."""

import os
import re
import shutil
import subprocess
import tempfile
import threading
import unittest

import handfast

UPSTREAM = os.environ["HANDFAST_UPSTREAM"]
#: An interpreter with the callers' packages and with this package.
CALLERS = os.environ.get("HANDFAST_CALLERS")
#: The shared library of `bindings/c`.
LIBRARY = os.environ.get("HANDFAST_TRANSFER_ENGINE")
OVERLAY = os.path.join(os.path.dirname(handfast.__file__), "_overlay")
C = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../c"))
#: Against a process that never ends. The step that runs these tests has a shorter limit.
TIMEOUT_S = 3600

# Packages are entered without their `__init__`, which imports what their engines need on a GPU.
BARE = """
import importlib.util, sys, types

def enter(*names):
    for name in names:
        spec = importlib.util.find_spec(name)
        module = types.ModuleType(name)
        module.__spec__, module.__path__ = spec, list(spec.submodule_search_locations)
        sys.modules[name] = module

import torch
memory = torch.zeros(1 << 16, dtype=torch.uint8)
"""

SGLANG = BARE + """
enter("sglang", "sglang.srt", "sglang.srt.distributed", "sglang.srt.distributed.device_communicators")
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine
engine = MooncakeTransferEngine("127.0.0.1")
place = memory.data_ptr()
if len(sys.argv) == 1:
    engine.register(place, memory.nbytes)
    print(engine.session_id, place, flush=True)
    sys.stdin.readline()
    print(memory.long().sum().item())
    engine.deregister(place)
else:
    session, there = sys.argv[1], int(sys.argv[2])
    memory[:] = 3
    assert engine.batch_register([place, place + 4096], [4096, 8192]) == 0
    assert engine.transfer_sync(session, place, there, 100) == 0
    lists = [place + 100, place + 4096], [there + 100, there + 9000], [900, 1000]
    assert engine.batch_transfer_sync(session, *lists) == 0
    assert engine.transfer_sync(session, place, there + memory.nbytes, 1) < 0
    assert engine.batch_deregister([place, place + 4096]) == 0
    print(engine.engine.send_probe(session), engine.engine.send_probe("127.0.0.1:1") != 0)
"""

VLLM = BARE + """
enter("vllm", "vllm.distributed", "vllm.distributed.ec_transfer")
enter("vllm.distributed.ec_transfer.ec_connector")
enter("vllm.distributed.ec_transfer.ec_connector.mooncake")
from vllm.distributed.ec_transfer.ec_connector.mooncake.transfer import MooncakeTransfer
transfer = MooncakeTransfer("127.0.0.1", "tcp")
if len(sys.argv) == 1:
    assert transfer.register_memory(memory) == 0
    print(transfer.local_session(), memory.data_ptr(), flush=True)
    sys.stdin.readline()
    print(memory.long().sum().item())
    assert transfer.unregister_memory(memory)
else:
    session, there = sys.argv[1], int(sys.argv[2])
    memory[:] = 3
    # Siblings of one storage, one of them twice.
    views = [memory[:1000], memory[1000:2000], memory[:1000]]
    sources = transfer.acquire_sources(views)
    assert len(sources) == 2, sources
    transfer.write(session, sources, [there, there + 5000], [1000, 1000])
    assert transfer.acquire_sources(views[:1]) == sources[:1]
    assert transfer.release_sources(sources)
    try:
        transfer.write(session, [memory.data_ptr() + 1000], [there], [10])
        raise SystemExit("memory that was released was written")
    except RuntimeError as error:
        print(error, file=sys.stderr)
    transfer.close()
    print(0, True)
"""

CHECKPOINT_ENGINE = BARE + """
enter("checkpoint_engine")
import checkpoint_engine.device_utils
checkpoint_engine.device_utils.get_ip = lambda: "127.0.0.1"
from checkpoint_engine.p2p_store import P2PStore

class Manager:
    # Of one device, in place of a manager of GPUs.
    device_module = types.SimpleNamespace(device_count=lambda: 1)
    transfer_engine_protocol = "tcp"
    rdma_device = staticmethod(lambda place: "")

store = P2PStore(Manager())
if len(sys.argv) == 1:
    memory[:2000] = 3
    store.register_named_tensors({"first": memory[:4096], "second": memory[8192:]})
    print(store.addr, memory.data_ptr(), flush=True)
    sys.stdin.readline()
    print(memory.long().sum().item())
    assert store.unregister_named_tensors(["first", "second"]) == 2
else:
    session, there = sys.argv[1], int(sys.argv[2])
    store.register_named_tensors({f"layer-{n}": memory[n * 256 : n * 256 + 256] for n in range(256)})
    here = memory.data_ptr()
    lists = [here, here + 256, here + 512], [there, there + 1000, there + 8192], [256, 200, 10]
    store.batch_transfer_sync_read(session, *lists)
    try:
        store.batch_transfer_sync_read(session, [here], [there + 5000], [10])
        raise SystemExit("memory that is not registered was read")
    except AssertionError:
        print(0, memory.long().sum().item() == 3 * 456)
"""


def environment(**more):
    return {**os.environ, "PYTHONPATH": OVERLAY, **more}


@unittest.skipIf(CALLERS is None, "the callers' packages are not installed")
class Packages(unittest.TestCase):
    """Two processes with a caller's class each: one serves memory, the other moves bytes."""

    def play(self, code, expected):
        options = environment(MC_FORCE_TCP="1", RANK="0", HANDFAST_TRANSPORT="tcp")
        pipes = {"text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        words = [CALLERS, "-W", "ignore", "-c", code]
        serving = subprocess.Popen(words, env=options, **pipes)
        self.addCleanup(serving.communicate)
        self.addCleanup(serving.kill)
        limit = threading.Timer(TIMEOUT_S, serving.kill)
        self.addCleanup(limit.cancel)
        limit.start()
        # Callers write logs to the same stream.
        address = next((re.fullmatch(r"(127.0.0.1:\d+) (\d+)\n", it) for it in serving.stdout
                        if it.startswith("127.0.0.1:")), None)
        self.assertIsNotNone(address, "the owner did not start")
        moving = subprocess.run(words + list(address.groups()), env=options, capture_output=True,
                                text=True, timeout=TIMEOUT_S)
        self.assertEqual(moving.returncode, 0, moving.stderr[-4000:])
        self.assertEqual(moving.stdout.splitlines()[-1], "0 True")
        output, _ = serving.communicate("\n", timeout=TIMEOUT_S)
        self.assertEqual((serving.returncode, int(output.splitlines()[-1])), (0, expected))

    def test_sglang_moves_bytes(self):
        self.play(SGLANG, 3 * 2000)

    def test_vllm_moves_bytes(self):
        self.play(VLLM, 3 * 2000)

    def test_checkpoint_engine_moves_bytes(self):
        self.play(CHECKPOINT_ENGINE, 3 * 2000)


@unittest.skipIf(CALLERS is None, "the callers' packages are not installed")
class LMCache(unittest.TestCase):
    def test_lmcache_passes_its_tests(self):
        folder = os.path.abspath(os.path.join(UPSTREAM, "LMCache"))
        name = "tests/v1/distributed/transfer_channel/test_mooncake_impl.py"
        if not os.path.exists(os.path.join(folder, name)):
            self.skipTest(f"LMCache/{name} is not among the sources")
        # Fixtures of LMCache's other tests need its whole engine; this test has its own.
        words = [CALLERS, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest"]
        words += ["--import-mode=importlib", f"--rootdir={folder}", os.path.join(folder, name)]
        # The package is the installed one, and not the sources around the test.
        with tempfile.TemporaryDirectory() as empty:
            ended = subprocess.run(words, cwd=empty, env=environment(MC_TE_PROTOCOL="tcp"),
                                   capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual(ended.returncode, 0, ended.stdout[-4000:] + ended.stderr[-2000:])
        self.assertRegex(ended.stdout, r"\b13 passed\b")


class Nixl(unittest.TestCase):
    """NIXL's plugin for Mooncake and its test, over our `libtransfer_engine.so`. Two headers of NIXL and
    one of Abseil are replaced: logging, and settings from a file."""

    SOURCES = [
        "src/infra/nixl_descriptors.cpp",
        "src/infra/nixl_memory_section.cpp",
        "src/utils/serdes/serdes.cpp",
        "src/plugins/mooncake/mooncake_backend.cpp",
        "test/unit/plugins/mooncake/mooncake_backend_test.cpp",
    ]
    HEADERS = [
        "src",
        "src/api/cpp",
        "src/core",
        "src/core/telemetry",
        "src/infra",
        "src/plugins/mooncake",
        "src/utils",
    ]
    #: Lists of 64 MiB: five pairs of agents, reads and writes, with and without a notification, ten each.
    TRANSFERS = 5 * 2 * 2 * 10

    def test_nixl_passes_its_test(self):
        nixl = os.path.join(UPSTREAM, "nixl")
        sources = [os.path.join(nixl, name) for name in self.SOURCES]
        if not all(map(os.path.exists, sources)):
            self.skipTest("nixl is not among the sources")
        if LIBRARY is None or shutil.which("c++") is None:
            self.skipTest("there is no libtransfer_engine.so, or no C++ compiler")
        headers = [os.path.join(C, "tests/nixl"), os.path.join(C, "include")]
        headers += [os.path.join(nixl, name) for name in self.HEADERS]
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(LIBRARY, os.path.join(folder, "libtransfer_engine.so"))
            program = os.path.join(folder, "test")
            # Its checks are assertions.
            compile = ["c++", "-std=c++20", "-UHAVE_CUDA", "-UNDEBUG", *sources, "-o", program]
            compile += [f"-I{header}" for header in headers] + [f"-L{folder}", "-ltransfer_engine"]
            built = subprocess.run(compile, capture_output=True, text=True)
            self.assertEqual(built.returncode, 0, built.stderr[-4000:])
            at_loopback = {"LD_LIBRARY_PATH": folder, "NIXL_MOONCAKE_IP_ADDR": "127.0.0.1"}
            ended = subprocess.run([program], env={**os.environ, **at_loopback},
                                   capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual(ended.returncode, 0, ended.stdout[-2000:] + ended.stderr[-2000:])
        self.assertEqual(ended.stdout.count("Data verification: OK"), self.TRANSFERS)


if __name__ == "__main__":
    unittest.main()
