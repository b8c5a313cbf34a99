#!/usr/bin/env python3
"""lockstep_distributed_test fails when any rank does, hangs or leaves a process behind."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM = "tests/launch/bad_ranks"


def run(case, **env):
    clean = {k: v for k, v in os.environ.items() if k not in ("XML_OUTPUT_FILE", "TEST_PREMATURE_EXIT_FILE", "TEST_TIMEOUT")}
    return subprocess.run([PROGRAM, "--lockstep_world_size=2", f"--gtest_filter=BadRanks.{case}"],
                          env={**clean, **env}, capture_output=True, text=True, timeout=60)


class DistributedTest(unittest.TestCase):
    def test_passes_when_all_ranks_do(self):
        result = run("None")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stdout.count("[  PASSED  ] 1 test."), 2)

    def test_fails_when_one_rank_does(self):
        result = run("RankOneFails")
        self.assertEqual(result.returncode, 1)
        self.assertIn("rank 1", result.stderr)

    def test_names_a_killed_rank(self):
        result = run("RankOneIsKilled")
        self.assertEqual(result.returncode, 137)
        self.assertRegex(result.stderr, r"rank 1 \(process \d+\) was killed by signal 9")

    def test_a_hang_ends_before_bazels_timeout(self):
        result = run("RankOneHangs", TEST_TIMEOUT="21")
        self.assertEqual(result.returncode, 124)
        self.assertRegex(result.stderr, r"rank 1 \(process \d+\) did not end in time")

    def test_a_process_left_behind_is_a_failure(self):
        result = run("LeavesAProcess")
        self.assertEqual(result.returncode, 1)
        self.assertIn("left 1 processes behind", result.stderr)

    def test_one_report_is_written(self):
        path = os.path.join(os.environ["TEST_TMPDIR"], "report.xml")
        self.assertEqual(run("None", XML_OUTPUT_FILE=path, GTEST_OUTPUT="xml:" + path).returncode, 0)
        self.assertEqual(open(path).read().count("<testcase "), 1)


if __name__ == "__main__":
    junit.main()
