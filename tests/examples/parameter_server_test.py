#!/usr/bin/env python3
"""The parameter server's example trains in every way, on made-up pictures."""
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM = "examples/parameter_server"


def pictures(path, count):
    """A CSV file in which a class is a bright block at a place of its own, with noise."""
    rng = random.Random(1)
    with open(path, "w") as out:
        for i in range(count):
            label = i % 10
            pixels = [rng.randrange(40) for _ in range(784)]
            for y in range(8):
                for x in range(5):
                    pixels[(14 * (label // 5) + 3 + y) * 28 + 5 * (label % 5) + 1 + x] = 200 + rng.randrange(50)
            out.write(f"{label}," + ",".join(map(str, pixels)) + "\n")


class ParameterServerExample(unittest.TestCase):
    def test_every_way_learns(self):
        data = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")), "pictures.csv")
        pictures(data, 2000)
        result = subprocess.run([PROGRAM, f"--data={data}", "--workers=2", "--servers=2", "--epochs=2", "--staleness=3",
                                 "--batch_size=20"], capture_output=True, text=True, timeout=100)
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = {row[0]: row for row in re.findall(r"^(\w+) +(\d+) +(\d+) +(\d+) +(\d\.\d+) +(.*)$", result.stdout, re.M)}
        self.assertEqual(list(rows), ["ddp", "sync", "async"])
        for way, row in rows.items():
            self.assertEqual(row[1:3], ("2", "0" if way == "ddp" else "2"))
            self.assertGreater(float(row[4]), 0.9, result.stdout)
        # 1,800 pictures, two epochs: 45 batches an epoch for each of the two workers.
        for way in ("sync", "async"):
            self.assertTrue(rows[way][5].startswith("180 gradients, "), result.stdout)
        self.assertIn("staleness mean 0.00, max 0", rows["sync"][5])
        self.assertLessEqual(int(re.search(r"lead max (\d+)", rows["async"][5]).group(1)), 3)

    def test_mistakes_are_named(self):
        for argument, text in (("--servers=0", "--servers must be at least 1, not 0"),
                               ("--ways=both", "--ways: 'both' is none of ddp, sync and async")):
            result = subprocess.run([PROGRAM, argument], capture_output=True, text=True, timeout=20)
            self.assertEqual((result.returncode, result.stderr.strip()), (1, "error: " + text))


if __name__ == "__main__":
    junit.main()
