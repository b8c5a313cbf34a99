#!/usr/bin/env python3
"""The mixed-precision example learns in every mode, and ranks agree."""
import re
import subprocess
import sys
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM, LAUNCHER = "examples/mixed_precision", "launch/lockstep_run"


class MixedPrecision(unittest.TestCase):
    def losses(self, mode, ranks):
        command = [LAUNCHER, "--standalone", f"--nproc_per_node={ranks}", PROGRAM, mode]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        losses = [float(x) for x in re.findall(r"step \d+: loss (\d+\.\d+)", result.stdout)]
        self.assertEqual(len(losses), 5, result.stdout)
        return losses

    def test_every_mode_learns_as_float32_does(self):
        for ranks in (1, 2):
            expected = self.losses("float32", ranks)
            self.assertLess(expected[-1], 0.7 * expected[0])
            for mode in ("bf16", "fp16", "bf16_model"):
                for ours, theirs in zip(self.losses(mode, ranks), expected):
                    self.assertAlmostEqual(ours, theirs, delta=0.1, msg=mode)

    def test_an_unknown_mode(self):
        result = subprocess.run([PROGRAM, "fp8"], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 2)
        self.assertIn("usage", result.stderr)


if __name__ == "__main__":
    junit.main()
