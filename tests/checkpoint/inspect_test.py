#!/usr/bin/env python3
"""//checkpoint:inspect on files of every format."""
import json
import subprocess
import sys
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

INSPECT, FOLDER = "checkpoint/inspect", "tests/checkpoint/"


def run(*arguments):
    return subprocess.run([INSPECT, *arguments], capture_output=True, text=True, timeout=60)


class Inspect(unittest.TestCase):
    def rows(self, file, *flags):
        result = run(FOLDER + file, "--json", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return {row["key"]: row for row in map(json.loads, result.stdout.splitlines())}

    def test_every_format_as_json(self):
        for file in ("everything.pth", "legacy.pth", "deflated.pth"):
            rows = self.rows(file, "--stats")
            self.assertEqual(rows["state.weight"], {"key": "state.weight", "dtype": "float32", "shape": [3, 4], "bytes": 48,
                                                    "sum": 66, "min": 0, "max": 11, "finite": True})
            self.assertEqual(rows["text"]["value"], '"ünïcode ☃"')
            self.assertEqual(rows["of bfloat16"]["bytes"], 6)
            self.assertEqual(rows["huge"]["value"], "0x400000000000000000")
            self.assertEqual(rows["complex"]["value"], "1.5-2j")
        rows = self.rows("python.safetensors")
        self.assertEqual(rows["scalar"], {"key": "scalar", "dtype": "int64", "shape": [], "bytes": 8})

    def test_a_table(self):
        result = run(FOLDER + "python.safetensors", "--stats")
        self.assertRegex(result.stdout, r"(?m)^key +dtype +shape +bytes +sum +min +max +finite$")
        self.assertRegex(result.stdout, r"(?m)^weight +float32 +\[2, 3\] +24 +15 +0 +5 +true$")
        self.assertRegex(result.stdout, r"(?m)^8 tensors, 48 bytes$")

    def test_errors_are_one_line(self):
        for arguments, want in (((), "give one file"), (("/nowhere/x",), "no such file"), ((FOLDER,), "not a regular file"),
                                ((FOLDER + "make_golden.py",), "neither"), ((FOLDER + "refused_sparse.pth",), "sparse")):
            result = run(*arguments)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(want, result.stderr)


if __name__ == "__main__":
    junit.main()
