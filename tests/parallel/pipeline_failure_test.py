#!/usr/bin/env python3
"""When one stage of a pipeline goes wrong all end, and all say which rank it was."""
import re
import subprocess
import sys
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM, LAUNCHER = "tests/parallel/failing_pipeline", "launch/lockstep_run"


class PipelineFailure(unittest.TestCase):
    def run_mode(self, mode, rank=1):
        result = subprocess.run([LAUNCHER, "--standalone", "--nproc_per_node=3", PROGRAM, mode, str(rank)], capture_output=True,
                                text=True, timeout=60)
        self.assertNotEqual(result.returncode, 0)
        return result.stderr

    def test_an_error_in_a_stage_is_on_its_rank_and_the_others_name_that(self):
        for mode in ("forward", "backward"):
            with self.subTest(mode):
                text = self.run_mode(mode)
                self.assertRegex(text, r"rank 1: error: out of luck|error: rank 1: out of luck", text)
                for rank in (0, 2):
                    lines = [line for line in text.splitlines() if re.search(fr"rank {rank}\b", line)]
                    self.assertTrue(any("rank 1" in line for line in lines), text)

    def test_the_launcher_takes_the_rank_that_threw_for_the_first(self):
        for rank in (0, 1, 2):
            self.assertIn(f"first failure: rank {rank} ", self.run_mode("forward", rank))

    def test_a_killed_stage_is_named(self):
        self.assertRegex(self.run_mode("kill"), r"rank 1 .*(gone|killed)")

    def test_stages_that_do_different_things_say_so(self):
        self.assertRegex(self.run_mode("evaluate"),
                         r"stage 0 is in Step and stage 1 in Evaluate|stage 1 is in Evaluate and stage 2 in Step")


if __name__ == "__main__":
    junit.main()
