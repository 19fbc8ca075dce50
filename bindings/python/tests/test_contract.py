"""What a failed transfer leaves alone, in some rounds of contract.py."""

import os
import subprocess
import sys
import unittest

#: The program `handfast`, which runs others on scripted devices.
PROGRAM = os.environ.get("HANDFAST_PROGRAM")
FABRIC = subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
CONTRACT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "contract.py")


def rounds(*arguments):
    command = [sys.executable, "-B", CONTRACT, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return ended.returncode, ended.stdout + ended.stderr


class Contract(unittest.TestCase):
    def test_failed_transfers_leave_reused_buffers_alone(self):
        code, output = rounds("--rounds", 200, "--workers", 4)
        self.assertEqual(code, 0, output)
        # Each failure came at times that a transfer did not survive.
        for kind in ("stop", "kill", "pause", "close"):
            self.assertRegex(output, rf"{kind} (write|read) (untouched|fenced|indeterminate)")

    @unittest.skipUnless(PROGRAM and FABRIC, "there is no program, or no network of its own")
    def test_failed_transfers_over_rdma_leave_reused_buffers_alone(self):
        """On scripted devices."""
        kinds = "stop,kill,pause,cancel,close," * 3 + "cut"
        fabric = "--fabric", PROGRAM, "--profile", "mlx5"
        code, output = rounds("--rounds", 64, "--workers", 2, "--kinds", kinds, *fabric)
        self.assertEqual(code, 0, output)

    def test_rounds_find_a_write_that_goes_on_after_its_end(self):
        """An engine that says -1 while it goes on, as a check of the rounds themselves."""
        code, output = rounds("--rounds", 8, "--workers", 1, "--kinds", "stop", "--engine", "careless")
        self.assertEqual(code, 1, output)
        self.assertIn("late bytes", output)


if __name__ == "__main__":
    unittest.main()
