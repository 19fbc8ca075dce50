"""Mooncake's own tests, unmodified, from its sources: HANDFAST_UPSTREAM, or the folder Mooncake there."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import handfast
from helpers import Store

UPSTREAM = os.environ["HANDFAST_UPSTREAM"]
if os.path.isdir(os.path.join(UPSTREAM, "Mooncake")):
    UPSTREAM = os.path.join(UPSTREAM, "Mooncake")
WHEEL = os.path.join(UPSTREAM, "mooncake-wheel/tests")
CRATE = os.path.join(UPSTREAM, "mooncake-transfer-engine/rust")
OVERLAY = os.path.join(os.path.dirname(handfast.__file__), "_overlay")
#: The shared library of `bindings/c`, for Mooncake's crate.
LIBRARY = os.environ.get("HANDFAST_TRANSFER_ENGINE")
#: Libraries that the crate links by name, and does not call.
EMPTY = ["base", "asio", "tent", "stdc++", "ibverbs", "glog", "gflags", "jsoncpp", "numa", "curl"]

OURS = [sys.executable], {"PYTHONPATH": OVERLAY}
THEIRS = (
    [os.environ.get("HANDFAST_RELEASED_PYTHON")],
    {"LD_LIBRARY_PATH": os.environ.get("HANDFAST_RELEASED_LIBRARIES", "")},
)


def file(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        raise unittest.SkipTest(f"{path} is missing")
    return path


class Pairings(unittest.TestCase):
    """`transfer_engine_initiator_test.py` against `transfer_engine_target.py`."""

    def environment(self, own, store):
        common = {"MC_METADATA_SERVER": store, "MC_FORCE_TCP": "true"}
        return {**os.environ, **common, "MC_TCP_BIND_ADDRESS": "127.0.0.1", **own}

    def play(self, initiator, target):
        if None in initiator[0] + target[0]:
            self.skipTest("there is no released node")
        names = "transfer_engine_initiator_test.py", "transfer_engine_target.py"
        test, serve = (file(WHEEL, name) for name in names)
        store = Store()
        self.addCleanup(store.end)
        serving = subprocess.Popen(
            [*target[0], "-u", serve],
            env=self.environment(target[1], store.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(serving.stdout.close)
        self.addCleanup(serving.wait)
        self.addCleanup(serving.kill)
        is_ready = any("Target server ready" in line for line in serving.stdout)
        self.assertTrue(is_ready, "the target did not start")
        ended = subprocess.run(
            [*initiator[0], test],
            env=self.environment(initiator[1], store.url),
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(ended.returncode, 0, ended.stdout[-2000:] + ended.stderr[-4000:])
        count = re.search(r"Ran (\d+) tests", ended.stderr)
        self.assertGreaterEqual(int(count[1]), 6)

    def test_ours_with_ours(self):
        self.play(OURS, OURS)

    def test_ours_with_theirs(self):
        self.play(OURS, THEIRS)

    def test_theirs_with_ours(self):
        self.play(THEIRS, OURS)

    def test_theirs_with_theirs(self):
        self.play(THEIRS, THEIRS)


class Names(unittest.TestCase):
    def test_names_are_imported(self):
        name = "TestImportStructure.test_direct_import"
        path = file(WHEEL, "test_import_structure.py")
        command = [sys.executable, "-m", "unittest", f"test_import_structure.{name}"]
        paths = os.pathsep.join([OVERLAY, os.path.dirname(path)])
        ended = subprocess.run(
            [command[0], "-B", *command[1:]],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("Ran 1 test", ended.stderr)


class Crate(unittest.TestCase):
    """Mooncake's Rust crate, over our `libtransfer_engine.so`."""

    def test_crate_passes_its_tests(self):
        if LIBRARY is None or shutil.which("cc") is None:
            self.skipTest("there is no libtransfer_engine.so, or no C compiler")
        include = os.path.join(UPSTREAM, "mooncake-transfer-engine/include")
        file(CRATE, "tests/minimal_smoke.rs")
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(LIBRARY, os.path.join(folder, "libtransfer_engine.so"))
            for name in EMPTY:
                output = os.path.join(folder, f"lib{name}.so")
                subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", output], check=True)
            # Without the lock file of the sources, which cargo would write to.
            crate = shutil.copytree(CRATE, os.path.join(folder, "crate"))
            environment = {
                **os.environ,
                "MOONCAKE_TE_INCLUDE_DIR": include,
                "MOONCAKE_TE_LIB_DIR": folder,
                "MOONCAKE_WITH_TENT": "1",
                "MOONCAKE_WITHOUT_LIBFABRIC": "1",
                "MC_RUST_TE_RUN_INTEGRATION": "1",
                "LD_LIBRARY_PATH": folder,
            }
            for tests in (["--lib"], ["--test", "minimal_smoke"]):
                ended = subprocess.run(
                    ["cargo", "test", "--quiet", *tests],
                    cwd=crate,
                    env=environment,
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr[-4000:])
                self.assertRegex(ended.stdout, r"ok\. [1-9]\d* passed")


if __name__ == "__main__":
    unittest.main()
