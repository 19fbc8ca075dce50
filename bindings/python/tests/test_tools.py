"""Metrics, and the commands of ``python -m handfast``."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import unittest
import unittest.mock
import urllib.request

import handfast
from handfast.mooncake import TransferEngine

HANDFAST = [sys.executable, "-W", "ignore", "-m", "handfast"]


def run(*arguments, **options):
    return subprocess.run([*HANDFAST, *arguments], capture_output=True, text=True, **options)


class Metrics(unittest.TestCase):
    def setUp(self):
        self.owner = handfast.Engine(transport="tcp")
        self.user = handfast.Engine(transport="tcp", metrics="127.0.0.1:0")
        self.cache, self.block = bytearray(5000), bytearray(5000)
        self.served = self.owner.register(self.cache)
        self.user.register(self.block)
        self.user.peer(self.owner.address).write(self.block, self.served.address)

    def tearDown(self):
        self.user.close()
        self.owner.close()

    def test_metrics_count_the_bytes_of_each_peer(self):
        state = self.user.metrics()
        self.assertEqual(state["schema"], 1)
        self.assertEqual(state["node"]["address"], self.user.address)
        self.assertEqual(self.owner.metrics()["node"]["segments"], 1)
        peer = state["peers"][f"{self.owner.address}@tcp"]
        self.assertEqual(peer["rails"]["tcp"]["write"]["bytes"], 5000)

    def test_metrics_are_text_for_prometheus(self):
        text = self.user.openmetrics()
        self.assertTrue(text.endswith("# EOF\n"))
        lines = [line for line in text.splitlines() if line.startswith("handfast_rail_bytes")]
        self.assertTrue(any(line.endswith(" 5000") for line in lines), lines)

    def test_metrics_that_other_machines_reach_are_a_warning(self):
        with self.assertLogs("handfast", "WARNING") as logged:
            handfast.Engine(transport="tcp", metrics="0.0.0.0:0").close()
        self.assertIn("no client is authenticated", logged.output[0])

    def test_metrics_are_served_where_it_was_asked_for(self):
        self.assertIsNone(self.owner.metrics_address)
        with urllib.request.urlopen(f"http://{self.user.metrics_address}/metrics") as answer:
            self.assertIn("5000", answer.read().decode())
        with self.assertRaises(handfast.InvalidArgument):
            handfast.Engine(transport="tcp", metrics="nowhere")

    def test_top_shows_the_traffic_of_an_engine(self):
        shown = run("top", self.user.metrics_address, "--interval", "10ms")
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertIn(self.owner.address, shown.stdout)


class Limits(unittest.TestCase):
    def test_registration_past_regions_max_is_refused(self):
        with handfast.Engine(transport="tcp", regions_max=3) as engine:
            kept = [engine.register(bytearray(8)) for _ in range(3)]
            with self.assertRaisesRegex(handfast.LimitReached, "regions_max of 3.*larger") as caught:
                engine.register(bytearray(8))
            self.assertEqual(caught.exception.side, "local")
            kept.pop().close()
            engine.register(bytearray(8))
        for wrong in (131_073, 1 << 40):
            with self.assertRaisesRegex(handfast.InvalidArgument, "must not exceed 131072"):
                handfast.Engine(transport="tcp", regions_max=wrong)


    def test_variable_sets_the_limit_of_programs_that_cannot(self):
        def initialized(value):
            with unittest.mock.patch.dict(os.environ, HANDFAST_REGIONS_MAX=value):
                engine = TransferEngine()
                return engine, engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")

        engine, code = initialized("2")
        self.assertEqual(code, 0)
        buffers = [bytearray(8) for _ in range(3)]
        addresses = [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in buffers]
        codes = [engine.register_memory(address, 8) for address in addresses]
        self.assertEqual(codes, [0, 0, -2])
        self.assertIn("HANDFAST_REGIONS_MAX", str(engine.last_error()))
        for wrong in ("0", "131073", "many"):
            engine, code = initialized(wrong)
            self.assertEqual(code, -1)
            self.assertIn("1 to 131072", str(engine.last_error()))


class AcceptedMemory(unittest.TestCase):
    """Memory that is refused unless its risk is accepted."""

    def test_risks_are_accepted_by_options_and_variables(self):
        accepted = {"accept_exposed_memory": True, "accept_forked_memory": True}
        handfast.Engine(transport="tcp", **accepted).close()
        for name in (f"HANDFAST_{option.upper()}" for option in accepted):
            with unittest.mock.patch.dict(os.environ, {name: "1"}):
                handfast.Engine(transport="tcp").close()
            with unittest.mock.patch.dict(os.environ, {name: "yes"}):
                with self.assertRaisesRegex(handfast.InvalidArgument, name):
                    handfast.Engine(transport="tcp")
                engine = TransferEngine()
                self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), -1)
                self.assertIn(name, str(engine.last_error()))


class ConnectionManager(unittest.TestCase):
    """Queue pairs that connect through the connection manager, where there are devices."""

    def test_connection_manager_is_chosen_by_option_and_variable(self):
        handfast.Engine(transport="tcp", rdma_cm=True).close()
        with self.assertRaises(TypeError):
            handfast.Engine(transport="tcp", rdma_cm="yes")
        with unittest.mock.patch.dict(os.environ, {"HANDFAST_RDMA_CM": "1"}):
            handfast.Engine(transport="tcp").close()
        with unittest.mock.patch.dict(os.environ, {"HANDFAST_RDMA_CM": "yes"}):
            with self.assertRaisesRegex(handfast.InvalidArgument, "HANDFAST_RDMA_CM"):
                handfast.Engine(transport="tcp")


class Tools(unittest.TestCase):
    def test_explain_tells_known_errors_from_others(self):
        known = run("explain", "connect: connection refused")
        self.assertEqual(known.returncode, 0, known.stderr)
        self.assertIn("NET-REFUSED", known.stdout)
        self.assertEqual(run("explain", "all is well").returncode, 3)
        read = run("explain", "--json", input="connect: connection refused\n")
        self.assertEqual(read.returncode, 0, read.stderr)
        json.loads(read.stdout)

    def test_error_of_a_call_is_explained_by_its_id(self):
        with handfast.Engine(transport="tcp") as engine:
            with self.assertRaises(handfast.PeerLost) as caught:
                engine.peer("127.0.0.1:1").probe()
        explained = run("explain", caught.exception.id)
        self.assertEqual(explained.returncode, 0, explained.stderr)
        self.assertIn(caught.exception.id, explained.stdout)

    def test_doctor_reports_this_machine(self):
        report = run("doctor", "--transport", "tcp", "--json")
        self.assertIn(report.returncode, (0, 1), report.stderr)
        json.loads(report.stdout)

    def test_wrong_use_and_absent_nodes_have_their_exit_codes(self):
        self.assertEqual(run("top", "127.0.0.1:1").returncode, 3)
        wrong = run("doctor", "--no-such-option")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("python -m handfast doctor", wrong.stderr)
        helped = run("top", "--help")
        self.assertEqual((helped.returncode, helped.stderr), (0, ""))
        self.assertIn("--interval", helped.stdout)
        self.assertIn("doctor", run("--help").stdout)

    def test_control_c_ends_a_command(self):
        command = [*HANDFAST, "doctor", "--transport", "tcp", "--listen", "127.0.0.1:0"]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:
            try:
                # Notes may come before it.
                self.assertTrue(any("answering at" in line for line in process.stderr))
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(30), -signal.SIGINT)
            finally:
                process.kill()


if __name__ == "__main__":
    unittest.main()
